"""The stored operands of one call: what the kernel is given and what the reference evaluates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Operands of multi-scale deformable attention, plus the gradient that enters its backward.

    Tensors may have any strides and live on any one device. `levels` holds the (H, W) of each level as Python
    integers, level 0 first; the levels lie one after the other on the S axis of `value`.

    Attributes:
        value: (B, S, M, D), float64, float32, float16 or bfloat16; S is the sum of H * W over the levels.
        levels: (H, W) in pixels, one pair per level.
        locations: (B, Q, M, L, K, 2), normalised (x, y); value's dtype or float32.
        weights: (B, Q, M, L, K); value's dtype or float32.
        grad_output: (B, Q, M * D), value's dtype.
    """

    value: Tensor
    levels: tuple[tuple[int, int], ...]
    locations: Tensor
    weights: Tensor
    grad_output: Tensor

    @property
    def batch(self) -> int:
        """B, the number of batch entries."""
        return self.value.shape[0]

    @property
    def pixels(self) -> int:
        """S, the number of pixels of all levels together."""
        return self.value.shape[1]

    @property
    def heads(self) -> int:
        """M, the number of heads."""
        return self.value.shape[2]

    @property
    def channels(self) -> int:
        """D, channels per head."""
        return self.value.shape[3]

    @property
    def queries(self) -> int:
        """Q, the number of queries."""
        return self.locations.shape[1]

    @property
    def points(self) -> int:
        """K, sampling points per level."""
        return self.locations.shape[4]

    @property
    def device(self) -> torch.device:
        """The device of every operand."""
        return self.value.device

    def level_table(self) -> tuple[Tensor, Tensor]:
        """Return `spatial_shapes` (L, 2) int64 and `level_start_index` (L,) int64 on the operands' device."""
        shapes = torch.tensor(self.levels, dtype=torch.int64).reshape(-1, 2)
        sizes = shapes.prod(dim=1)
        starts = sizes.cumsum(0) - sizes
        return shapes.to(self.device), starts.to(self.device)
