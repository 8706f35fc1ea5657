"""Calls of the kernels: buffers, plan, launch. Tensors in, tensors out; autograd and validation are elsewhere."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from . import arguments, kernels
from .plan import VECTOR_BYTES, Accumulate, Architecture, Pass, Plan, accumulator_dtype, buffer_dtype, make_plan

TRITON_DTYPE = {torch.float32: tl.float32, torch.float64: tl.float64}


class Operands(NamedTuple):
    """The tensors of one call, as the operator documents them; `level_start_index` is never None here."""

    value: Tensor
    spatial_shapes: Tensor
    level_start_index: Tensor
    sampling_locations: Tensor
    attention_weights: Tensor


def architecture() -> Architecture:
    """Where the kernels of this package run: decided by TRITON_INTERPRET when Triton was imported."""
    return "cuda" if isinstance(kernels.forward, triton.JITFunction) else "interpreter"


def constants(kernel: Pass, plan: Plan) -> dict[str, Any]:
    """The values that a kernel is compiled with."""
    values = {
        "VEC": plan.vec,
        "WIDE": plan.wide,
        "COMPUTE": TRITON_DTYPE[plan.compute],
        "BLOCK_Q": plan.block_q,
        "BLOCK_P": plan.block_p,
        "BLOCK_D": plan.block_d,
    }
    return values | {"LOOP_D": plan.loop_d} if kernel == "backward" else values


def options(plan: Plan) -> dict[str, Any]:
    """The compiler options of a kernel."""
    # Triton 3.10 changes the default of fusion. The error bounds hold either way; the last bit would move.
    return {"num_warps": plan.num_warps, "enable_fp_fusion": True}


def launch(kernel: Pass, plan: Plan, device: torch.device, *args: Any) -> None:
    """Launch a kernel of `kernels` as planned."""
    start(getattr(kernels, kernel), plan.programs, device, *args, **constants(kernel, plan), **options(plan))


def start(kernel: Any, programs: int, device: torch.device, *args: Any, **compiled: Any) -> None:
    """Launch any kernel on a one-dimensional grid; every launch of the package goes through here.

    Args:
        kernel: decorated function.
        programs: size of the grid.
        device: the one that holds the tensors.
        args: what the kernel is called with.
        compiled: values it is compiled with, and compiler options.
    """
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            # Kernels run on the current device, which need not be the one that holds the tensors.
            stack.enter_context(torch.cuda.device(device))
        if architecture() == "interpreter":
            stack.enter_context(_quiet_interpreter())
        kernel[(programs,)](*args, **compiled)


@contextlib.contextmanager
def _quiet_interpreter() -> Iterator[None]:
    # Infinities and NaN are data here, and NumPy would warn about each; it also warns of how Triton < 3.9 reads the
    # bound of a loop. Both would be errors in a test run.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Conversion of an array with ndim > 0", category=DeprecationWarning)
        yield


def forward(operands: Operands, accumulate: Accumulate) -> Tensor:
    """Run the forward kernel.

    Args:
        operands: what the operator was called with; shapes and dtypes have been checked.
        accumulate: how the backward will accumulate, so that what cannot be differentiated fails here.

    Returns:
        (B, Q, M * D), a new contiguous tensor of value's dtype.

    Raises:
        ValueError: wrong device, wrong values in the level table, or too large a call.
        NotImplementedError: an accumulator that the architecture lacks.
        RuntimeError: the interpreter does not work with the installed NumPy.
    """
    value = operands.value
    arch = architecture()
    arguments.check_device(value.device, arch)
    accumulator_dtype(value.dtype, accumulate, arch)
    arguments.check_level_table(operands.spatial_shapes, operands.level_start_index, value)
    problem = arguments.problem_of(value, operands.sampling_locations)
    shape = (problem.batch, problem.queries, problem.heads * problem.channels)
    if problem.empty:
        return value.new_zeros(shape)
    value = channels_adjacent(value)
    out = torch.empty(shape, dtype=buffer_dtype(value.dtype, arch), device=value.device)
    plan = make_plan("forward", problem, value.dtype, value.stride(), aligned=aligned(value, out), architecture=arch)
    launch(
        "forward",
        plan,
        value.device,
        *inputs(operands._replace(value=value)),
        out,
        *value.stride()[:3],
        problem.queries,
        problem.heads,
        problem.points,
        problem.samples,
        problem.channels // plan.vec,
        plan.query_blocks,
        plan.channel_blocks,
    )
    return out.to(value.dtype)


def backward(
    grad_output: Tensor, operands: Operands, accumulate: Accumulate, *, need_value: bool, need_samples: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the backward kernel.

    Args:
        grad_output: (B, Q, M * D), of value's dtype and any strides.
        operands: what the forward was called with.
        accumulate: accumulator of grad_value.
        need_value: whether the gradient of value is wanted.
        need_samples: whether those of locations and weights are wanted.

    Returns:
        Gradients of value, locations and weights in their operands' dtypes; those not wanted have no elements.

    Raises:
        RuntimeError: the gradient of value is wanted and PyTorch is told to use deterministic algorithms only.
    """
    value = channels_adjacent(operands.value)
    arch = architecture()
    if need_value:
        arguments.alert_not_deterministic()
    problem = arguments.problem_of(value, operands.sampling_locations)
    kind = accumulator_dtype(value.dtype, accumulate, arch)
    grads = [torch.zeros(value.shape if need_value else 0, dtype=kind, device=value.device)]
    samples = (operands.sampling_locations, operands.attention_weights)
    for operand in samples:
        # Zeros only where no kernel will write: elsewhere the fill would be one more launch.
        make = torch.zeros if problem.empty else torch.empty
        shape = operand.shape if need_samples else 0
        grads.append(make(shape, dtype=buffer_dtype(operand.dtype, arch), device=value.device))
    if not problem.empty and (need_value or need_samples):
        grad_output = grad_output.contiguous()
        vectors = aligned(value, grad_output, grads[0])
        plan = make_plan("backward", problem, value.dtype, value.stride(), aligned=vectors, architecture=arch)
        launch(
            "backward",
            plan,
            value.device,
            grad_output,
            *inputs(operands._replace(value=value)),
            *grads,
            *value.stride()[:3],
            problem.pixels,
            problem.queries,
            problem.heads,
            problem.points,
            problem.samples,
            problem.channels // plan.vec,
            plan.query_blocks,
            int(need_value),
            int(need_samples),
        )
    grad_value, grad_locations, grad_weights = (
        grad.to(operand.dtype) for grad, operand in zip(grads, (value, *samples), strict=True)
    )
    return grad_value, grad_locations, grad_weights


def channels_adjacent(value: Tensor) -> Tensor:
    """Copy a value in the one layout that kernels do not read in place."""
    return value if value.stride(3) == 1 or value.shape[3] == 1 else value.contiguous()


def aligned(*tensors: Tensor) -> bool:
    """Whether all addresses allow 16-byte accesses."""
    return all(tensor.data_ptr() % VECTOR_BYTES == 0 for tensor in tensors)


def inputs(operands: Operands) -> tuple[Tensor, ...]:
    """The operands as kernels take them: all but value contiguous."""
    # The level table is always int64 on value's device: other dtypes would be other kernels.
    table = (operands.spatial_shapes, operands.level_start_index)
    return (
        operands.value,
        *(tensor.to(device=operands.value.device, dtype=torch.int64).contiguous() for tensor in table),
        operands.sampling_locations.contiguous(),
        operands.attention_weights.contiguous(),
    )
