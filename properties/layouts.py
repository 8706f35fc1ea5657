"""Memory layouts of an operand: the same elements under other strides and offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_PAD = 3  # an odd number of elements, so that no row after the first is aligned as the base is
_ALIGNED_PAD = 16  # elements: rows of every dtype stay aligned to 16 bytes, apart from each other
_MISALIGNED = 1


def _outer(shape: Sequence[int]) -> tuple[int, int]:
    """The dimensions that "permuted" swaps: pixels or queries with heads, or batch with queries for grad_output."""
    return (1, 2) if len(shape) > 3 else (0, 1)


def expanded_dimension(operand: str, shape: tuple[int, ...], seed: int) -> int | None:
    """Return the dimension along which an expanded operand repeats itself.

    Coordinates stay apart, and so do levels: a repeated location would mean another pixel on each level.

    Args:
        operand: "value", "locations", "weights" or "grad_output".
        shape: its shape.
        seed: chooses between the batch and the last dimension that may repeat.

    Returns:
        A dimension longer than 1, or None if there is none.
    """
    order = {"value": (3, 2, 1), "grad_output": (2, 1), "locations": (4, 2, 1), "weights": (4, 2, 1)}[operand]
    order = (0, *order) if seed % 2 else (*order, 0)
    return next((dimension for dimension in order if shape[dimension] > 1), None)


def drawn_shape(operand: str, shape: tuple[int, ...], layout: str, seed: int) -> tuple[int, ...]:
    """Return the shape to fill: the operand's own, or with one dimension of 1 when that dimension will repeat."""
    dimension = expanded_dimension(operand, shape, seed) if layout == "expanded" else None
    return tuple(1 if index == dimension else size for index, size in enumerate(shape))


def drawn_index(index: int, shape: Sequence[int], drawn: Sequence[int]) -> int:
    """Return where element `index` of a tensor of `shape` lies in one of `drawn_shape`, both row by row."""
    row, rest, stride = 0, index, 1
    for size, kept in zip(reversed(shape), reversed(drawn), strict=True):
        rest, place = divmod(rest, size)
        row += stride * min(place, kept - 1)
        stride *= kept
    return row


def is_real(operand: str, shape: tuple[int, ...], layout: str, seed: int) -> bool:
    """Whether a layout makes a difference at this shape, beyond strides of dimensions of 1 that nothing reads."""
    if layout == "contiguous":
        return True
    if math.prod(shape) == 0:
        return False
    longer = sum(size > 1 for size in shape)
    if layout == "expanded":
        return expanded_dimension(operand, shape, seed) is not None
    if layout == "transposed":
        return longer > 1
    if layout == "permuted":
        one, other = _outer(shape)
        return shape[one] > 1 and shape[other] > 1
    # A padded row shows in the strides of the dimensions before it alone.
    return layout == "offset" or (longer > 1 if shape[-1] > 1 else longer > 0)


def arrange(tensor: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    """Give a contiguous tensor a layout. Memory between the elements holds NaN: reading it does not stay unseen.

    Args:
        tensor: contiguous, any floating dtype, of `drawn_shape`.
        shape: of the result.
        layout: "contiguous"; "transposed", the dimensions in reverse order in memory; "permuted", two outer ones
            swapped (heads before pixels), the last still adjacent; "sliced", rows cut from longer ones, at odd
            distances; "padded", the same at distances that keep rows aligned to 16 bytes; "expanded", stride 0 where
            `tensor` has 1 and `shape` more; "offset", contiguous but starting one element into its memory, so aligned
            to its element size alone.

    Returns:
        A tensor of `shape` and tensor's dtype.
    """
    if layout == "expanded":
        return tensor.expand(shape)
    if layout == "contiguous" or tensor.numel() == 0:
        return tensor
    if layout == "transposed":
        backwards = tuple(reversed(range(tensor.dim())))
        return tensor.permute(backwards).contiguous().permute(backwards)
    if layout == "sliced":
        padded = torch.nn.functional.pad(tensor, (0, _PAD), value=math.nan)
        return padded[..., : shape[-1]]
    if layout == "padded":
        padded = torch.nn.functional.pad(tensor, (0, _ALIGNED_PAD - shape[-1] % _ALIGNED_PAD), value=math.nan)
        return padded[..., : shape[-1]]
    if layout == "permuted":
        outer = _outer(shape)
        return tensor.transpose(*outer).contiguous().transpose(*outer)
    padded = torch.nn.functional.pad(tensor.reshape(-1), (_MISALIGNED, 0), value=math.nan)
    return padded[_MISALIGNED:].view(shape)
