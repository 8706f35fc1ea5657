"""Exact arithmetic by construction: how many bits the numbers of a lattice recipe need, and which of them fit.

With locations k 2^-m, integer values and gradients, and weights that are multiples of a power of two, every product and
every partial sum of the operator is a multiple of some grain. While all of them stay below 2^p grains, p being the
significand of the format that they are computed in, nothing is ever rounded: in any order of addition, with fused
multiply-adds or without, with atomics or without. The result is then the exact one, rounded once to storage, and two
correct kernels agree bitwise.

With x_im = k W 2^-m - 1/2, f fraction bits of the coordinates (so that a bilinear factor is a multiple of 2^-fx 2^-fy),
|value| <= 2^v, |grad| <= 2^q, weights multiples of 2^-r and at most 2^s, the largest sums are, in grains:

    out                        L K 2^(s+v) / 2^-(fx+fy+r)
    grad_attention_weights     D 2^(v+q) / 2^-(fx+fy)
    grad_sampling_locations    2 W D 2^(s+v+q) / 2^-(f+r)       f of the other axis
    grad_value                 n 2^(s+q) / 2^-(fx+fy+r)         n contributions to one pixel, at most Q K
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from reference.model import Arithmetic, compute_dtype

if TYPE_CHECKING:
    from properties.recipe import Recipe

SIGNIFICAND = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# The forms that subtract pixels before they weigh them have intermediate results up to four times as large.
_LERP_BITS = 2
# Locations on a lattice reach half a map beyond either end of the smallest map.
_LARGEST_LOCATION = 1.5


class Bits(NamedTuple):
    """Bits that a significand must have, and those that it has."""

    used: int
    allowed: int

    @property
    def fits(self) -> bool:
        """Whether nothing is rounded."""
        return self.used <= self.allowed


def _twos(side: int) -> int:
    """How often 2 divides a side."""
    return (side & -side).bit_length() - 1


def location_bits(side: int, dtype: torch.dtype, fraction: int) -> int:
    """Return m: locations on an axis of `side` pixels are multiples of 2^-m.

    A side that is even t times over shows only m - t of them in the pixel coordinate, so m grows with t; but a location
    near 3/2 needs m + 1 bits, and its dtype has no more than it has.
    """
    return min(fraction + _twos(side), SIGNIFICAND[dtype] - 1)


def fraction_bits(side: int, dtype: torch.dtype, fraction: int) -> int:
    """Return how many bits of fraction a pixel coordinate has on an axis of `side` pixels: 1, for the -1/2, or more."""
    return max(1, location_bits(side, dtype, fraction) - _twos(side))


def edge_bit(side: int, bits: int) -> int | None:
    """Return the e for which k 2^-bits lies on a pixel edge exactly if 2^e is the highest power of two in k.

    The coordinate k side 2^-bits - 1/2 is an integer exactly if k side is an odd multiple of 2^(bits - 1).

    Returns:
        The exponent, or None where no k does.
    """
    exponent = bits - 1 - _twos(side)
    return exponent if exponent >= 0 else None


def lattice_budget(recipe: Recipe, arithmetic: Arithmetic | None = None) -> dict[str, Bits]:
    """Prove, or refute, that nothing is rounded: the bits that each kind of number needs at most, and has.

    Args:
        recipe: sizes, dtypes, and a lattice.
        arithmetic: what the subject declares; decides the format of grad_value's accumulator and of coordinates.

    Returns:
        One entry for each operand, for the coordinates and for each output.

    Raises:
        ValueError: the recipe has numbers that are not on a lattice.
    """
    arithmetic = arithmetic or Arithmetic()
    lattice, cell = recipe.lattice, recipe.cell
    if lattice is None or not is_lattice(recipe):
        raise ValueError(f"{recipe!r} has patterns that are not on a lattice; expected lattice, integer and dyadic")
    compute = compute_dtype(cell.value)
    room = SIGNIFICAND[compute]
    coordinate_room = SIGNIFICAND[cell.locations] if arithmetic.coordinate_dtype == "storage" else room
    accumulator = cell.value if arithmetic.accumulate == "native" else compute
    extra = _LERP_BITS if arithmetic.interpolation == "lerp" else 0
    fractions = [
        tuple(fraction_bits(side, cell.locations, lattice.fraction) for side in (width, height))
        for height, width in recipe.levels
    ]
    blend = max((fx + fy for fx, fy in fractions), default=2)
    # Sums over samples mix the grains of all levels: the finest counts, with the largest sum.
    samples = len(recipe.levels) * recipe.points
    along = max(
        (max(width << fy, height << fx) for (height, width), (fx, fy) in zip(recipe.levels, fractions, strict=True)),
        default=1,
    )
    # (2 W + 1) covers the grid form, whose (g + 1) W is twice as large.
    place = max(
        (
            math.ceil(_LARGEST_LOCATION * (2 * side + 1)) << fraction
            for (height, width), (fx, fy) in zip(recipe.levels, fractions, strict=True)
            for side, fraction in ((width, fx), (height, fy))
        ),
        default=1,
    )
    contributions = recipe.queries * recipe.points
    weight = lattice.step + lattice.weight
    return {
        "value": Bits(lattice.value, SIGNIFICAND[cell.value]),
        "grad_output": Bits(lattice.grad, SIGNIFICAND[cell.value]),
        "weights": Bits(weight, SIGNIFICAND[cell.weights]),
        "coordinates": Bits(_bits(place), coordinate_room),
        "out": Bits(_bits(samples) + blend + weight + lattice.value + extra, room),
        "grad_attention_weights": Bits(_bits(recipe.channels) + blend + lattice.value + lattice.grad + extra, room),
        "grad_sampling_locations": Bits(
            _bits(2 * along * recipe.channels) + weight + lattice.value + lattice.grad + extra, room
        ),
        "grad_value": Bits(_bits(contributions) + blend + weight + lattice.grad, SIGNIFICAND[accumulator]),
    }


def _bits(count: int) -> int:
    """Bits for integers of up to `count` in magnitude; 2^p itself fits into p bits."""
    return max(0, count - 1).bit_length()


def is_lattice(recipe: Recipe) -> bool:
    """Whether all numbers of a recipe are on a lattice, apart from the locations of samples that are skipped."""
    skipped = {"far", "infinite", "nan"}
    return (
        "lattice" in recipe.locations
        and skipped.issuperset(set(recipe.locations) - {"lattice"})
        and (recipe.value, recipe.grad_output, recipe.weights) == ("integer", "integer", "dyadic")
        and not recipe.hot
    )


def fits(recipe: Recipe, arithmetic: Arithmetic | None = None) -> bool:
    """Whether a lattice recipe is within all of its budgets."""
    return all(bits.fits for bits in lattice_budget(recipe, arithmetic).values())


def widen(recipe: Recipe, wanted: Sequence[tuple[str, int]], arithmetic: Arithmetic | None = None) -> Recipe:
    """Give the numbers of a lattice recipe the bits that are wanted, as far as the budgets go.

    Args:
        recipe: within its budgets, with as few bits as there may be.
        wanted: (field of Lattice, bits), the first one first served.
        arithmetic: what the subject declares.
    """
    assert recipe.lattice is not None
    for name, bits in wanted:
        for fewer in range(bits, getattr(recipe.lattice, name), -1):
            wider = dataclasses.replace(recipe, lattice=recipe.lattice._replace(**{name: fewer}))
            if fits(wider, arithmetic):
                recipe = wider
                break
    return recipe


def shrink_sizes(recipe: Recipe, arithmetic: Arithmetic | None = None) -> Recipe:
    """Reduce the sizes of a lattice recipe until its numbers, however few bits they have, are within the budgets.

    At the sizes that are drawn this concerns 16-bit accumulators and 16-bit coordinates alone.
    """
    while not fits(recipe, arithmetic):
        over = [name for name, bits in lattice_budget(recipe, arithmetic).items() if not bits.fits]
        smaller = next((less for less in (step(recipe) for step in _SMALLER[over[0]]) if less != recipe), None)
        if smaller is None:
            raise ValueError(f"{recipe!r} has no room for a lattice: {lattice_budget(recipe, arithmetic)}")
        recipe = smaller
    return recipe


def _halved(name: str) -> Callable[[Recipe], Recipe]:
    return lambda recipe: dataclasses.replace(recipe, **{name: max(1, getattr(recipe, name) // 2)})


def _halved_sides(recipe: Recipe) -> Recipe:
    longest = max(side for level in recipe.levels for side in level)
    most = max(1, longest // 2)
    return dataclasses.replace(recipe, levels=tuple((min(h, most), min(w, most)) for h, w in recipe.levels))


# What may give way for each quantity that has a budget of its own.
_SMALLER: dict[str, tuple[Callable[[Recipe], Recipe], ...]] = {
    "coordinates": (_halved_sides,),
    "out": (_halved("points"), lambda recipe: dataclasses.replace(recipe, levels=recipe.levels[:1])),
    "grad_attention_weights": (_halved("channels"),),
    "grad_sampling_locations": (_halved("channels"), _halved_sides),
    "grad_value": (_halved("queries"), _halved("points")),
}
