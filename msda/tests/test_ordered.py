"""determinism="run_to_run": the same bits in any order of programs, within the error bounds, on every kind of call."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

import msda
from msda import launch, ordered, ordered_plan
from msda.ordered_plan import INDEX_LIMIT, WORKSPACE_LIMIT, make_ordered_plan, workspace_bytes
from msda.plan import Problem
from msda.tests.calls import DEVICE, Call, make_call
from reference.expect import expect
from reference.inputs import Inputs

HALF = (torch.float16, torch.bfloat16)
CELLS = [(torch.float64, torch.float64), (torch.float32, torch.float32)]
CELLS += [(half, samples) for half in HALF for samples in (half, torch.float32)]
ENCODER = Problem(batch=2, pixels=22223, heads=8, channels=32, queries=22223, levels=4, points=4)


def run(call: Call, **modes: str) -> tuple[Tensor, ...]:
    return call.run(determinism="run_to_run", **modes)


def same_bits(a: Tensor, b: Tensor) -> bool:
    # As bytes: 0 and -0 differ, and a NaN equals itself.
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def assert_within_bounds(call: Call, results: tuple[Tensor, ...]) -> None:
    inputs = Inputs(
        value=call.value,
        levels=tuple((int(height), int(width)) for height, width in call.shapes.tolist()),
        locations=call.locations,
        weights=call.weights,
        grad_output=call.grad,
    )
    expected = expect(inputs)
    bounded = (
        expected.out,
        expected.grad_value,
        expected.grad_sampling_locations,
        expected.grad_attention_weights,
    )
    for bound, result, operand in zip(
        bounded, results, (call.value, call.value, call.locations, call.weights), strict=True
    ):
        assert bound is not None
        assert result.dtype == operand.dtype
        assert bound.ratio(result).max() <= 1


def at_one_point(call: Call, x: float, y: float) -> Call:
    return replace(call, locations=torch.tensor([x, y], device=DEVICE, dtype=call.locations.dtype) + 0 * call.locations)


@pytest.mark.parametrize("channels", [1, 3, 71, 130])
def test_channels(channels: int):
    call = make_call([(3, 5), (1, 2)], batch=1, heads=1, channels=channels)
    assert_within_bounds(call, run(call))


@pytest.mark.parametrize(
    ("levels", "points"), [([(1, 1)], 1), ([(1, 1), (1, 1), (2, 1)], 3), ([(1, 7), (5, 1)], 2), ([(2, 3)] * 5, 5)]
)
def test_levels_and_points(levels: list[tuple[int, int]], points: int):
    call = make_call(levels, batch=1, queries=9, points=points)
    assert_within_bounds(call, run(call))


@pytest.mark.parametrize(("value", "samples"), CELLS)
def test_dtypes(value: torch.dtype, samples: torch.dtype):
    call = make_call([(3, 5), (4, 2)], batch=2, heads=1, channels=8, value=value, samples=samples)
    assert_within_bounds(call, run(call))


@pytest.mark.parametrize("place", [(0.5, 0.5), (0.0, 0.0), (1.0, 0.3), (-0.05, 1.05)])
def test_collisions(place: tuple[float, float]):
    call = at_one_point(make_call([(3, 4), (1, 1)], batch=1, heads=2, queries=33, channels=4), *place)
    assert_within_bounds(call, run(call))


def test_collisions_of_thousands():
    # On the CPU one level of one head is enough for lists and runs of every kind.
    queries = 400 if DEVICE == "cpu" else 9000
    call = make_call([(2, 2)], batch=1, heads=1, queries=queries, points=1, channels=4)
    assert_within_bounds(call, run(call))


@pytest.mark.parametrize("half", HALF)
def test_native_accumulates_in_float32_and_rounds_once(half: torch.dtype):
    call = make_call([(3, 5)], batch=1, channels=8, value=half)
    assert all(same_bits(a, b) for a, b in zip(run(call, accumulate="native"), run(call), strict=True))


@pytest.mark.skipif(DEVICE != "cpu", reason="the order of programs can be chosen in the interpreter only")
@pytest.mark.parametrize("stride", [-1, 3, 7])
def test_order_of_programs_does_not_matter(stride: int, monkeypatch):
    call = make_call([(3, 4), (1, 1)], batch=2, queries=40, channels=4, points=1)
    straight = run(call)
    real = interpreter.interpreter_builder.set_grid_idx
    visited = set()

    def permuted(x: int, y: int, z: int) -> None:
        programs = interpreter.interpreter_builder.grid_dim[0]
        step = stride if math.gcd(stride, programs) == 1 else -1
        visited.add((programs, x * step % programs))
        real(x * step % programs, y, z)

    monkeypatch.setattr(interpreter.interpreter_builder, "set_grid_idx", permuted)
    assert all(same_bits(a, b) for a, b in zip(run(call), straight, strict=True))
    most = max(programs for programs, _ in visited)
    assert most > 8
    assert {x for programs, x in visited if programs == most} == set(range(most))


def test_repeated_runs_are_the_same():
    call = make_call([(3, 4), (1, 1)], batch=2, queries=40, channels=4, points=1)
    first = run(call)
    for _ in range(2 if DEVICE == "cpu" else 200):
        assert all(same_bits(a, b) for a, b in zip(run(call), first, strict=True))


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_algorithms(warn_only: bool):
    call = make_call([(3, 5), (1, 2)], channels=8)
    expected = run(call)
    leaves = [t.detach().requires_grad_() for t in (call.value, call.locations, call.weights)]
    out = msda.multi_scale_deformable_attention(leaves[0], call.shapes, call.starts, *leaves[1:])
    try:
        # Between the passes: it is the backward that asks.
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        grads = torch.autograd.grad(out, leaves, call.grad)
        again = call.run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(same_bits(a, b) for a, b in zip((out.detach(), *grads), expected, strict=True))
    assert all(same_bits(a, b) for a, b in zip(again, expected, strict=True))


def expanded(t: Tensor) -> Tensor:
    return t[:1].expand_as(t)


def offset(t: Tensor) -> Tensor:
    flat = torch.full((t.numel() + 1,), torch.nan, dtype=t.dtype, device=t.device)
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


def channels_first(t: Tensor) -> Tensor:
    return t.transpose(1, -1).contiguous().transpose(1, -1)


@pytest.mark.parametrize("layout", [expanded, offset, channels_first])
@pytest.mark.parametrize("operand", ["value", "locations", "weights", "grad"])
def test_layout_does_not_change_results(operand: str, layout):
    call = make_call([(3, 5), (1, 2)], heads=1, channels=8)
    changed = replace(call, **{operand: layout(getattr(call, operand))})
    plain = replace(changed, **{operand: getattr(changed, operand).contiguous().clone()})
    got = run(changed)
    if DEVICE == "cpu":
        assert all(same_bits(a, b) for a, b in zip(got, run(plain), strict=True))
    assert_within_bounds(plain, got)


@pytest.mark.parametrize("size", ["batch", "queries", "heads", "channels", "points"])
def test_empty(size: str, monkeypatch):
    monkeypatch.setattr(launch, "start", None)
    sizes: dict[str, Any] = {size: 0}
    call = make_call([(3, 5), (1, 2)], **sizes)
    for result, operand in zip(run(call), (call.grad, call.value, call.locations, call.weights), strict=True):
        assert torch.equal(result, torch.zeros_like(operand))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3.0e38, -2.0])
def test_skipped_samples_contribute_nothing(bad: float):
    call = make_call([(3, 5), (1, 2)], channels=8)
    skipped = torch.zeros(call.weights.shape, dtype=torch.bool, device=DEVICE)
    skipped[0, 1, 0, 1, 0] = skipped[1, 2, 1, 0, 1] = True
    locations, weights = call.locations.clone(), call.weights.clone()
    locations[..., 0][skipped] = bad
    weights[skipped] = torch.nan
    _, grad_value, grad_locations, grad_weights = run(replace(call, locations=locations, weights=weights))
    clean = run(replace(call, locations=locations, weights=call.weights.masked_fill(skipped, 0.0)))
    assert same_bits(grad_value, clean[1])
    assert not grad_locations[skipped].any()
    assert not grad_weights[skipped].any()


def test_all_samples_skipped():
    call = at_one_point(make_call([(3, 5), (1, 2)]), 7.0, 7.0)
    assert not run(call)[1].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("corner", [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.4)])
def test_other_side_of_the_map_is_not_touched(bad: float, corner: tuple[float, float]):
    # Half a pixel outside, and no weight is 0: on the torus of cells its other corners are pixels of the opposite edge.
    call = at_one_point(make_call([(3, 4)], batch=1, queries=2, heads=1, points=1, channels=3), *corner)
    grad = torch.full_like(call.grad, bad)
    grad_value = run(replace(call, grad=grad))[1]
    reached = run(replace(call, grad=torch.ones_like(call.grad), weights=torch.ones_like(call.weights)))[1] != 0
    assert torch.equal(grad_value.isfinite(), ~reached)
    assert not grad_value[~reached].any()


def test_only_the_gradient_of_value():
    call = make_call([(3, 5), (1, 2)], heads=1, channels=8)
    value = call.value.detach().requires_grad_()
    out = msda.multi_scale_deformable_attention(
        value, call.shapes, call.starts, call.locations, call.weights, determinism="run_to_run"
    )
    (grad_value,) = torch.autograd.grad(out, value, call.grad)
    assert same_bits(grad_value, run(call)[1])


def test_batch_in_parts(monkeypatch):
    call = make_call([(3, 5), (1, 2)], batch=3, heads=1, channels=8)
    whole = run(call)
    monkeypatch.setattr(ordered_plan, "WORKSPACE_LIMIT", 1)
    make_ordered_plan.cache_clear()
    parts = run(call)
    make_ordered_plan.cache_clear()
    assert all(same_bits(a, b) for a, b in zip(parts, whole, strict=True))


def test_workspace(monkeypatch):
    allocated = []
    real_empty, real_zeros = ordered._uninitialised, torch.zeros

    def empty(shape, dtype, device):
        allocated.append(math.prod(shape) * dtype.itemsize)
        return real_empty(shape, dtype, device)

    def zeros(*args, **kwargs):
        result = real_zeros(*args, **kwargs)
        allocated.append(2 * result.nbytes)  # the counts, and their sums
        return result

    call = make_call([(3, 5), (1, 2)], batch=3, channels=5, points=3)
    problem = Problem(batch=3, pixels=17, heads=2, channels=5, queries=3, levels=2, points=3)
    run_length = (
        1 << make_ordered_plan(problem, torch.float32, aligned=False, architecture=launch.architecture()).run_bits
    )
    monkeypatch.setattr(ordered, "_uninitialised", empty)
    monkeypatch.setattr(torch, "zeros", zeros)
    run(call)
    results = sum(t.nbytes for t in (call.value, call.locations, call.weights))
    # One count more than there are counters, and its sum.
    assert sum(allocated) - results == 3 * workspace_bytes(problem, run_length, torch.float32) + 8


def test_plan_of_large_calls():
    def plan(problem: Problem):
        return make_ordered_plan(problem, torch.float32, aligned=True, architecture="cuda")

    assert plan(ENCODER).entries == 2
    entry = workspace_bytes(ENCODER, 64, torch.float32)
    assert plan(replace(ENCODER, batch=50)).entries == WORKSPACE_LIMIT // entry
    assert plan(replace(ENCODER, pixels=2**24)).entries == 1
    assert plan(replace(ENCODER, batch=2**20, pixels=1, heads=1, queries=1, channels=1)).entries <= INDEX_LIMIT // 16
    with pytest.raises(ValueError, match=r'determinism="run_to_run": .*queries=16777216.* split the call'):
        plan(replace(ENCODER, queries=2**24))
    with pytest.raises(ValueError, match="indices"):
        plan(replace(ENCODER, channels=2**27))


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 5, 7, 8, 1000003, 2**30, 2**31 - 1])
def test_division_by_multiplication(divisor: int):
    factor, shift = ordered._divisor(divisor)
    assert 0 < factor < 2**32
    assert shift < 32
    edges = [k * divisor + d for k in (1, 2, (2**31 - 2) // divisor) for d in (-1, 0, 1)]
    for n in (0, 1, 2**31 - 1, *(e for e in edges if 0 <= e < 2**31)):
        assert ((2 * n * factor) >> 32) >> shift == n // divisor


def test_gradcheck():
    call = make_call([(3, 5), (2, 2)], batch=1, queries=2, heads=1, channels=2, points=1, value=torch.float64)

    def f(value, locations, weights):
        return msda.multi_scale_deformable_attention(
            value, call.shapes, call.starts, locations, weights, determinism="run_to_run"
        )

    leaves = [t.detach().requires_grad_() for t in (call.value, call.locations, call.weights)]
    # The same bits in every run: nothing is allowed for non-determinism.
    assert torch.autograd.gradcheck(f, leaves, nondet_tol=0.0)
