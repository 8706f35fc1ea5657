"""The operator in plain PyTorch, in several right ways; each declares how it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# (rows (N, D), index (n,)) -> (n, D)
Take = Callable[[Tensor, Tensor], Tensor]


def _levels(value: Tensor, shapes: Tensor) -> Iterator[tuple[int, int, int, Tensor]]:
    """Yield (number, H, W, pixels (B, H * W, M, D)) of every level."""
    first = 0
    for number, (height, width) in enumerate(shapes.tolist()):
        yield number, height, width, value[:, first : first + height * width]
        first += height * width


def _place(locations: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (x, y, whether the sample counts), each (B, Q, M, K), in pixels; 0 where it does not count."""
    x = locations[..., 0] * width - 0.5
    y = locations[..., 1] * height - 0.5
    live = (x > -1) & (x < width) & (y > -1) & (y < height)
    return torch.where(live, x, 0.0), torch.where(live, y, 0.0), live


def _evaluate(
    value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor, *, compute: torch.dtype, take: Take
) -> Tensor:
    """Add up weight * factor * pixel over corners, points and levels, all in one dtype.

    Args:
        value: (B, S, M, D).
        shapes: (L, 2).
        locations: (B, Q, M, L, K, 2).
        weights: (B, Q, M, L, K).
        compute: dtype of everything but the result.
        take: reads rows of pixels.

    Returns:
        (B, Q, M * D), of value's dtype.
    """
    batch, _, heads, channels = value.shape
    wide, locations, weights = value.to(compute), locations.to(compute), weights.to(compute)
    out = wide.new_zeros(batch, locations.shape[1], heads, channels)
    entry = torch.arange(batch, device=value.device).view(-1, 1, 1, 1)
    head = torch.arange(heads, device=value.device).view(1, 1, -1, 1)
    for number, height, width, pixels in _levels(wide, shapes):
        x, y, live = _place(locations[:, :, :, number], height, width)
        weight = torch.where(live, weights[:, :, :, number], 0.0)
        left, top = x.detach().floor(), y.detach().floor()
        rows = pixels.flatten(0, 2)
        for column, fx in ((left, 1 - (x - left)), (left + 1, x - left)):
            for row, fy in ((top, 1 - (y - top)), (top + 1, y - top)):
                inside = live & (column >= 0) & (column < width) & (row >= 0) & (row < height)
                pixel = torch.where(inside, row * width + column, 0.0).long()
                index = (entry * (height * width) + pixel) * heads + head
                taken = take(rows, index.flatten()).view(*index.shape, channels)
                taken = torch.where(inside[..., None], taken, 0.0)
                out = out + ((weight * (fx * fy))[..., None] * taken).sum(3)
    return out.flatten(2).to(value.dtype)


def _index(rows: Tensor, index: Tensor) -> Tensor:
    return rows[index]


class _TakeSorted(torch.autograd.Function):
    """Reads rows; its backward sorts by row first, so that every sum has one order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = rows.shape[0]
        return rows[index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        order = torch.argsort(index, stable=True)
        # Not `bincount`, which is none of the deterministic algorithms.
        edges = torch.searchsorted(index[order], torch.arange(ctx.rows + 1, device=index.device))
        return torch.segment_reduce(grad[order].contiguous(), "sum", lengths=edges.diff(), axis=0, unsafe=True), None


def _sorted(rows: Tensor, index: Tensor) -> Tensor:
    taken: Tensor = _TakeSorted.apply(rows, index)
    return taken


def _wide(value: Tensor) -> torch.dtype:
    return torch.float64 if value.dtype == torch.float64 else torch.float32


def gathered(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Index the pixels; autograd does the rest."""
    del starts
    return _evaluate(value, shapes, locations, weights, compute=_wide(value), take=_index)


def sorted_sums(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Index the pixels, and sort the contributions to each before they are added."""
    del starts
    return _evaluate(value, shapes, locations, weights, compute=_wide(value), take=_sorted)


def in_float64(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Compute everything in float64 and round once."""
    del starts
    return _evaluate(value, shapes, locations, weights, compute=torch.float64, take=_index)


def grid_sampled(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Sample with PyTorch's own grid_sample, and select away what it does not skip."""
    del starts
    batch, _, heads, channels = value.shape
    compute = _wide(value)
    wide, locations, weights = value.to(compute), locations.to(compute), weights.to(compute)
    out = wide.new_zeros(batch, locations.shape[1], heads, channels)
    for number, height, width, pixels in _levels(wide, shapes):
        _, _, live = _place(locations[:, :, :, number], height, width)
        place = torch.where(live[..., None], locations[:, :, :, number], 0.5)
        if 0 in pixels.shape or 0 in place.shape:
            continue
        image = pixels.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = (2.0 * place - 1.0).transpose(1, 2).flatten(0, 1)
        read = torch.nn.functional.grid_sample(image, grid, align_corners=False)
        read = read.view(batch, heads, channels, *grid.shape[1:3]).permute(0, 3, 1, 4, 2)
        read = torch.where(live[..., None], read, 0.0)
        weight = torch.where(live, weights[:, :, :, number], 0.0)
        out = out + (weight[..., None] * read).sum(3)
    return out.flatten(2).to(value.dtype)


for _operator in (gathered, sorted_sums, in_float64):
    _operator.corner_sum = "flat"  # type: ignore[attr-defined]
grid_sampled.coordinates = "grid"  # type: ignore[attr-defined]
grid_sampled.corner_sum = "nested"  # type: ignore[attr-defined]
sorted_sums.determinism = "run_to_run"  # type: ignore[attr-defined]
