"""Where each sample falls: pixel coordinates, their error, the cells they may lie in and the pixels they may touch.

A kernel computes a pixel coordinate with a rounding error of at most `error`. The closed box of that half-width
around the exact coordinate touches one cell of the pixel grid per axis, or two when an integer lies inside; so a
sample touches at most 3 x 3 pixels. Everything downstream works on this window, which makes a sample that sits on a
pixel edge no special case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs import Inputs
from .model import UNIT_ROUNDOFF, Arithmetic, compute_dtype

# A float32 difference t - 1/2 is exact for t in [1/4, 2^22): Sterbenz's lemma up to 1, a common spacing above.
EXACT_FROM = 0.25
EXACT_BELOW = 2.0**22
SMALLEST_NORMAL = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022}
# Products this small may underflow, or be flushed; the -1/2 that follows makes the loss invisible but for this term.
UNDERFLOWS_BELOW = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelTable:
    """The level of each of the P = L * K samples of a query, on the operands' device.

    Attributes:
        size: (P, 2) float64, (W, H): the axis order of a location.
        is_power_of_two: (P, 2) bool, of `size`.
        start: (P,) int64, first pixel of the level on the S axis.
    """

    size: Tensor
    is_power_of_two: Tensor
    start: Tensor

    @classmethod
    def of(cls, inputs: Inputs) -> LevelTable:
        """Build the table of one call's levels, each repeated for its K points."""
        rows = []
        start = 0
        for height, width in inputs.levels:
            rows += [(width, height, start)] * inputs.points
            start += height * width
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).to(inputs.device)
        size = table[:, :2]
        return cls(size=size.double(), is_power_of_two=(size & (size - 1)) == 0, start=table[:, 2])


def coordinate_error(
    locations: Tensor, table: LevelTable, value_dtype: torch.dtype, location_dtype: torch.dtype, arithmetic: Arithmetic
) -> Tensor:
    """Bound |computed - exact| of the pixel coordinate loc * W - 1/2, in pixels.

    For the "pixel" form the bound is the larger of two exact analyses. Without contraction the product errs by
    u(1+u)|loc W| unless W is a power of two, and the subtraction by u(1+u)|x| unless loc W lies in [1/4, 2^22), where
    it is exact. With a fused multiply-add there is one rounding, u|x|, and none where the result is representable.

    Args:
        locations: (..., P, 2) float64, the stored locations.
        table: levels of the P samples.
        value_dtype: decides the compute dtype.
        location_dtype: the stored dtype, used when the subject computes coordinates in it.
        arithmetic: the subject's declaration.

    Returns:
        (..., P, 2) float64.
    """
    compute = compute_dtype(value_dtype)
    unit = UNIT_ROUNDOFF[location_dtype if arithmetic.coordinate_dtype == "storage" else compute]
    scaled = locations * table.size
    distance = (scaled - 0.5).abs()
    if arithmetic.coordinates == "grid":
        # g = 2 loc - 1, then ((g + 1) W - 1) / 2: one rounding per step, the first two amplified by W / 2.
        steps = distance + scaled.abs() + 1.0 + table.size / 2 * ((2 * locations - 1).abs() + (2 * locations).abs())
        return unit * steps
    grown = unit * (1.0 + unit)
    above = scaled >= EXACT_FROM
    product = torch.where(table.is_power_of_two, 0.0, grown * scaled.abs())
    subtraction = torch.where(above & (scaled < EXACT_BELOW), 0.0, grown * distance)
    fused = torch.where(table.is_power_of_two & above, 0.0, unit * distance)
    tiny = torch.where(scaled.abs() < UNDERFLOWS_BELOW[compute], SMALLEST_NORMAL[compute], 0.0)
    return torch.maximum(product + subtraction, fused) + tiny


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Pixel coordinates loc * W - 1/2 as origin + offset, both float64 of the locations' shape.

    Attributes:
        origin: integers; 0 where the coordinate is kept in one piece.
        offset: the rest. Split off by rational arithmetic it is at most 1/2 and correctly rounded, however large the
            coordinate: no location is then on the wrong side of a pixel edge.
    """

    origin: Tensor
    offset: Tensor

    def rows(self, rows: slice) -> Place:
        """Return some of the rows."""
        return Place(origin=self.origin[rows], offset=self.offset[rows])


def place(locations: Tensor, table: LevelTable) -> Place:
    """Compute coordinates in float64: exact for float32 locations, and rounded like a kernel's for float64 ones."""
    offset = locations * table.size - 0.5
    return Place(origin=torch.zeros_like(offset), offset=offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stencil:
    """A chunk of T (batch, query, head) triples with P samples each, in float64.

    The last axis of two is (x, y). Window pixels run (row, column), 3 x 3, from `base`.

    Attributes:
        live: (T, P) bool; False where no correct kernel may let the sample contribute (skipped samples).
        error: (T, P, 2) bound of the coordinate error, 0 where not live.
        two: (T, P, 2) bool; the coordinate may fall into either of two neighbouring cells.
        upper: (T, P, 2) bool; the exact coordinate lies in the second of the two (on its lower edge counts).
        hat: (T, P, 2, 3) interpolation factors max(0, 1 - |x - column|) of the exact coordinate.
        touched: (T, P, 3, 3) bool; the pixel exists and a correct kernel may read it.
        pixel: (T, P, 3, 3) int64 position on the S axis, 0 where not touched.
    """

    live: Tensor
    error: Tensor
    two: Tensor
    upper: Tensor
    hat: Tensor
    touched: Tensor
    pixel: Tensor


def locate(at: Place, table: LevelTable, error: Tensor) -> Stencil:
    """Find the window of each sample.

    Args:
        at: (T, P, 2) pixel coordinates.
        table: levels of the P samples.
        error: (T, P, 2) from `coordinate_error`.

    Raises:
        ValueError: the coordinate error of a live sample reaches half a pixel, so that the window would not hold it.
    """
    exact = at.offset
    # Comparisons with NaN are false, so NaN and infinite locations are not live.
    near = (exact + error >= -1.0 - at.origin) & (exact - error <= table.size - at.origin)
    live = near.all(dim=-1)
    keep = live.unsqueeze(-1)
    # -3 puts the whole window of a skipped sample outside the map.
    exact = torch.where(keep, exact, -3.0)
    origin = torch.where(keep, at.origin, 0.0)
    error = torch.where(keep, error, 0.0)
    base = (exact - error).ceil() - 1.0
    last = (exact + error).floor()
    two = last > base
    upper = exact >= base + 1.0
    offsets = torch.arange(3, device=exact.device, dtype=torch.float64)
    columns = base.unsqueeze(-1) + offsets
    hat = (1.0 - (exact.unsqueeze(-1) - columns).abs()).clamp_min(0.0)
    needed = columns <= last.unsqueeze(-1) + 1.0
    columns = columns + origin.unsqueeze(-1)
    inside = needed & (columns >= 0) & (columns < table.size.unsqueeze(-1)) & keep.unsqueeze(-1)
    touched = inside[..., 1, :, None] & inside[..., 0, None, :]
    columns = columns.long()
    width = table.size[:, 0].long()[:, None, None]
    pixel = table.start[:, None, None] + columns[..., 1, :, None] * width + columns[..., 0, None, :]
    return Stencil(
        live=live,
        error=error,
        two=two,
        upper=upper,
        hat=hat,
        touched=touched,
        pixel=torch.where(touched, pixel, 0),
    )
