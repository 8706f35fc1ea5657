"""Input classes: which of the conditions that a run must reach one recipe has.

Labels come from the recipe alone, so that counting them costs microseconds. A label is given only where the tensors
are certain, or as good as certain, to have the feature: a pattern that no sample follows does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from properties.cells import CELLS
from properties.explicit import OPERANDS
from properties.lattice import edge_bit, location_bits
from properties.layouts import drawn_index, drawn_shape, is_real
from properties.limits import Limits
from properties.recipe import (
    LAYOUTS,
    LOCATION_PATTERNS,
    VALUE_PATTERNS,
    WEIGHT_PATTERNS,
    Recipe,
)

NAMED_CHANNELS = (1, 3, 24, 30, 32, 64, 71, 128, 256)
LONG_SIDE = 1000
MANY_COLLISIONS = 8
_ENOUGH = 32  # elements from which on a random pattern shows: mostly zero, or wide in magnitude
_SMALL_SIDES = (1, 2, 3)


def classes(recipe: Recipe, *, limits: Limits | None = None) -> tuple[str, ...]:
    """Return the labels of a recipe's classes, each once, in a fixed order.

    Args:
        recipe: any recipe, empty ones included.
        limits: gives the block edges that the labels of queries and samples speak of. Default: those of the CPU.
    """
    return tuple(dict.fromkeys(_labels(recipe, limits or Limits.cpu())))


def _labels(recipe: Recipe, limits: Limits) -> Iterator[str]:
    yield f"cell: {recipe.cell.name}"
    if recipe.batch * recipe.pixels * recipe.heads * recipe.channels * recipe.samples == 0:
        yield "empty"
    yield f"batch: {recipe.batch}"
    for label in _query_labels(recipe.queries, limits.queries):
        yield f"queries: {label}"
    yield f"heads: {recipe.heads}"
    yield f"channels: {recipe.channels if recipe.channels in NAMED_CHANNELS else 'other'}"
    yield f"L: {len(recipe.levels)}"
    yield f"K: {recipe.points}"
    yield f"samples: {_samples_label(len(recipe.levels) * recipe.points, limits.samples)}"
    for height, width in recipe.levels:
        yield from (f"level: {label}" for label in _level_labels(height, width))
    yield from _location_labels(recipe)
    if recipe.lattice is not None:
        yield from _lattice_labels(recipe, recipe.lattice.fraction)
    yield f"weights: {recipe.weights}"
    for name, operand, pattern in (("value", "value", recipe.value), ("grad", "grad_output", recipe.grad_output)):
        layout = getattr(recipe, f"{operand}_layout")
        elements = math.prod(drawn_shape(operand, recipe.shape(operand), layout, recipe.seed))
        if pattern not in {"sparse", "wide"} or elements >= _ENOUGH:
            yield f"{name}: {pattern}"
    for operand in OPERANDS:
        layout = getattr(recipe, f"{operand}_layout")
        if is_real(operand, recipe.shape(operand), layout, recipe.seed):
            yield f"layout {operand}: {layout}"


def _query_labels(queries: int, blocks: tuple[int, ...]) -> Iterator[str]:
    if queries == 1:
        yield "1"
    for block in blocks:
        for times, edge in (("block edge", block), ("2 block edges", 2 * block)):
            if abs(queries - edge) <= 1:
                yield times + {-1: " -1", 0: "", 1: " +1"}[queries - edge]
    if queries > 1 and all(queries % divisor for divisor in range(2, math.isqrt(queries) + 1)):
        yield "prime"


def _samples_label(samples: int, blocks: tuple[int, ...]) -> str:
    if samples in blocks:
        return "block edge"
    return "below a block" if samples < min(blocks) else "above a block"


def _level_labels(height: int, width: int) -> Iterator[str]:
    for side in _SMALL_SIDES:
        if side in {height, width}:
            yield f"{side} pixel side"
    if height != width:
        yield "non-square"
    if height & (height - 1) or width & (width - 1):
        yield "not a power of two"
    if width >= LONG_SIDE:
        yield f"{LONG_SIDE} or wider"
    if height >= LONG_SIDE:
        yield f"{LONG_SIDE} or taller"


def _location_labels(recipe: Recipe) -> Iterator[str]:
    drawn = drawn_shape("locations", recipe.shape("locations"), recipe.locations_layout, recipe.seed)[:-1]
    overwritten = {drawn_index(one.sample, recipe.shape("weights"), drawn) for one in recipe.hot}
    # Sample i follows pattern i for certain while there are patterns; the other samples choose by their hash.
    for sample, pattern in enumerate(recipe.locations[: math.prod(drawn)]):
        if sample not in overwritten:
            yield f"location: {pattern}"
    if recipe.hot:
        yield "location: hot"
    if "pile" in recipe.locations and drawn[1] * drawn[4] >= MANY_COLLISIONS * len(recipe.locations):
        yield "collisions: many"


def _lattice_labels(recipe: Recipe, fraction: int) -> Iterator[str]:
    for side in sorted({side for level in recipe.levels for side in level}):
        if edge_bit(side, location_bits(side, recipe.cell.locations, fraction)) is not None:
            yield "lattice: pixel edges"
        if side & (side - 1):
            yield "lattice: not a power of two"


def _required() -> Iterator[str]:
    yield from (f"cell: {cell.name}" for cell in CELLS)
    yield from (f"queries: {label}" for label in ("1", "prime"))
    yield from (f"queries: {edges}{step}" for edges in ("block edge", "2 block edges") for step in (" -1", "", " +1"))
    yield from (f"batch: {count}" for count in range(1, 4))
    for name in ("heads", "L", "K"):
        yield from (f"{name}: {count}" for count in range(1, 9))
    yield from (f"channels: {count}" for count in (*NAMED_CHANNELS, "other"))
    yield from (f"samples: {label}" for label in ("below a block", "block edge", "above a block"))
    yield from (f"level: {side} pixel side" for side in _SMALL_SIDES)
    yield from (f"level: {shape}" for shape in ("non-square", "not a power of two"))
    yield from (f"level: {LONG_SIDE} or {longer}" for longer in ("wider", "taller"))
    yield from (f"location: {pattern}" for pattern in (*LOCATION_PATTERNS, "hot"))
    yield "collisions: many"
    yield from (f"weights: {pattern}" for pattern in WEIGHT_PATTERNS)
    yield from (f"{name}: {pattern}" for name in ("value", "grad") for pattern in VALUE_PATTERNS)
    yield from (f"layout {operand}: {layout}" for operand in OPERANDS for layout in LAYOUTS)


REQUIRED: frozenset[str] = frozenset(_required())
"""Every class that a default run over all dtype cells must reach."""
