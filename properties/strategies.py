"""Hypothesis strategies that draw recipes.

Only structure is drawn: sizes, patterns, layouts, a seed and now and then a few samples by hand. Every list of choices
has its simplest first, and what is rare hides behind a boolean, so a failing recipe shrinks to one query, one head, one
channel, one pixel and one point, except for what the failure needs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from properties.cells import DtypeCell
from properties.classes import NAMED_CHANNELS, classes
from properties.explicit import OPERANDS
from properties.lattice import shrink_sizes, widen
from properties.limits import FOCUSES, Limits, Sizes, fit
from properties.recipe import (
    LATTICE_LOCATIONS,
    LATTICE_VALUES,
    LATTICE_WEIGHTS,
    LAYOUTS,
    LOCATION_PATTERNS,
    MAX_HOT,
    VALUE_PATTERNS,
    WEIGHT_PATTERNS,
    Hot,
    Lattice,
    Recipe,
)
from reference.model import Arithmetic

__all__ = ["Limits", "crowded_recipes", "empty_recipes", "lattice_recipes", "recipes"]

_NOT_FINITE = frozenset({"infinite", "nan"})
_MAX_PATTERNS = 3
_MAX_COUNT = 8  # levels, points and heads

_SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 24, 31, 32, 33)
_LONG_SIDES = (1000, 1023, 1024, 1333, 1999, 2000)
_PRIMES = (2, 3, 5, 13)
_LARGER_PRIMES = (97, 257)
# Past the 256 and the 2048 contributions that end the range of a 16-bit accumulator, and of no block's size.
_CROWDS = (67, 259, 1031, 2053, 3011)

_batch = st.sampled_from((1, 1, 1, 2, 3))
_count = st.integers(1, _MAX_COUNT)
_levels = st.lists(st.tuples(st.sampled_from(_SIDES), st.sampled_from(_SIDES)), min_size=1, max_size=_MAX_COUNT)
_long_level = st.tuples(st.sampled_from(_LONG_SIDES), st.sampled_from((1, 2, 3)), st.booleans())
_focus = st.sampled_from(FOCUSES)
_seed = st.integers(0, 2**32 - 1)
_rarely = st.sampled_from((False,) * 5 + (True,))
_lattice_order = st.permutations(Lattice._fields)
# As many as 53 bits have room for; a 24-bit budget cuts whatever comes late in the order.
_lattice_bits = {"fraction": 10, "value": 12, "grad": 12, "step": 8, "weight": 3}
_lattice_locations = st.sampled_from(
    (*(LATTICE_LOCATIONS,) * 4, *((*LATTICE_LOCATIONS, pattern) for pattern in ("far", "infinite", "nan")))
)
_layouts = st.sampled_from(LAYOUTS)
# Swapping batch and queries makes a difference only where there are several of both: drawn twice as often.
_grad_layouts = st.sampled_from((*LAYOUTS, "permuted"))


def recipes(
    cell: DtypeCell,
    *,
    limits: Limits,
    locations: tuple[str, ...] = LOCATION_PATTERNS,
    values: tuple[str, ...] = VALUE_PATTERNS,
    grads: tuple[str, ...] = VALUE_PATTERNS,
    weights: tuple[str, ...] = WEIGHT_PATTERNS,
    layouts: bool = True,
    hot: bool | None = None,
    finite: bool = False,
) -> SearchStrategy[Recipe]:
    """Draw recipes of one dtype cell, none of them empty.

    Each recipe counts its classes as Hypothesis events, so `--hypothesis-show-statistics` lists them.

    Args:
        cell: storage dtypes.
        limits: block edges to draw around, and budgets to stay within.
        locations: the location patterns to draw from, simplest first.
        values: the value patterns to draw from, simplest first.
        grads: the grad_output patterns to draw from, simplest first.
        weights: the weight patterns to draw from, simplest first.
        layouts: whether to draw layouts other than contiguous.
        hot: whether to draw samples by hand. Default: only with the full list of location patterns.
        finite: whether locations must be finite as they are stored, which leaves out "huge" in float16 too.

    Returns:
        A strategy whose simplest recipe has every size 1, everything contiguous, and the first pattern of each list.

    Raises:
        ValueError: if a list of patterns is empty or has an unknown one.
    """
    if hot is None:
        hot = set(locations) == set(LOCATION_PATTERNS)
    finite = finite or limits.finite or limits.moderate
    layouts = layouts and not limits.contiguous
    # 1e30 is infinite in float16.
    huge = limits.moderate or (finite and cell.locations == torch.float16)
    unwanted = (_NOT_FINITE if finite else frozenset()) | ({"huge"} if huge else set())
    locations = tuple(pattern for pattern in locations if pattern not in unwanted)
    allowed = tuple(pattern for pattern in LOCATION_PATTERNS if pattern not in unwanted)
    for name, given, known in (
        ("locations", locations, allowed),
        ("values", values, VALUE_PATTERNS),
        ("grads", grads, VALUE_PATTERNS),
        ("weights", weights, WEIGHT_PATTERNS),
    ):
        if not given or not set(given).issubset(known):
            raise ValueError(f"{name} is {given!r}; expected at least one of {', '.join(known)}")
    return _recipes(
        cell,
        limits,
        _Choices(
            queries=st.sampled_from(_query_choices(limits)),
            channels=st.sampled_from(_channel_choices(limits)),
            locations=_some(locations, _MAX_PATTERNS),
            values=_often_first(values),
            grads=_often_first(grads),
            weights=st.sampled_from(weights),
            layouts=st.booleans() if layouts else st.just(False),
            hot=_rarely if hot else st.just(False),
            finite=finite,
        ),
    )


def crowded_recipes(cell: DtypeCell, *, limits: Limits) -> SearchStrategy[Recipe]:
    """Draw recipes in which many queries meet in few pixels; the budgets allow thousands on a GPU, hundreds without.

    Args:
        cell: storage dtypes.
        limits: as for `recipes`.
    """
    return _recipes(
        cell,
        limits,
        _Choices(
            queries=st.sampled_from(_CROWDS),
            channels=st.sampled_from((1, 2, 3, 16, 32)),
            locations=st.sampled_from((("pile",), ("pile", "edge"), ("pile", "inside"))),
            values=_often_first(VALUE_PATTERNS),
            grads=_often_first(VALUE_PATTERNS),
            weights=st.sampled_from(("softmax", "raw", "negative")),
            layouts=st.just(False),
            hot=st.just(False),
            finite=False,
            keep=st.just("queries"),
        ),
    )


def lattice_recipes(
    cell: DtypeCell,
    *,
    limits: Limits,
    arithmetic: Arithmetic | None = None,
    layouts: bool = True,
    skipped: bool = True,
) -> SearchStrategy[Recipe]:
    """Draw recipes on which no operation of a correct kernel rounds, so that its results are known bitwise.

    Bits are drawn as sizes are: freely, and then reduced to what fits into the budgets of properties.lattice.

    Args:
        cell: storage dtypes.
        limits: as for `recipes`.
        arithmetic: what the subject declares: a 16-bit accumulator, or 16-bit coordinates, leave fewer bits.
        layouts: whether to draw layouts other than contiguous.
        skipped: whether some samples may be far away or not finite.
    """
    layouts = layouts and not limits.contiguous
    skipped = skipped and not (limits.finite or limits.moderate)
    return _recipes(
        cell,
        limits,
        _Choices(
            queries=st.sampled_from(_query_choices(limits)),
            channels=st.sampled_from(_channel_choices(limits)),
            locations=_lattice_locations if skipped else st.just(LATTICE_LOCATIONS),
            values=st.sampled_from(LATTICE_VALUES),
            grads=st.sampled_from(LATTICE_VALUES),
            weights=st.sampled_from(LATTICE_WEIGHTS),
            layouts=st.booleans() if layouts else st.just(False),
            hot=st.just(False),
            finite=True,
            lattice=arithmetic or Arithmetic(),
        ),
    )


def empty_recipes(cell: DtypeCell, *, limits: Limits) -> SearchStrategy[Recipe]:
    """Draw recipes in which one or two of B, Q, M, D, K and the number of levels are 0.

    Args:
        cell: storage dtypes.
        limits: as for `recipes`.
    """
    names = _some(("queries", "batch", "points", "levels", "heads", "channels"), 2)
    return st.builds(_emptied, recipes(cell, limits=limits, hot=False), names)


def _emptied(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    emptied: dict[str, Any] = {name: () if name == "levels" else 0 for name in names}
    return dataclasses.replace(recipe, **emptied)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Choices:
    """The strategies that one call of `recipes` sets up once, to draw from for every recipe."""

    queries: SearchStrategy[int]
    channels: SearchStrategy[int]
    locations: SearchStrategy[tuple[str, ...]]
    values: SearchStrategy[str]
    grads: SearchStrategy[str]
    weights: SearchStrategy[str]
    layouts: SearchStrategy[bool]
    hot: SearchStrategy[bool]
    finite: bool
    lattice: Arithmetic | None = None
    keep: SearchStrategy[str] = _focus


def _query_choices(limits: Limits) -> list[int]:
    edges = {times * block + step for block in limits.queries for times in (1, 2) for step in (-1, 0, 1)}
    primes = _PRIMES if limits.max_steps is not None else _PRIMES + _LARGER_PRIMES
    return sorted({1, *primes, *edges} - {0})


def _channel_choices(limits: Limits) -> list[int]:
    around = {block + step for block in (8, 16, 24, 32, 64, 128, *limits.channels) for step in (-1, 0, 1)}
    # The sizes that field reports name are drawn five times as often as their neighbours; the largest, which seldom
    # fits its budget, more often still.
    return sorted([*({2, 255} | around), *NAMED_CHANNELS * 4, *(NAMED_CHANNELS[-1],) * 4])


def _some(names: tuple[str, ...], most: int) -> SearchStrategy[tuple[str, ...]]:
    # Not `unique=True`: there a name's choice depends on the names before it, so none could be removed by itself.
    return st.lists(st.sampled_from(names), min_size=1, max_size=most).map(lambda drawn: tuple(dict.fromkeys(drawn)))


def _often_first(patterns: tuple[str, ...]) -> SearchStrategy[str]:
    return st.sampled_from((patterns[0], patterns[0], *patterns))


@st.composite
def _recipes(draw: Callable, cell: DtypeCell, limits: Limits, choices: _Choices) -> Recipe:
    sizes, keep = _draw_sizes(draw, choices)
    fit(sizes, limits, keep=keep)
    vary = draw(choices.layouts)
    layouts: dict[str, Any] = {}
    if vary:
        of = {operand: _grad_layouts if operand == "grad_output" else _layouts for operand in OPERANDS}
        layouts = {f"{operand}_layout": draw(of[operand]) for operand in OPERANDS}
    recipe = Recipe(
        cell=cell,
        batch=sizes.batch,
        queries=sizes.queries,
        heads=sizes.heads,
        channels=sizes.channels,
        points=sizes.points,
        levels=tuple(sizes.levels),
        locations=draw(choices.locations),
        weights=draw(choices.weights),
        value=draw(choices.values),
        grad_output=draw(choices.grads),
        seed=draw(_seed),
        lattice=None if choices.lattice is None else Lattice(),
        **layouts,
    )
    if choices.lattice is not None:
        recipe = _draw_lattice(draw, recipe, choices.lattice)
    if draw(choices.hot):
        recipe = dataclasses.replace(recipe, hot=_draw_hot(draw, recipe, finite=choices.finite))
    for label in classes(recipe, limits=limits):
        event(label)
    return recipe


def _draw_sizes(draw: Callable, choices: _Choices) -> tuple[Sizes, str]:
    keep = draw(choices.keep)
    sizes = Sizes(
        batch=draw(_batch),
        queries=draw(choices.queries),
        heads=draw(_count),
        channels=draw(choices.channels),
        points=draw(_count),
        levels=draw(_levels),
    )
    if draw(_rarely):
        long, short, wide = draw(_long_level)
        # A long level needs so much of the budget that nothing else could be kept beside it.
        keep = "levels"
        sizes.levels[0] = (short, long) if wide else (long, short)
    return sizes, keep


def _draw_lattice(draw: Callable, recipe: Recipe, arithmetic: Arithmetic) -> Recipe:
    order = draw(_lattice_order)
    wanted = [(name, draw(st.integers(0, _lattice_bits[name]))) for name in order]
    return widen(shrink_sizes(recipe, arithmetic), wanted, arithmetic)


def _draw_hot(draw: Callable, recipe: Recipe, *, finite: bool) -> tuple[Hot, ...]:
    hot = []
    for sample in draw(st.lists(st.integers(0, recipe.samples - 1), min_size=1, max_size=MAX_HOT, unique=True)):
        height, width = recipe.levels[sample // recipe.points % len(recipe.levels)]
        hot.append(Hot(sample, draw(_coordinate(width, finite=finite)), draw(_coordinate(height, finite=finite))))
    return tuple(hot)


def _coordinate(side: int, *, finite: bool) -> SearchStrategy[float]:
    """One coordinate: in the middle, on a pixel-centre line, anywhere near, or not a number that a map has."""
    centres = st.integers(-1, side).map(lambda pixel: (pixel + 0.5) / side)
    special = (0.0, 1.0, -1000.0) if finite else (0.0, 1.0, 1e30, -1e30, math.inf, -math.inf, math.nan)
    return st.one_of(st.just(0.5), centres, st.floats(-2.0, 3.0), st.sampled_from(special))
