"""Where the samples lie: one function per location pattern, from random words to normalised coordinates.

Each pattern computes all coordinates at once, and every sample then takes those of its own pattern. Most patterns also
choose per sample whether x, y or both follow them, the other coordinate lying anywhere inside: faults that one good
coordinate hides or that one bad one causes need both kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from properties import counter
from properties.fills import store
from properties.lattice import edge_bit, location_bits

_INTEGERS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}
_INTEGERS[torch.bfloat16] = torch.int16

_LOW_BITS = 11  # the bits that `counter.uniform` leaves unused
_LOW = (1 << _LOW_BITS) - 1
_MAX_ULPS = 3
_LOCAL_PIXELS = 4.0
_FAR = 500.0
_HUGE = 1e30
_GOLDEN = (0.6180339887498949, 0.7548776662466927)  # the reference points of successive queries spread out evenly

# Patterns that speak of both coordinates of a sample together.
_JOINT = frozenset({"inside", "local", "away", "pile", "lattice"})


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """What a pattern works from.

    Attributes:
        size: float64 (L, 1, 2), the (W, H) of each level.
        fraction: float64 (B, Q, M, L, K, 2), uniform in [0, 1).
        low: int64 like `fraction`, uniform in [0, 2048), independent of it.
        dtype: of the stored locations.
        seed: the recipe's.
        levels: (H, W) of each level.
        fraction_bits: of the pixel coordinates on a lattice.
    """

    size: Tensor
    fraction: Tensor
    low: Tensor
    dtype: torch.dtype
    seed: int
    levels: tuple[tuple[int, int], ...]
    fraction_bits: int

    def pick(self, choices: int) -> Tensor:
        """Integers in [0, choices)."""
        return (self.low * choices) >> _LOW_BITS

    def common(self, number: int) -> float:
        """One of the numbers in [0, 1) that hold for the whole tensor."""
        return (counter.integer(self.seed, 100 + number) >> 11) * 2.0**-53


# The pixel coordinate is x_im = loc * W - 1/2. The patterns below compute x_im + 1/2 exactly or nearly so, and divide
# once by W: the location is then the best that float64, and after one more rounding the storage dtype, can say.


def _inside(draw: _Draw) -> Tensor:
    return draw.fraction


def _local(draw: _Draw) -> Tensor:
    queries = draw.fraction.shape[1]
    step = torch.tensor(_GOLDEN, dtype=torch.float64, device=draw.size.device)
    reference = torch.arange(queries, dtype=torch.float64, device=draw.size.device).view(-1, 1, 1, 1, 1) * step
    reference.add_(draw.common(0)).frac_()
    return draw.fraction.sub(0.5).mul_(2 * _LOCAL_PIXELS).div_(draw.size).add_(reference)


def _away(draw: _Draw) -> Tensor:
    # Cells from -1 to W - 1, and a fraction in [0.1, 0.9] of the way through the cell.
    scaled = draw.fraction * (draw.size + 1.0)
    cell = scaled.floor()
    return scaled.sub_(cell).mul_(0.8).add_(cell).sub_(0.4).div_(draw.size)


def _pile(draw: _Draw) -> Tensor:
    # In the inner three quarters of one cell of each level, so that rounding to 16 bits leaves most samples there.
    cell = (draw.size * draw.common(1)).floor_()
    return draw.fraction.mul(0.75).add_(cell).add_(0.625).div_(draw.size)


def _edge(draw: _Draw) -> Tensor:
    return draw.fraction.mul(draw.size + 2.0).floor_().sub_(0.5).div_(draw.size)


def _ulps(draw: _Draw) -> Tensor:
    # Neighbouring floats are neighbouring integers. No edge is at location 0, where that would fail.
    integers = _INTEGERS[draw.dtype]
    steps = draw.pick(2 * _MAX_ULPS + 1).sub_(_MAX_ULPS).to(integers)
    return store(_edge(draw), draw.dtype).view(integers).add_(steps).view(draw.dtype).to(torch.float64)


def _border(draw: _Draw) -> Tensor:
    # Side 0 or 1 of the map, and half a pixel before, on or after it.
    pick = draw.pick(6)
    halves = (pick >> 1).sub_(1).to(torch.float64).mul_(0.5)
    return (pick & 1).to(torch.float64).mul(draw.size).add_(halves).div_(draw.size)


def _outside(draw: _Draw) -> Tensor:
    # (-2, 0) before the map, and (W - 1, W + 1) after it.
    after = (draw.fraction >= 0.5).to(torch.float64)
    return draw.fraction.mul(4.0).sub_(1.5).add_(after.mul(draw.size - 1.0)).div_(draw.size)


def _far(draw: _Draw) -> Tensor:
    # [-2, -0.75) and [1.75, 3), a quarter of them hundreds of maps away: too far out for a map of one pixel even, so a
    # sample of this pattern is skipped whatever its other coordinate is.
    place = draw.fraction.mul(2.5).sub_(1.25)
    place.add_((place >= 0).to(torch.float64).mul_(2.5).sub_(0.75))
    return torch.where(draw.pick(4) == 0, place * _FAR, place)


def _either_sign(draw: _Draw, magnitude: Tensor) -> Tensor:
    return magnitude.mul_((draw.low & 1).mul_(-2).add_(1))


def _huge(draw: _Draw) -> Tensor:
    magnitude = torch.full_like(draw.fraction, _HUGE).masked_fill_((draw.low & 2) != 0, torch.finfo(draw.dtype).max)
    return _either_sign(draw, magnitude)


def _infinite(draw: _Draw) -> Tensor:
    return _either_sign(draw, torch.full_like(draw.fraction, math.inf))


def _nan(draw: _Draw) -> Tensor:
    return torch.full_like(draw.fraction, math.nan)


def _lattice(draw: _Draw) -> Tensor:
    """Locations k 2^-m, from the line x_im = -1 to the line x_im = W, or up to one step further.

    Half of the coordinates are moved to a place near by where x_im is an integer, if the lattice has any.
    """
    rows = []
    for height, width in draw.levels:
        for side in (width, height):
            bits = location_bits(side, draw.dtype, draw.fraction_bits)
            margin = -(-(1 << bits) // (2 * side))
            edge = edge_bit(side, bits)
            rows.append((2.0**-bits, -margin, (1 << bits) + margin, 0.0 if edge is None else 2.0**edge))
    table = torch.tensor(rows, dtype=torch.float64).to(draw.size.device).view(-1, 1, 2, 4)
    grain, first, last, bit = table.unbind(-1)
    k = draw.fraction.mul(last - first + 1.0).floor_().add_(first)
    # The next k whose lowest bit that is set is this one: an odd multiple of it.
    moved = k.div(2.0 * bit).floor_().mul_(2.0).add_(1.0).mul_(bit)
    moved = torch.where(moved > last, moved - 2.0 * bit, moved)
    on_edge = ((draw.low & 1) == 0) & (bit > 0.0)
    return torch.where(on_edge, moved, k).mul_(grain)


_PATTERNS: dict[str, Callable[[_Draw], Tensor]] = {
    "inside": _inside,
    "local": _local,
    "away": _away,
    "pile": _pile,
    "edge": _edge,
    "ulps": _ulps,
    "border": _border,
    "outside": _outside,
    "far": _far,
    "huge": _huge,
    "infinite": _infinite,
    "nan": _nan,
    "lattice": _lattice,
}


def locate(
    patterns: tuple[str, ...],
    levels: tuple[tuple[int, int], ...],
    sample_word: Tensor,
    coordinate_word: Tensor,
    dtype: torch.dtype,
    seed: int,
    *,
    fraction_bits: int = 1,
) -> Tensor:
    """Place the samples.

    Sample i belongs to a pattern by its random word, except that the first samples take one pattern each in order: a
    pattern that is listed then occurs, if there are enough samples.

    Args:
        patterns: each one of recipe.LOCATION_PATTERNS, or "lattice".
        levels: (H, W) of each level.
        sample_word: int64 random words (B, Q, M, L, K).
        coordinate_word: int64 random words (B, Q, M, L, K, 2).
        dtype: of the stored locations.
        seed: the recipe's, for choices that all samples share.
        fraction_bits: of the pixel coordinates of "lattice".

    Returns:
        Locations (B, Q, M, L, K, 2) of `dtype`, (x, y) in the last dimension.
    """
    device = coordinate_word.device
    sizes = torch.tensor([(width, height) for height, width in levels], dtype=torch.float64)
    draw = _Draw(
        size=sizes.view(-1, 1, 2).to(device),
        fraction=counter.uniform(coordinate_word),
        low=coordinate_word & _LOW,
        dtype=dtype,
        seed=seed,
        levels=levels,
        fraction_bits=fraction_bits,
    )
    group = _groups(sample_word, len(patterns)) if len(patterns) > 1 else None
    follows = _axes(sample_word) if not _JOINT.issuperset(patterns) else None
    location = draw.fraction
    for number, pattern in enumerate(patterns):
        chosen = None if group is None else group == number
        if pattern not in _JOINT and follows is not None:
            chosen = follows if chosen is None else chosen & follows
        placed = _PATTERNS[pattern](draw)
        location = placed if chosen is None else torch.where(chosen, placed, location)
    return store(location, dtype)


def _groups(sample_word: Tensor, count: int) -> Tensor:
    """The pattern number of every sample, int64 (B, Q, M, L, K, 1)."""
    group = counter.below(sample_word, count)
    first = group.view(-1)[:count]
    first.copy_(torch.arange(first.numel(), device=group.device))
    return group.unsqueeze(-1)


def _axes(sample_word: Tensor) -> Tensor:
    """Which coordinates follow the pattern: both in half of the samples, else x or y alone; bool (..., 2)."""
    other = torch.arange(1, -1, -1, device=sample_word.device)
    return (sample_word & 3).unsqueeze(-1) != other
