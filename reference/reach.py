"""Which samples may contribute at all, and which pixels any of them may read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .float64 import chunks
from .inputs import Inputs
from .model import Arithmetic


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """What a correct kernel may touch.

    Attributes:
        live: (B, Q, M, L, K) bool; False for samples that every correct kernel skips.
        pixels: (B, S, M) bool; False for pixels that no correct kernel may let into a result.
    """

    live: Tensor
    pixels: Tensor


def reach(inputs: Inputs, arithmetic: Arithmetic | None = None, *, scratch_bytes: int | None = None) -> Reach:
    """Find skipped samples and pixels that are not sampled, allowing for the rounding of coordinates.

    A pixel whose bilinear factor is exactly 0 counts as read: the plain formula multiplies it.
    """
    device = inputs.device
    live = torch.zeros(inputs.weights.shape, dtype=torch.bool, device=device)
    rows = torch.zeros(inputs.batch * inputs.pixels * inputs.heads + 1, dtype=torch.bool, device=device)
    flat = live.view(-1, max(1, len(inputs.levels) * inputs.points))
    for chunk in chunks(inputs, arithmetic or Arithmetic(), scratch_bytes=scratch_bytes):
        flat[chunk.rows] = chunk.stencil.live
        # Pixels that are not touched all write to one spare row at the end.
        rows[torch.where(chunk.stencil.touched, chunk.pixel_row, rows.numel() - 1).reshape(-1)] = True
    return Reach(live=live, pixels=rows[:-1].view(inputs.batch, inputs.pixels, inputs.heads))
