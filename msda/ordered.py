"""The backward behind determinism="run_to_run": grad_value in a fixed order of summation, no floating-point atomics.

Samples are sorted by cell, cells are summed, pixels gather from their cells; `ordered_kernels` has the details.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import arguments, launch, ordered_kernels
from .launch import TRITON_DTYPE, Operands
from .ordered_plan import OrderedPlan, make_ordered_plan
from .plan import Problem, buffer_dtype, make_plan

SORT_WARPS = 4
ARRANGE_UNROLL = 4


def constants(kernel: str, plan: OrderedPlan) -> dict[str, Any]:
    """The values that a kernel is compiled with; `count_and_differentiate` goes by the plan of the usual backward."""
    compute = TRITON_DTYPE[plan.compute]
    rows: dict[str, Any] = {"BLOCK_Q": plan.block_q, "BLOCK_P": plan.block_p}
    tile: dict[str, Any] = {"VEC": plan.vec, "COMPUTE": compute, "BLOCK_D": plan.block_d}
    values: dict[str, dict[str, Any]] = {
        "count": rows | {"COMPUTE": compute},
        "place": rows,
        "arrange": {"BLOCK": plan.block_i, "UNROLL": ARRANGE_UNROLL},
        "sum_cells": tile | {"BLOCK_R": plan.block_r},
        "sum_pixels": tile | {"BLOCK_S": plan.block_s},
    }
    return values[kernel]


def options(kernel: str) -> dict[str, Any]:
    """The compiler options of a kernel of `ordered_kernels`."""
    return {"num_warps": SORT_WARPS if kernel in {"count", "place"} else 1, "enable_fp_fusion": True}


class _Entries(NamedTuple):
    """Operands and results of some batch entries; results that are not wanted are None."""

    grad_output: Tensor
    value: Tensor
    shapes: Tensor
    starts: Tensor
    locations: Tensor
    weights: Tensor
    grad_value: Tensor
    grad_locations: Tensor | None
    grad_weights: Tensor | None


def backward(grad_output: Tensor, operands: Operands, *, need_samples: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Run the backward with a grad_value that is bitwise the same on every run on one machine.

    It is accumulated in float32 (float64 for float64) and rounded once, whatever `accumulate` says.

    Args:
        grad_output: (B, Q, M * D), of value's dtype and any strides.
        operands: what the forward was called with.
        need_samples: whether the gradients of locations and weights are wanted.

    Returns:
        Gradients of value, locations and weights in their operands' dtypes; those not wanted have no elements.

    Raises:
        ValueError: the call is too large for 32-bit indices.
    """
    value = operands.value
    samples = (operands.sampling_locations, operands.attention_weights)
    problem = arguments.problem_of(value, samples[0])
    wanted = (value, *(operand if need_samples else operand.new_empty(0) for operand in samples))
    if problem.empty:
        results = [torch.zeros(operand.shape, dtype=operand.dtype, device=value.device) for operand in wanted]
    else:
        arch = launch.architecture()
        results = [_uninitialised(operand.shape, buffer_dtype(operand.dtype, arch), value.device) for operand in wanted]
        _fill(grad_output.contiguous(), operands, problem, results if need_samples else [results[0], None, None])
    grad_value, grad_locations, grad_weights = (
        result.to(operand.dtype) for result, operand in zip(results, wanted, strict=True)
    )
    return grad_value, grad_locations, grad_weights


def _fill(grad_output: Tensor, operands: Operands, problem: Problem, results: Sequence[Tensor | None]) -> None:
    value, shapes, starts, locations, weights = launch.inputs(
        operands._replace(value=launch.channels_adjacent(operands.value))
    )
    grad_value = results[0]
    assert grad_value is not None
    plan = make_ordered_plan(
        problem,
        value.dtype,
        aligned=launch.aligned(grad_output, grad_value),
        architecture=launch.architecture(),
    )
    for first in range(0, problem.batch, plan.entries):
        chunk = slice(first, first + plan.entries)
        entries = _Entries(
            grad_output[chunk],
            value[chunk],
            shapes,
            starts,
            locations[chunk],
            weights[chunk],
            grad_value[chunk],
            *(None if result is None else result[chunk] for result in results[1:]),
        )
        part = replace(problem, batch=entries.value.shape[0])
        offsets, order = _sort(plan, part, entries)
        _sum(plan, part, entries, offsets, order)


