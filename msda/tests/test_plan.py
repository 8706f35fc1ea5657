"""Launch plans: limits, vector widths, 64-bit offsets, buffers."""

from dataclasses import replace

import pytest
import torch

from msda.plan import Problem, accumulator_dtype, block_edges, buffer_dtype, make_plan

SMALL = Problem(batch=2, pixels=17, heads=8, channels=32, queries=5, levels=2, points=3)


def strides(problem: Problem) -> tuple[int, int, int, int]:
    row = problem.heads * problem.channels
    return problem.pixels * row, row, problem.channels, 1


def plan(
    problem: Problem = SMALL, *, kernel="forward", dtype=torch.float32, architecture="cuda", aligned=True, at=None
):
    return make_plan(kernel, problem, dtype, at or strides(problem), aligned=aligned, architecture=architecture)


@pytest.mark.parametrize("architecture", ["cuda", "interpreter"])
@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("channels", [1, 31, 32, 33, 64, 65, 130])
@pytest.mark.parametrize("queries", [1, 7, 8, 9])
def test_programs_cover_the_call(architecture: str, kernel: str, channels: int, queries: int):
    problem = replace(SMALL, channels=channels, queries=queries)
    p = plan(problem, kernel=kernel, architecture=architecture)
    assert p.programs == problem.batch * problem.heads * p.query_blocks * p.channel_blocks
    assert 0 <= p.query_blocks * p.block_q - queries < p.block_q
    if kernel == "forward":
        assert 0 <= p.channel_blocks * p.block_d - channels < p.block_d
    else:
        # One program has all channels: anything else would need atomics for the sums over channels.
        assert p.channel_blocks == 1
        # Without vectors one kernel serves all, so the loop is always there.
        assert p.loop_d == (channels > p.block_d or p.vec == 1)


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float64, 2), (torch.float32, 4), (torch.float16, 8), (torch.bfloat16, 8)]
)
def test_vector_width(dtype: torch.dtype, width: int):
    assert plan(dtype=dtype).vec == width
    assert plan(dtype=dtype, aligned=False).vec == 1
    odd = replace(SMALL, channels=32 + width // 2)
    assert plan(odd, dtype=dtype).vec == 1
    batch, pixel, head, one = strides(SMALL)
    for shifted in ((batch + 1, pixel, head, one), (batch, pixel + 1, head, one), (batch, pixel, head + 1, one)):
        assert plan(dtype=dtype, at=shifted).vec == 1
    assert plan(dtype=dtype, at=(0, 0, 0, one)).vec == width


def test_strides_of_single_entries_do_not_matter():
    single = replace(SMALL, batch=1, heads=1)
    assert plan(single, at=(1, 32, 3, 1)).vec == 4


@pytest.mark.parametrize(("pixels", "wide"), [(2**23 - 1, False), (2**23, True), (2**23 + 1, True)])
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_int64_offsets_from_two_to_the_31_on(pixels: int, wide: bool, kernel: str):
    assert plan(replace(SMALL, pixels=pixels, batch=1), kernel=kernel).wide == wide


def test_int64_offsets_of_expanded_and_gapped_values():
    many = replace(SMALL, pixels=2**31, heads=1, channels=1)
    assert plan(many, at=(0, 0, 0, 1)).wide
    assert plan(at=(2**40, 256, 32, 1)).wide is False
    assert plan(at=(2**40, 2**30, 32, 1)).wide
    # The value itself is small because it is expanded, but its gradient is not.
    broad = replace(SMALL, pixels=2**24)
    assert plan(broad, at=(0, 0, 0, 1)).wide is False
    assert plan(broad, at=(0, 0, 0, 1), kernel="backward").wide


def test_more_than_65535_heads():
    assert plan(replace(SMALL, batch=10923, heads=6)).programs == 10923 * 6 * 3


def test_too_many_programs():
    most = replace(SMALL, batch=1, heads=2**16, queries=2**16 - 2)
    assert plan(most).programs < 2**31
    with pytest.raises(ValueError, match=r"value and sampling_locations: .* split the call"):
        plan(replace(most, queries=2**16))


@pytest.mark.parametrize(
    ("change", "name"),
    [({"queries": 2**31 - 1}, "Q"), ({"levels": 2**16, "points": 2**15}, r"L\*K"), ({"channels": 2**31 - 1}, "D")],
)
def test_axis_too_long_for_an_index(change: dict[str, int], name: str):
    with pytest.raises(ValueError, match=f"{name} must be at most"):
        plan(replace(SMALL, batch=1, heads=1, **change), kernel="backward")


def test_buffers():
    assert accumulator_dtype(torch.float16, "float32", "cuda") == torch.float32
    assert accumulator_dtype(torch.float64, "float32", "cuda") == torch.float64
    assert accumulator_dtype(torch.bfloat16, "native", "cuda") == torch.bfloat16
    assert accumulator_dtype(torch.float64, "native", "interpreter") == torch.float64
    with pytest.raises(NotImplementedError, match=r"accumulate=.*bfloat16"):
        accumulator_dtype(torch.bfloat16, "native", "interpreter")
    assert buffer_dtype(torch.bfloat16, "interpreter") == torch.float32
    assert buffer_dtype(torch.bfloat16, "cuda") == torch.bfloat16
    assert buffer_dtype(torch.float16, "interpreter") == torch.float16


@pytest.mark.parametrize("architecture", ["cuda", "interpreter"])
def test_block_edges_are_the_blocks_of_all_plans(architecture):
    plans = [
        plan(replace(SMALL, channels=channels), kernel=kernel, dtype=dtype, architecture=architecture)
        for channels in (31, 32, 63, 64)
        for kernel in ("forward", "backward")
        for dtype in (torch.float64, torch.float32)
    ]
    edges = block_edges(architecture)
    assert edges["queries"] == tuple(sorted({p.block_q for p in plans}))
    assert edges["samples"] == tuple(sorted({p.block_p for p in plans}))
    assert edges["channels"] == tuple(sorted({p.block_d for p in plans}))


def test_empty():
    assert not SMALL.empty
    for name in ("batch", "queries", "levels", "points", "heads", "channels"):
        assert replace(SMALL, **{name: 0}).empty
