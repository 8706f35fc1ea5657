"""Bad calls: each is refused before any launch, by an error that names the argument."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import msda
from msda import arguments, launch
from msda.tests.calls import make_call

Call = dict[str, Any]
NAMES = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights")


def good_call() -> Call:
    call = make_call([(3, 5), (1, 2)])
    tensors = (call.value, call.shapes, call.starts, call.locations, call.weights)
    return dict(zip(NAMES, tensors, strict=True)) | {"accumulate": "float32", "determinism": None}


def constant(value: object) -> Callable[[Any], Any]:
    return lambda _: value


def table(rows: list[tuple[int, int]]) -> Callable[[Any], Any]:
    return lambda t: torch.tensor(rows, dtype=t.dtype, device=t.device)


def meta(t: torch.Tensor) -> torch.Tensor:
    return t.to("meta")


VALUE, SHAPES, STARTS, LOCATIONS, WEIGHTS = NAMES
# The argument that is spoilt, what is wrong, how to make it, the exception, and what the message says after its name.
BAD_CALLS: list[tuple[str, str, Callable[[Any], Any], type[Exception], str]] = [
    (VALUE, "list", lambda t: t.tolist(), TypeError, "must be a tensor .* got list"),
    (VALUE, "sparse", lambda t: t.to_sparse(), TypeError, "must be a dense tensor"),
    (VALUE, "rank 3", lambda t: t[0], ValueError, r"must have shape \(B, S, M, D\), got \(17, 2, 4\)"),
    (VALUE, "integer", lambda t: t.int(), TypeError, "must be float64, .* got torch.int32"),
    (VALUE, "complex", lambda t: t.cfloat(), TypeError, "must be float64, .* got torch.complex64"),
    (SHAPES, "list", lambda t: t.tolist(), TypeError, "must be a tensor"),
    (SHAPES, "rank 1", lambda t: t[0], ValueError, r"must have shape \(L, 2\), got \(2,\)"),
    (SHAPES, "three columns", lambda t: t[:, [0, 1, 1]], ValueError, r"must .* = \(2, 2\), got \(2, 3\)"),
    (SHAPES, "a level less", lambda t: t[:1], ValueError, r"must .* = \(2, 2\), got \(1, 2\)"),
    (SHAPES, "floating", lambda t: t.float(), TypeError, "must have an integer dtype, got torch.float32"),
    (SHAPES, "height 0", table([(3, 5), (0, 2)]), ValueError, r"\[1\] must .* got \(0, 2\)"),
    (SHAPES, "width -1", table([(3, -1), (1, 2)]), ValueError, r"\[0\] must .* got \(3, -1\)"),
    (SHAPES, "a pixel less", table([(3, 5), (1, 1)]), ValueError, "must add up to S = 17 .* which is 16 pixels"),
    (SHAPES, "more pixels", table([(3, 5), (2, 2)]), ValueError, "must add up to S = 17 .* which is 19 pixels"),
    (SHAPES, "other device", meta, ValueError, "must be on .* got meta"),
    (STARTS, "number", constant(0), TypeError, "must be a tensor .* got int"),
    (STARTS, "rank 2", lambda t: t[None], ValueError, r"must have shape \(L,\), got \(1, 2\)"),
    (STARTS, "a level less", lambda t: t[:1], ValueError, r"must .* = \(2,\), got \(1,\)"),
    (STARTS, "boolean", lambda t: t.bool(), TypeError, "must have an integer dtype, got torch.bool"),
    (STARTS, "off by one", lambda t: t + t.new_tensor([0, 1]), ValueError, r"\[1\] must be 15, .* got 16"),
    (STARTS, "not from 0", lambda t: t + 1, ValueError, r"\[0\] must be 0, .* got 1"),
    (LOCATIONS, "None", constant(None), TypeError, "must be a tensor .* got NoneType"),
    (LOCATIONS, "rank 5", lambda t: t[0], ValueError, r"must have shape \(B, Q, M, L, K, 2\), got \(3, 2, 2, 2, 2\)"),
    (LOCATIONS, "a batch less", lambda t: t[:1], ValueError, r"must .* = \(2, 3, .* got \(1, 3, .*value is \(2, 17"),
    (
        LOCATIONS,
        "a head less",
        lambda t: t[:, :, :1],
        ValueError,
        r"must .* got \(2, 3, 1, .*value is \(2, 17, 2, 4\)",
    ),
    (LOCATIONS, "three coordinates", lambda t: t[..., [0, 1, 1]], ValueError, r"must .* got \(2, 3, 2, 2, 2, 3\)"),
    (LOCATIONS, "half", lambda t: t.half(), TypeError, "must be torch.float32 when value is torch.float32, got .*16"),
    (LOCATIONS, "other device", meta, ValueError, "must be on .* got meta"),
    (WEIGHTS, "None", constant(None), TypeError, "must be a tensor"),
    (WEIGHTS, "rank 6", lambda t: t[None], ValueError, r"must have shape \(B, Q, M, L, K\), got \(1, 2,"),
    (WEIGHTS, "a batch less", lambda t: t[:1], ValueError, r"must .* got \(1, 3, 2, 2, 2\)"),
    (WEIGHTS, "a query less", lambda t: t[:, :2], ValueError, r"must .* got \(2, 2, 2, 2, 2\)"),
    (WEIGHTS, "a head less", lambda t: t[:, :, :1], ValueError, r"must .* got \(2, 3, 1, 2, 2\)"),
    (WEIGHTS, "a level less", lambda t: t[:, :, :, :1], ValueError, r"must .* got \(2, 3, 2, 1, 2\)"),
    (WEIGHTS, "a point less", lambda t: t[..., :1], ValueError, r"must .* got \(2, 3, 2, 2, 1\)"),
    (WEIGHTS, "double", lambda t: t.double(), TypeError, "must be torch.float32 when value is torch.float32, got .*64"),
    (WEIGHTS, "other device", meta, ValueError, "must be on .* got meta"),
    ("accumulate", "dtype", constant(torch.float32), ValueError, "must be one of .* got torch.float32"),
    ("accumulate", "unknown", constant("float16"), ValueError, "must be one of .* got 'float16'"),
    ("determinism", "unknown", constant("yes"), ValueError, "must be one of .* got 'yes'"),
    ("determinism", "more than there is", constant("gpu_to_gpu"), ValueError, "must be one of .* got 'gpu_to_gpu'"),
]


@pytest.fixture
def launched(monkeypatch) -> list[object]:
    """The kernels that would have been launched."""
    seen: list[object] = []
    monkeypatch.setattr(launch, "launch", lambda kernel, *_args: seen.append(kernel))
    return seen


def call_operator(call: Call) -> torch.Tensor:
    return msda.multi_scale_deformable_attention(
        *(call[name] for name in NAMES), accumulate=call["accumulate"], determinism=call["determinism"]
    )


@pytest.mark.parametrize(
    ("name", "spoil", "error", "message"),
    [(name, spoil, error, message) for name, _, spoil, error, message in BAD_CALLS],
    ids=[f"{name}: {what}" for name, what, *_ in BAD_CALLS],
)
def test_bad_call_is_refused(name: str, spoil, error: type[Exception], message: str, launched: list[object]):
    good = good_call()
    before = {operand: good[operand].clone() for operand in NAMES}
    with pytest.raises(error, match=f"^{name}.*{message}"):
        call_operator(good | {name: spoil(good[name])})
    assert launched == []
    assert all(torch.equal(good[operand], before[operand]) for operand in NAMES)


def test_two_half_dtypes_are_refused(launched: list[object]):
    good = good_call()
    spoilt = good | {VALUE: good[VALUE].half(), WEIGHTS: good[WEIGHTS].bfloat16()}
    with pytest.raises(
        TypeError, match=r"^attention_weights must be torch.float16 or torch.float32 .* got torch.bfloat16"
    ):
        call_operator(spoilt)
    with pytest.raises(TypeError, match=r"^sampling_locations must be torch.float64 when value is torch.float64"):
        call_operator(good | {VALUE: good[VALUE].double()})
    assert launched == []


def test_good_call_is_accepted():
    good = good_call()
    assert torch.equal(call_operator(good), call_operator(good | {"determinism": "not_guaranteed"}))


def test_cpu_needs_the_interpreter():
    with pytest.raises(ValueError, match=r"value must be on a CUDA device, got cpu.*TRITON_INTERPRET=1"):
        arguments.check_device(torch.device("cpu"), "cuda")
    with pytest.raises(ValueError, match=r"got meta$"):
        arguments.check_device(torch.device("meta"), "cuda")
    arguments.check_device(torch.device("cuda", 1), "cuda")


def test_meta_tensors_get_a_result_without_a_launch(monkeypatch):
    monkeypatch.setattr(launch, "launch", None)
    good = good_call()
    out = call_operator(good | {name: meta(good[name]) for name in NAMES})
    assert out.shape == (2, 3, 2 * 4)
    assert out.device.type == "meta"


@pytest.mark.parametrize(
    ("numpy", "triton", "works"),
    [("2.3.5", "3.6.0", True), ("2.4.0rc1", "3.6.0", False), ("3.0", "3.8.1", False), ("2.4.1", "3.9.0", True)],
)
def test_interpreter_and_numpy_versions(numpy: str, triton: str, works: bool):
    problem = arguments.interpreter_problem(numpy, triton)
    assert (problem is None) == works
    assert problem is None or (numpy in problem and triton in problem)


def test_level_table_is_trusted_during_graph_capture(monkeypatch):
    class OnDevice:
        is_cuda = True
        device = "cuda:0"

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    table: Any = OnDevice()
    arguments.check_level_table(table, table, table)
    host: Any = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="spatial_shapes must be on cuda:0 while a CUDA graph is captured, got cpu"):
        arguments.check_level_table(host, table, table)