def _sort(plan: OrderedPlan, problem: Problem, entries: _Entries) -> tuple[Tensor, Tensor]:
    """Sort the items of every segment by cell; on the way, compute the gradients that need no sorting.

    Returns:
        First position of every counter, and one number more; the items in order. Both int32.
    """
    device = entries.value.device
    heads = problem.batch * problem.heads
    samples = heads * problem.queries * problem.samples
    counters = heads * plan.per_head
    counts = torch.zeros(counters + 1, dtype=torch.int32, device=device)
    counter = _uninitialised((samples,), torch.int32, device)
    ticket = _uninitialised((samples,), torch.int32, device)
    sizes = (problem.queries, problem.heads, problem.points, problem.samples)
    table = (entries.shapes, entries.starts)
    drawn = (counts, counter, ticket)
    q_blocks = -(-problem.queries // plan.block_q)
    layout = (plan.quota, plan.per_head)
    if entries.grad_locations is None or entries.grad_weights is None:
        args: tuple[Any, ...] = (*table, entries.locations, *drawn, *sizes, q_blocks, *layout)
        _start("count", heads * q_blocks, device, args, constants("count", plan))
    else:
        results = (entries.grad_locations, entries.grad_weights)
        usual = make_plan(
            "backward",
            problem,
            entries.value.dtype,
            entries.value.stride(),
            aligned=launch.aligned(entries.grad_output, entries.value),
            architecture=launch.architecture(),
        )
        args = (entries.grad_output, entries.value, *table, entries.locations, entries.weights, *results, *drawn)
        args += (*entries.value.stride()[:3], *sizes, problem.channels // usual.vec, usual.query_blocks, *layout)
        _start("count_and_differentiate", usual.programs, device, args, launch.constants("backward", usual))

    # Sums of integers: PyTorch's prefix sum is deterministic for them, and allowed when nothing else is.
    offsets = torch.cumsum(counts, 0, dtype=torch.int32)
    placed = _uninitialised((samples,), torch.int64, device)
    args = (counter, ticket, offsets, placed, *sizes, q_blocks)
    _start("place", heads * q_blocks, device, args, constants("place", plan))
    order = counter  # which nothing reads any more
    blocks = -(-samples // plan.block_i)
    args = (placed, offsets, order, counters)
    _start("arrange", blocks, device, args, constants("arrange", plan))
    return offsets, order


def _sum(plan: OrderedPlan, problem: Problem, entries: _Entries, offsets: Tensor, order: Tensor) -> None:
    """Sum the cells, then the pixels."""
    device = entries.value.device
    heads = problem.batch * problem.heads
    run_rows = heads * problem.pixels
    rows = run_rows + heads * problem.levels * plan.runs
    partial = _uninitialised((rows, 4, problem.channels), plan.compute, device)
    table = (entries.shapes, entries.starts)
    layout = (plan.channel_blocks, plan.runs, plan.run_bits, plan.quota, plan.per_head)
    vectors = problem.channels // plan.vec
    run_blocks = -(-plan.runs // plan.block_r)
    args: tuple[Any, ...] = (entries.grad_output, *table, entries.locations, entries.weights, offsets, order, partial)
    args += (run_rows, problem.pixels, problem.queries, problem.heads, problem.levels, problem.points, vectors)
    args += (run_blocks, *layout, *_divisor(problem.points))
    programs = heads * problem.levels * run_blocks * plan.channel_blocks
    _start("sum_cells", programs, device, args, constants("sum_cells", plan))

    pixel_blocks = -(-problem.pixels // plan.block_s)
    args = (*table, offsets, partial, entries.grad_value, run_rows, problem.pixels, problem.heads, problem.levels)
    args += (vectors, pixel_blocks, *layout)
    programs = heads * pixel_blocks * plan.channel_blocks
    _start("sum_pixels", programs, device, args, constants("sum_pixels", plan))


def _start(kernel: str, programs: int, device: torch.device, args: tuple[Any, ...], values: dict[str, Any]) -> None:
    launch.start(getattr(ordered_kernels, kernel), programs, device, *args, **values, **options(kernel))


def _divisor(divisor: int) -> tuple[int, int]:
    # (factor, shift) with n // divisor == (n * factor) >> (31 + shift) for all n below 2^31: the factor is rounded up
    # by less than divisor / 2^(31 + shift), which moves no quotient over an integer. It is below 2^32.
    shift = (divisor - 1).bit_length()
    return -(-(2 ** (31 + shift)) // divisor), shift


def _uninitialised(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # torch.empty fills its memory when deterministic algorithms are asked for; every element here is written or masked.
    count = 1
    for size in shape:
        count *= size
    storage = torch.UntypedStorage(count * dtype.itemsize, device=device)
    return torch.empty(0, dtype=dtype, device=device).set_(storage).view(shape)
