"""The operator on small calls: layouts, dtypes, empties, non-finite samples, autograd, compile and vmap."""

import importlib
import shutil
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import msda
from msda import kernels, launch, op
from msda.arguments import problem_of
from msda.plan import make_plan
from msda.tests.calls import DEVICE, Call, assert_close, make_call

HALF = (torch.float16, torch.bfloat16)
CELLS = [(torch.float64, torch.float64), (torch.float32, torch.float32)]
CELLS += [(half, samples) for half in HALF for samples in (half, torch.float32)]


@pytest.fixture
def launches(monkeypatch) -> list[object]:
    """The kernels launched during a test."""
    seen = []
    real = launch.launch

    def counting(kernel, *args):
        seen.append(kernel)
        real(kernel, *args)

    monkeypatch.setattr(launch, "launch", counting)
    return seen


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("channels", [1, 3, 32, 71, 130])
def test_channels(channels: int):
    call = make_call([(3, 5), (1, 2)], batch=1, channels=channels)
    assert_close(call, call.run())


@pytest.mark.parametrize(("levels", "points"), [([(4, 4)], 1), ([(3, 5), (1, 1), (2, 7)], 3), ([(2, 3)] * 5, 5)])
def test_levels_and_points(levels: list[tuple[int, int]], points: int):
    call = make_call(levels, queries=9, heads=1, points=points)
    assert_close(call, call.run())


@pytest.mark.parametrize(("value", "samples"), CELLS)
def test_dtypes(value: torch.dtype, samples: torch.dtype):
    call = make_call([(3, 5), (4, 2)], channels=8, value=value, samples=samples)
    assert_close(call, call.run())


@pytest.mark.parametrize("half", HALF)
def test_native_accumulation(half: torch.dtype):
    call = make_call([(8, 8)], batch=1, queries=2, points=1, channels=8, value=half)
    if half == torch.bfloat16 and DEVICE == "cpu":
        with pytest.raises(NotImplementedError, match="bfloat16"):
            call.run(accumulate="native")
    else:
        assert_close(call, call.run(accumulate="native"))


def expanded(t: Tensor) -> Tensor:
    return t[:1].expand_as(t)


def gapped(t: Tensor) -> Tensor:
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 3), torch.nan, dtype=t.dtype, device=t.device)
    wide[..., 3 : 3 + t.shape[-1]] = t
    return wide[..., 3 : 3 + t.shape[-1]]


def offset(t: Tensor) -> Tensor:
    flat = torch.full((t.numel() + 1,), torch.nan, dtype=t.dtype, device=t.device)
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


def transposed(t: Tensor) -> Tensor:
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def channels_first(t: Tensor) -> Tensor:
    return t.transpose(1, -1).contiguous().transpose(1, -1)


@pytest.mark.parametrize("layout", [expanded, gapped, offset, transposed, channels_first])
@pytest.mark.parametrize("operand", ["value", "locations", "weights", "grad"])
def test_layout_does_not_change_results(operand: str, layout):
    call = make_call([(3, 5), (1, 2)], channels=8)
    changed = replace(call, **{operand: layout(getattr(call, operand))})
    plain = replace(changed, **{operand: getattr(changed, operand).contiguous().clone()})
    got = changed.run()
    if DEVICE == "cpu":
        assert same(got, plain.run())
    assert_close(plain, got)


def test_pixels_expanded_along_s():
    call = make_call([(3, 5), (1, 2)], channels=8)
    call = replace(call, value=call.value[:, :1].expand_as(call.value))
    assert_close(call, call.run())


@pytest.mark.skipif(DEVICE != "cpu", reason="takes 4 GiB of address space, of which the CPU only touches two pages")
def test_offset_past_two_to_the_31():
    call = make_call([(1, 2)], batch=1, heads=1, channels=8, value=torch.float16)
    far = torch.empty(2**31 + 8, dtype=torch.float16).as_strided((1, 2, 1, 8), (0, 2**31, 0, 1))
    far.copy_(call.value)
    assert same(replace(call, value=far).run(), call.run())


@pytest.mark.parametrize("change", [{"wide": True}, {"vec": 1}])
def test_plan_variants_agree(change: dict[str, Any], monkeypatch):
    call = make_call([(3, 5), (1, 2)], channels=40)
    expected = call.run()
    monkeypatch.setattr(launch, "make_plan", lambda *args, **kwargs: replace(make_plan(*args, **kwargs), **change))
    assert_close(call, call.run())
    assert torch.equal(call.run()[0], expected[0])


@pytest.mark.parametrize("size", ["batch", "queries", "heads", "channels", "points"])
def test_empty(size: str, launches: list[object]):
    sizes: dict[str, Any] = {size: 0}
    call = make_call([(3, 5), (1, 2)], **sizes)
    results = call.run()
    for result, operand in zip(results, (call.grad, call.value, call.locations, call.weights), strict=True):
        assert torch.equal(result, torch.zeros_like(operand))
    assert launches == []


