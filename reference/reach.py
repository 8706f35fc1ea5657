"""Which samples may contribute at all, and which pixels any of them may read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .float64 import chunks
from .inputs import Inputs
from .model import UNIT_ROUNDOFF, Arithmetic, compute_dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """What a correct kernel may touch.

    Attributes:
        live: (B, Q, M, L, K) bool; False for samples that every correct kernel skips.
        certain: (B, Q, M, L, K) bool; True for samples that every correct kernel takes, with four factors none of which
            may come out as 0.
        pixels: (B, S, M) bool; False for pixels that no correct kernel may let into a result.
    """

    live: Tensor
    certain: Tensor
    pixels: Tensor


def reach(inputs: Inputs, arithmetic: Arithmetic | None = None, *, scratch_bytes: int | None = None) -> Reach:
    """Find skipped samples and pixels that are not sampled, allowing for the rounding of coordinates.

    A pixel whose bilinear factor is exactly 0 counts as read: the plain formula multiplies it.
    """
    device = inputs.device
    live = torch.zeros(inputs.weights.shape, dtype=torch.bool, device=device)
    rows = torch.zeros(inputs.batch * inputs.pixels * inputs.heads + 1, dtype=torch.bool, device=device)
    certain = torch.zeros_like(live)
    samples = max(1, len(inputs.levels) * inputs.points)
    unit = UNIT_ROUNDOFF[compute_dtype(inputs.value.dtype)]
    for chunk in chunks(inputs, arithmetic or Arithmetic(), scratch_bytes=scratch_bytes):
        stencil = chunk.stencil
        live.view(-1, samples)[chunk.rows] = stencil.live
        # A coordinate in one cell for certain is on the map for certain: the edges of the map are integers.
        # A factor is a fraction or 1 - it, after a rounding or two of a number of at most 1.
        factors = (stencil.hat[..., :2] > (stencil.error + 2.0 * unit).unsqueeze(-1)).all(dim=(-1, -2))
        certain.view(-1, samples)[chunk.rows] = stencil.live & factors & ~stencil.two.any(dim=-1)
        # Pixels that are not touched all write to one spare row at the end.
        rows[torch.where(stencil.touched, chunk.pixel_row, rows.numel() - 1).reshape(-1)] = True
    return Reach(live=live, certain=certain, pixels=rows[:-1].view(inputs.batch, inputs.pixels, inputs.heads))
