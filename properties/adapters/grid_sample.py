"""The operator composed of `torch.nn.functional.grid_sample`, one call per level: the reference of most repositories.

What it cannot do follows from `grid_sample`: one dtype for all operands, coordinates through [-1, 1] in that dtype, and
NaN for locations that are not finite.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import grid_sample


def compose(
    value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor, locations: Tensor, weights: Tensor
) -> Tensor:
    """Sample every level and add up.

    Args:
        value: (B, S, M, D).
        spatial_shapes: (L, 2), read back to the host.
        level_start_index: (L,); the levels are taken to lie one after the other.
        locations: (B, Q, M, L, K, 2).
        weights: (B, Q, M, L, K).

    Returns:
        (B, Q, M * D), of value's dtype.
    """
    del level_start_index
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    sizes = [(int(height), int(width)) for height, width in spatial_shapes.tolist()]
    maps = value.split([height * width for height, width in sizes], dim=1)
    sampled = []
    for level, ((height, width), pixels) in enumerate(zip(sizes, maps, strict=True)):
        image = pixels.flatten(2).transpose(1, 2).reshape(batch * heads, channels, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        sampled.append(grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    factors = weights.transpose(1, 2).reshape(batch * heads, 1, queries, -1)
    out = (torch.stack(sampled, dim=-2).flatten(-2) * factors).sum(-1)
    return out.view(batch, heads * channels, queries).transpose(1, 2).contiguous()


operator = cast(Any, compose)
# It takes 16 bits too, where it rounds at every step, coordinates included; no declaration makes that exact enough.
operator.accumulate = "native"
operator.mixed_dtypes = False
operator.coordinates = "grid"
operator.nonfinite = "overflow"
operator.empty = False