def test_no_levels(launches: list[object]):
    call = make_call([])
    assert same(call.run(), tuple(torch.zeros_like(t) for t in (call.grad, call.value, call.locations, call.weights)))
    assert launches == []


def test_starts_may_be_derived_and_tables_of_any_integer_dtype():
    call = make_call([(3, 5), (1, 2)])
    expected = call.run()
    assert same(replace(call, starts=None).run(), expected) or DEVICE == "cuda"
    starts = torch.tensor([0, 15])
    narrow = replace(call, shapes=call.shapes.int(), starts=starts.to(DEVICE, torch.int16))
    assert torch.equal(narrow.run()[0], expected[0])
    on_host = replace(call, shapes=call.shapes.cpu(), starts=starts)
    assert torch.equal(on_host.run()[0], expected[0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3.0e38, -2.0])
def test_skipped_samples_contribute_nothing(bad: float):
    call = make_call([(3, 5), (1, 2)], channels=8)
    skipped = torch.zeros(call.weights.shape, dtype=torch.bool, device=DEVICE)
    skipped[0, 1, 0, 1, 0] = skipped[1, 2, 1, 0, 1] = True
    locations, weights = call.locations.clone(), call.weights.clone()
    locations[..., 0][skipped] = bad
    weights[skipped] = torch.nan
    out, grad_value, grad_locations, grad_weights = replace(call, locations=locations, weights=weights).run()
    clean = replace(call, weights=call.weights.masked_fill(skipped, 0.0)).run()
    assert torch.equal(out, clean[0])
    assert torch.equal(grad_value, clean[1]) or DEVICE == "cuda"
    assert not grad_locations[skipped].any()
    assert not grad_weights[skipped].any()
    assert torch.equal(grad_locations[~skipped], clean[2][~skipped])


def test_pixels_and_gradients_that_are_not_used_may_be_anything():
    call = make_call([(2, 2)], batch=1, queries=1, heads=1, points=1, channels=3)
    locations = torch.full_like(call.locations, 0.0)  # pixel (-0.5, -0.5): one corner of four is on the map
    value = torch.full_like(call.value, torch.nan)
    value[0, 0] = 1.0
    out, grad_value, _, _ = replace(call, locations=locations, value=value).run()
    assert torch.equal(out[0, 0], call.weights.flatten().expand(3) * 0.25)
    assert torch.equal(grad_value[0, 0, 0], call.grad[0, 0] * call.weights.flatten() * 0.25)
    infinite = replace(
        call, locations=locations, value=torch.ones_like(value), grad=torch.full_like(call.grad, torch.inf)
    )
    assert infinite.run()[3].item() == torch.inf


@pytest.mark.parametrize("needs", list(product([False, True], repeat=3))[1:])
def test_gradients_only_where_needed(needs: tuple[bool, ...], launches: list[object]):
    call = make_call([(3, 5), (1, 2)], batch=1)
    expected = dict(zip("vlw", call.run()[1:], strict=True))
    launches.clear()
    operands = [t.detach() for t in (call.value, call.locations, call.weights)]
    leaves = {}
    for name, operand, need in zip("vlw", operands, needs, strict=True):
        if need:
            leaves[name] = operand.requires_grad_()
    out = msda.multi_scale_deformable_attention(operands[0], call.shapes, call.starts, *operands[1:])
    grads = torch.autograd.grad(out, list(leaves.values()), call.grad)
    for name, grad in zip(leaves, grads, strict=True):
        assert torch.equal(grad, expected[name]) or (DEVICE == "cuda" and name == "v")
    assert len(launches) == 2


def test_no_gradient_needed(launches: list[object]):
    call = make_call([(3, 5)])
    out = msda.multi_scale_deformable_attention(call.value, call.shapes, call.starts, call.locations, call.weights)
    assert not out.requires_grad
    assert len(launches) == 1


def leaves_of(call: Call) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in (call.value, call.locations, call.weights)]


def test_second_derivative_is_refused():
    call = make_call([(3, 5)])
    value, locations, weights = leaves_of(call)
    out = msda.multi_scale_deformable_attention(value, call.shapes, call.starts, locations, weights)
    (grad,) = torch.autograd.grad(out.sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()


def test_gradcheck():
    call = make_call([(3, 5), (2, 2)], batch=1, queries=2, heads=1, channels=2, value=torch.float64)

    def f(value, locations, weights):
        return msda.multi_scale_deformable_attention(value, call.shapes, call.starts, locations, weights)

    # Atomics may add in any order: one rounding of a sum of a few terms of size 10.
    assert torch.autograd.gradcheck(f, leaves_of(call), nondet_tol=1e-13)


def test_explicit_atomics_are_refused_where_pytorch_refuses():
    call = make_call([(3, 5)])
    value, locations, weights = leaves_of(call)

    def f(value):
        return msda.multi_scale_deformable_attention(
            value, call.shapes, call.starts, locations, weights, determinism="not_guaranteed"
        )

    out = f(value)
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError, match=r"use_deterministic_algorithms\(True\)"):
            out.sum().backward(retain_graph=True)
        assert value.grad is None
        f(value.detach()).sum().backward()
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="grad_value"):
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert value.grad is not None


