"""The operator: kernels behind torch.library, with autograd, fake tensors and vmap.

The namespace of the registration comes from the package's own name, so that an edited copy of the package can be
imported beside it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from . import arguments, launch, ordered
from .launch import Operands
from .plan import Accumulate

NAMESPACE = (__package__ or "msda").replace(".", "_")


def multi_scale_deformable_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    *,
    accumulate: str = "float32",
    determinism: str | None = None,
) -> Tensor:
    """Sample every level of `value` bilinearly and sum the samples with their weights.

    `out[b, q, m]` is the sum over levels l and points k of the weight times `value[b, level l, m]` interpolated at
    `(x * W_l - 0.5, y * H_l - 0.5)`; pixels outside a level count as zero. A sample more than one pixel outside, or
    with a location that is not finite, contributes nothing and has gradients of exactly zero. Arithmetic is float32,
    or float64 for a float64 value.

    Differentiable once in value, sampling_locations and attention_weights; each gradient has the dtype of its operand.
    The output and the gradients of locations and weights are bitwise the same in every run on one machine. By default
    grad_value is accumulated with atomics, so it may differ in rounding; with "run_to_run" it is summed in an order
    that only the inputs decide and is the same too, at the cost of workspace (`msda.ordered_plan` has the formula).

    Tensors may have any strides. A value whose channels are not adjacent is copied in each pass; locations, weights and
    the incoming gradient are copied when they are not contiguous.

    Args:
        value: (B, S, M, D), float64, float32, float16 or bfloat16; S is the sum of H * W over the levels.
        spatial_shapes: (L, 2) integer, (H, W) of each level, on value's device or the CPU.
        level_start_index: (L,) integer, offset of each level on the S axis; None derives it.
        sampling_locations: (B, Q, M, L, K, 2), normalised (x, y), of value's dtype or float32 (float64 with float64).
        attention_weights: (B, Q, M, L, K), same dtypes; need not sum to 1.
        accumulate: accumulator of grad_value, "float32" (float64 for float64) or "native" for value's own dtype. Under
            "run_to_run" both mean float32, rounded once at the end.
        determinism: "not_guaranteed" or "run_to_run"; None means "run_to_run" when
            `torch.use_deterministic_algorithms(True)` is on, also with warn_only, at the time of the pass.

    Returns:
        (B, Q, M * D), of value's dtype.

    Raises:
        TypeError: an argument is not a tensor or has an unsupported dtype.
        ValueError: shapes, devices, the level table or a mode are wrong, or the call is too large; on a CUDA device the
            level table is read back for this, except while a CUDA graph is captured.
        NotImplementedError: native bfloat16 accumulation in Triton's interpreter.
        RuntimeError: in the backward, with an explicit "not_guaranteed" when `torch.use_deterministic_algorithms(True)`
            is on; in a second derivative.
    """
    arguments.check(
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
        accumulate=accumulate,
        determinism=determinism,
    )
    if level_start_index is None:
        sizes = spatial_shapes.long().prod(dim=1)
        level_start_index = sizes.cumsum(0) - sizes
    out: Tensor = _forward(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, accumulate, determinism
    )
    return out


@torch.library.custom_op(f"{NAMESPACE}::forward", mutates_args=())
def _forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    accumulate: str,
    determinism: str | None,
) -> Tensor:
    operands = Operands(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    if arguments.is_run_to_run(determinism):
        accumulate = "float32"
    return launch.forward(operands, cast(Accumulate, accumulate))


@torch.library.custom_op(f"{NAMESPACE}::backward", mutates_args=())
def _backward(
    grad_output: Tensor,
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    accumulate: str,
    determinism: str | None,
    need_value: bool,
    need_samples: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    operands = Operands(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    if need_value and arguments.is_run_to_run(determinism):
        return ordered.backward(grad_output, operands, need_samples=need_samples)
    return launch.backward(
        grad_output, operands, cast(Accumulate, accumulate), need_value=need_value, need_samples=need_samples
    )


@_forward.register_fake
def _(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    accumulate: str,
    determinism: str | None,
) -> Tensor:
    del spatial_shapes, level_start_index, attention_weights, accumulate, determinism
    return value.new_empty((value.shape[0], sampling_locations.shape[1], value.shape[2] * value.shape[3]))


@_backward.register_fake
def _(
    grad_output: Tensor,
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    accumulate: str,
    determinism: str | None,
    need_value: bool,
    need_samples: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    del grad_output, spatial_shapes, level_start_index, accumulate, determinism
    return (
        value.new_empty(value.shape if need_value else (0,)),
        sampling_locations.new_empty(sampling_locations.shape if need_samples else (0,)),
        attention_weights.new_empty(attention_weights.shape if need_samples else (0,)),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    *tensors, ctx.accumulate, ctx.determinism = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    need_value, _, _, need_locations, need_weights, _, _ = ctx.needs_input_grad
    grad_value, grad_locations, grad_weights = _backward(
        grad_output, *ctx.saved_tensors, ctx.accumulate, ctx.determinism, need_value, need_locations or need_weights
    )
    return (
        grad_value if need_value else None,
        None,
        None,
        grad_locations if need_locations else None,
        grad_weights if need_weights else None,
        None,
        None,
    )


def _refuse_second_derivative(ctx: Any, *grads: Tensor) -> None:
    del ctx, grads
    msg = "multi_scale_deformable_attention can be differentiated once: its second derivative is not implemented"
    raise RuntimeError(msg)


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_refuse_second_derivative)


def _fold(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    # The mapped axis becomes part of the batch axis; an operand that is not mapped is repeated.
    mapped = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return mapped.flatten(0, 1)


def _fold_all(
    size: int, operands: tuple[Tensor, ...], dims: tuple[int | None, ...], table: tuple[int | None, ...]
) -> list[Tensor]:
    if any(dim is not None for dim in table):
        msg = "spatial_shapes and level_start_index cannot be mapped over by vmap: all entries share one level table"
        raise ValueError(msg)
    return [_fold(tensor, dim, size) for tensor, dim in zip(operands, dims, strict=True)]


@_forward.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    accumulate: str,
    determinism: str | None,
) -> tuple[Tensor, int]:
    size = info.batch_size
    operands = (value, sampling_locations, attention_weights)
    dims = (in_dims[0], in_dims[3], in_dims[4])
    value, locations, weights = _fold_all(size, operands, dims, in_dims[1:3])
    out = _forward(value, spatial_shapes, level_start_index, locations, weights, accumulate, determinism)
    return out.unflatten(0, (size, out.shape[0] // size)), 0


@_backward.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    grad_output: Tensor,
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    accumulate: str,
    determinism: str | None,
    need_value: bool,
    need_samples: bool,
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    size = info.batch_size
    operands = (grad_output, value, sampling_locations, attention_weights)
    dims = (in_dims[0], in_dims[1], in_dims[4], in_dims[5])
    grad_output, value, locations, weights = _fold_all(size, operands, dims, in_dims[2:4])
    grads = _backward(
        grad_output,
        value,
        spatial_shapes,
        level_start_index,
        locations,
        weights,
        accumulate,
        determinism,
        need_value,
        need_samples,
    )
    present = (need_value, need_samples, need_samples)
    results = tuple(
        grad.unflatten(0, (size, grad.shape[0] // size)) if there else grad
        for grad, there in zip(grads, present, strict=True)
    )
    return results, tuple(0 if there else None for there in present)
