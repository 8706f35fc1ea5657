"""Faults reported of other kernels that no input shows: where, how and in which order the operator is called.

Inputs that broke a kernel are case files in `properties/corpus`; `coverage.json` there says what tests each report.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import msda
from msda import kernels, launch
from msda.plan import Architecture, Pass, Plan, Problem, block_edges, make_plan
from msda.tests.calls import DEVICE, Call, assert_close, make_call

LEVELS = [(3, 5), (1, 2)]
BLOCK_LIMIT = 2**20  # elements of one Triton block


def forward(call: Call) -> Tensor:
    return msda.multi_scale_deformable_attention(call.value, call.shapes, call.starts, call.locations, call.weights)


@pytest.mark.skipif(DEVICE != "cuda", reason="captures a CUDA graph, which needs a GPU")
def test_cuda_graph_replays_with_new_operands():
    call, other = make_call(LEVELS, channels=32), make_call(LEVELS, channels=32, seed=1)
    forward(call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = forward(call)
    for name in ("value", "locations", "weights"):
        getattr(call, name).copy_(getattr(other, name))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, forward(other))


@pytest.mark.skipif(DEVICE != "cuda" or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_a_device_that_is_not_the_current_one():
    call = make_call(LEVELS)
    there = Call(**{name: getattr(call, name).to("cuda:1") for name in Call.__dataclass_fields__})
    with torch.cuda.device(0):
        results = there.run()
    assert all(result.device == torch.device("cuda", 1) for result in results)
    assert_close(call, tuple(result.to("cuda:0") for result in results))


@pytest.mark.skipif(DEVICE != "cpu", reason="takes 4 GiB of address space, of which the CPU only touches a few pages")
@pytest.mark.parametrize("axis", [0, 2])
def test_batch_entries_and_heads_two_to_the_31_apart(axis: int):
    call = make_call([(1, 2)], batch=2, heads=2, channels=8, value=torch.float16)
    strides = list(call.value.stride())
    strides[axis] = 2**31
    far = torch.empty(2**31 + 64, dtype=torch.float16).as_strided(call.value.shape, strides)
    far.copy_(call.value)
    assert all(torch.equal(one, two) for one, two in zip(replace(call, value=far).run(), call.run(), strict=True))


def plan_of(problem: Problem, kernel: Pass = "forward", strides: tuple[int, int, int, int] | None = None) -> Plan:
    row = problem.heads * problem.channels
    strides = strides or (problem.pixels * row, row, problem.channels, 1)
    return make_plan(kernel, problem, torch.float16, strides, aligned=True, architecture="cuda")


def test_more_elements_than_32_bits_count_in_all_entries_together():
    # 17 samples of 131072000 elements: each entry's offsets fit 32 bits, those of the entries have 64 of their own.
    many = Problem(batch=17, pixels=512000, heads=8, channels=32, queries=900, levels=4, points=4)
    assert many.batch * many.pixels * many.heads * many.channels > 2**31 - 1
    assert not plan_of(many).wide
    assert plan_of(many).programs == 17 * 8 * 450
    # 320 entries at a stride of 7864320.
    assert not plan_of(replace(many, batch=320, pixels=30720), strides=(7864320, 256, 32, 1)).wide
    # One entry that is too large alone.
    assert plan_of(replace(many, batch=1, pixels=17 * 512000)).wide


@pytest.mark.parametrize("batch", [65535, 65536, 65538])
def test_large_batches_are_on_the_one_axis_that_is_long_enough(batch: int):
    small = Problem(batch=batch, pixels=1, heads=1, channels=1, queries=1, levels=1, points=1)
    assert plan_of(small).programs == batch
    assert plan_of(small, "backward").programs == batch


@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("architecture", ["cuda", "interpreter"])
def test_blocks_do_not_grow_with_the_call(kernel: Pass, architecture: Architecture):
    wide = Problem(batch=1, pixels=8, heads=80, channels=16384, queries=1, levels=8, points=16)
    strides = (8 * 80 * 16384, 80 * 16384, 16384, 1)
    plan = make_plan(kernel, wide, torch.float32, strides, aligned=True, architecture=architecture)
    assert 4 * plan.block_q * plan.block_p * plan.block_d <= BLOCK_LIMIT
    assert plan.block_p in block_edges(architecture)["samples"]


def test_no_floating_scalar_reaches_a_kernel(monkeypatch):
    # Triton once passed scalars annotated as float16 and float64 wrongly.
    given: list[object] = []
    real = launch.launch

    def listening(kernel, plan, device, *args):
        given.extend(args)
        real(kernel, plan, device, *args)

    monkeypatch.setattr(launch, "launch", listening)
    make_call(LEVELS).run()
    assert {type(one) for one in given} == {Tensor, int}


def test_kernels_have_no_autotuner():
    # An autotuner runs every candidate on the live buffer, so the first call of an accumulating kernel is wrong.
    assert not hasattr(kernels.forward, "configs")
    assert not hasattr(kernels.backward, "configs")


@pytest.mark.parametrize("order", [[3, 0, 3], [0, 3, 0]], ids=["valid first", "empty first"])
def test_valid_and_empty_calls_in_turn(order: list[int], capfd):
    for queries in order:
        call = make_call(LEVELS, queries=queries)
        results = call.run()
        if queries:
            assert_close(call, results)
        else:
            operands = (call.grad, call.value, call.locations, call.weights)
            for result, operand in zip(results, operands, strict=True):
                assert torch.equal(result, torch.zeros_like(operand))
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err == ""


CELLS = [(torch.float32, torch.float32)]
CELLS += [(half, samples) for half in (torch.float16, torch.bfloat16) for samples in (half, torch.float32)]


@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("value", "samples"), CELLS)
def test_autocast_changes_nothing(value: torch.dtype, samples: torch.dtype, autocast: torch.dtype):
    call = make_call(LEVELS, batch=1, value=value, samples=samples)
    with torch.autocast(DEVICE, dtype=autocast):
        out, *_, grad_weights = call.run()
    expected = call.run()
    assert out.dtype == value
    assert torch.equal(out, expected[0])
    assert torch.equal(grad_weights, expected[3])


def test_operands_of_two_dtypes_are_refused_under_autocast_too():
    call = make_call(LEVELS)
    with torch.autocast(DEVICE, dtype=torch.bfloat16), pytest.raises(TypeError, match=r"^attention_weights"):
        forward(replace(call, weights=call.weights.half()))


def test_compile_with_shapes_that_come_from_feature_maps():
    def attend(maps: list[Tensor], locations: Tensor, weights: Tensor) -> Tensor:
        shapes = torch.tensor([one.shape[-2:] for one in maps], device=DEVICE)
        value = torch.cat([one.flatten(2) for one in maps], dim=2)
        value = value.unflatten(1, (2, 4)).permute(0, 3, 1, 2)
        return msda.multi_scale_deformable_attention(value, shapes, None, locations, weights)

    compiled: Callable[..., Tensor] = torch.compile(attend, backend="aot_eager", dynamic=True)
    for levels in (LEVELS, [(4, 3), (2, 2)]):
        call = make_call(levels)
        pieces = call.value.flatten(2).transpose(1, 2).split([h * w for h, w in levels], dim=2)
        maps = [piece.unflatten(2, level) for piece, level in zip(pieces, levels, strict=True)]
        assert torch.equal(compiled(maps, call.locations, call.weights), forward(call))


ALONE = """
import torch, msda
levels = torch.tensor([[1, 1]])
value, locations, weights = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1, 1, 2), 0.5), torch.ones(1, 1, 1, 1, 1)
try:
    msda.multi_scale_deformable_attention(value, levels, None, locations, weights)
except ValueError as error:
    print(error)
"""


def test_without_a_gpu_and_the_interpreter_there_is_one_clear_error():
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.startswith("value must be on a CUDA device, got cpu")
    assert "TRITON_INTERPRET=1" in done.stdout