def test_opcheck():
    call = make_call([(3, 5), (1, 2)])
    value, locations, weights = leaves_of(call)
    table = (call.shapes, call.starts)
    torch.library.opcheck(op._forward, (value, *table, locations, weights, "float32", None))
    plain = (call.grad, call.value, *table, call.locations, call.weights, "float32")
    for determinism, need_value, need_samples in (
        (None, True, True),
        ("not_guaranteed", True, False),
        (None, False, True),
        ("run_to_run", True, True),
    ):
        torch.library.opcheck(op._backward, (*plain, determinism, need_value, need_samples))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_whole_graph(dynamic: bool):
    call = make_call([(3, 5), (1, 2)])

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
    def f(value, locations, weights):
        return msda.multi_scale_deformable_attention(value * 1.0, call.shapes, None, locations, weights)

    value, locations, weights = leaves_of(call)
    grads = torch.autograd.grad(f(value, locations, weights), [value, locations, weights], call.grad)
    assert_close(call, (call.run()[0], *grads))


def test_vmap_over_everything():
    calls = [make_call([(3, 5), (1, 2)], seed=seed) for seed in range(3)]
    leaves = [
        torch.stack([getattr(call, name) for call in calls], dim=1).requires_grad_()
        for name in ("value", "locations", "weights")
    ]

    def f(value, locations, weights):
        return msda.multi_scale_deformable_attention(value, calls[0].shapes, None, locations, weights)

    out = torch.func.vmap(f, in_dims=1, out_dims=1)(*leaves)
    grads = torch.autograd.grad(out, leaves, torch.stack([call.grad for call in calls], dim=1))
    for index, call in enumerate(calls):
        assert_close(call, tuple(result.detach()[:, index] for result in (out, *grads)))


def test_batched_gradients():
    call = make_call([(3, 5), (1, 2)])
    value, locations, weights = leaves_of(call)
    out = msda.multi_scale_deformable_attention(value, call.shapes, call.starts, locations, weights)
    both = torch.stack([call.grad, -2 * call.grad])
    # The locations are left out: a gradient that is not wanted has no batch axis.
    grads = torch.autograd.grad(out, [value, weights], both, is_grads_batched=True)
    for index, scale in enumerate((1.0, -2.0)):
        expected = replace(call, grad=scale * call.grad).run()
        assert_close(
            replace(call, grad=scale * call.grad), (expected[0], grads[0][index], expected[2], grads[1][index])
        )


def test_vmap_over_one_operand():
    call = make_call([(3, 5), (1, 2)])
    weights = torch.stack([call.weights, 2 * call.weights], dim=-1)

    def f(weights):
        return msda.multi_scale_deformable_attention(call.value, call.shapes, call.starts, call.locations, weights)

    out = torch.func.vmap(f, in_dims=-1)(weights)
    assert torch.equal(out, torch.stack([f(call.weights), f(2 * call.weights)]))
    with pytest.raises(ValueError, match="spatial_shapes"):
        torch.func.vmap(
            lambda shapes: msda.multi_scale_deformable_attention(
                call.value, shapes, call.starts, call.locations, call.weights
            )
        )(torch.stack([call.shapes, call.shapes]))


def test_kernel_runs_on_the_device_of_its_tensors(monkeypatch):
    events: list[object] = []

    class Guard:
        def __init__(self, device: torch.device):
            self.device = device

        def __enter__(self):
            events.append(self.device)

        def __exit__(self, *_: object):
            events.append("left")

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]):
            return lambda *_args, **_constants: events.append(grid)

    call = make_call([(3, 5)])
    problem = problem_of(call.value, call.locations)
    plan = make_plan("forward", problem, call.value.dtype, call.value.stride(), aligned=True, architecture="cuda")
    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(kernels, "forward", Kernel())
    launch.launch("forward", plan, torch.device("cuda", 1))
    assert events == [torch.device("cuda", 1), (plan.programs,), "left"]


def test_copy_of_the_package_lives_beside_it(tmp_path: Path, monkeypatch):
    root = Path(msda.__file__).parent
    shutil.copytree(root, tmp_path / "msda_copy", ignore=shutil.ignore_patterns("tests", "__pycache__"))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        copy = importlib.import_module("msda_copy")
        call = make_call([(3, 5)])
        operands = (call.value, call.shapes, call.starts, call.locations, call.weights)
        out = copy.multi_scale_deformable_attention(*operands)
        assert torch.equal(out, msda.multi_scale_deformable_attention(*operands))
        assert copy.op._forward._qualname == "msda_copy::forward"
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "msda_copy"]:
            del sys.modules[name]
