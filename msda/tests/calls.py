"""Small calls for the tests, and an independent float64 implementation through PyTorch's grid_sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from msda import multi_scale_deformable_attention
from msda.launch import architecture

DEVICE = "cuda" if architecture() == "cuda" else "cpu"
UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the operator and the gradient that enters its backward."""

    value: Tensor
    shapes: Tensor
    starts: Tensor | None
    locations: Tensor
    weights: Tensor
    grad: Tensor

    def run(self, **modes: str) -> tuple[Tensor, ...]:
        """Return the output and the gradients of value, locations and weights."""
        leaves = [t.detach().requires_grad_() for t in (self.value, self.locations, self.weights)]
        value, locations, weights = leaves
        out = multi_scale_deformable_attention(value, self.shapes, self.starts, locations, weights, **modes)
        grads = torch.autograd.grad(out, leaves, self.grad)
        return out.detach(), *grads

    def expected(self) -> tuple[Tensor, ...]:
        """Return the same in float64 arithmetic."""
        leaves = [t.detach().double().requires_grad_() for t in (self.value, self.locations, self.weights)]
        out = through_grid_sample(leaves[0], leaves[1], leaves[2], self.shapes.tolist())
        grads = torch.autograd.grad(out, leaves, self.grad.double())
        return out.detach(), *grads

    def magnitude(self) -> tuple[float, float, float, float]:
        """Return the largest sum of absolute values behind any element of each result."""
        absolute = replace(self, value=self.value.abs(), weights=self.weights.abs(), grad=self.grad.abs())
        out, grad_value, _, grad_weights = (t.max().item() for t in absolute.expected())
        # A slope is at most twice the size of a level times the largest pixel, summed over the channels.
        tops = [t.abs().max().item() for t in (self.value, self.weights, self.grad)]
        slope = 2.0 * float(self.shapes.max()) * self.value.shape[3] * tops[0] * tops[1] * tops[2]
        return out, grad_value, slope, grad_weights


def make_call(
    levels: list[tuple[int, int]],
    *,
    batch: int = 2,
    queries: int = 3,
    heads: int = 2,
    channels: int = 4,
    points: int = 2,
    value: torch.dtype = torch.float32,
    samples: torch.dtype | None = None,
    seed: int = 0,
) -> Call:
    """Draw a call: locations a little beyond the map, everything else normal."""
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.tensor(levels, dtype=torch.int64).reshape(-1, 2)
    sizes = shapes.prod(dim=1)
    pixels, count = int(sizes.sum()), len(levels)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    grid = (batch, queries, heads, count, points)
    return Call(
        value=normal(batch, pixels, heads, channels).to(DEVICE, value),
        shapes=shapes.to(DEVICE),
        starts=(sizes.cumsum(0) - sizes).to(DEVICE),
        locations=(torch.rand((*grid, 2), generator=generator) * 1.4 - 0.2).to(DEVICE, samples or value),
        weights=normal(*grid).to(DEVICE, samples or value),
        grad=normal(batch, queries, heads * channels).to(DEVICE, value),
    )


def through_grid_sample(value: Tensor, locations: Tensor, weights: Tensor, levels: list[list[int]]) -> Tensor:
    """Evaluate the operator level by level with `torch.nn.functional.grid_sample`."""
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    out = value.new_zeros(batch * heads, channels, queries)
    start = 0
    for level, (height, width) in enumerate(levels):
        image = value[:, start : start + height * width].permute(0, 2, 3, 1).reshape(-1, channels, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        sampled = grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        out = out + (sampled * weights[:, :, :, level].transpose(1, 2).reshape(-1, 1, queries, locations.shape[4])).sum(
            -1
        )
        start += height * width
    joined: Tensor = out.unflatten(0, (batch, heads)).permute(0, 3, 1, 2).flatten(2)
    return joined


def assert_close(call: Call, results: tuple[Tensor, ...]) -> None:
    """Compare with float64; the bound is a rounding per operation on sums of absolute values, times 16.

    It is meant to see wrong logic. How accurate the kernels are is decided by the harness, with sharper bounds.
    """
    compute = UNIT_ROUNDOFF[torch.float64 if call.value.dtype == torch.float64 else torch.float32]
    terms = call.weights.shape[3] * call.weights.shape[4] + call.value.shape[3] + 8
    extent = float(call.shapes.max())
    stored = (call.value, call.value, call.locations, call.weights)
    for result, exact, magnitude, operand in zip(results, call.expected(), call.magnitude(), stored, strict=True):
        assert result.dtype == operand.dtype
        assert result.shape == exact.shape
        bound = 16 * terms * extent * compute * magnitude + 2 * UNIT_ROUNDOFF[operand.dtype] * exact.abs().max().item()
        assert (result.double() - exact).abs().max().item() <= bound
