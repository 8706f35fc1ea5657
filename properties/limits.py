"""Limits: what a drawn input may be, how large, and how sizes that are too large are reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recipe import Recipe

CHANNELS_PER_STEP = 64
"""Channels that one step of the interpreter is taken to cover when costs are estimated."""

# Channels drop to sizes that are worth a test themselves.
CHANNEL_LADDER = (1, 2, 3, 8, 16, 24, 30, 32, 64, 71, 128, 256)
_WIDE = 256


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Block edges of the subject, around which sizes are drawn, and the budgets that they must fit into.

    Attributes:
        queries: block sizes along the queries.
        samples: block sizes along the L * K samples of a query.
        channels: block sizes along the channels of a head.
        max_steps: programs times loop steps of one launch, None for no limit. The interpreter runs them one by one.
        max_value_elements: B * S * M * D.
        max_tile_elements: B * Q * M * L * K * D, what the reference works on.
        contiguous: whether operands must be contiguous.
        finite: whether locations must be finite as they are stored.
        moderate: whether pixel coordinates must also be in the range of int32.
    """

    queries: tuple[int, ...] = (8,)
    samples: tuple[int, ...] = (16,)
    channels: tuple[int, ...] = (32, 64)
    max_steps: int | None = None
    max_value_elements: int = 1 << 22
    max_tile_elements: int = 1 << 22
    contiguous: bool = False
    finite: bool = False
    moderate: bool = False

    def __post_init__(self) -> None:
        for name in ("queries", "samples", "channels"):
            edges = getattr(self, name)
            if not edges or min(edges) < 1:
                raise ValueError(f"{name} is {edges!r}; expected at least one positive block size")
        for name in ("max_steps", "max_value_elements", "max_tile_elements"):
            budget = getattr(self, name)
            if budget is not None and budget < 1:
                raise ValueError(f"{name} is {budget}; expected at least 1, the cost of the smallest input")

    @classmethod
    def cpu(cls, block_edges: Mapping[str, tuple[int, ...]] | None = None) -> Limits:
        """Limits for Triton's interpreter, which needs milliseconds a step.

        Args:
            block_edges: "queries", "samples" and "channels", each optional, as a Subject declares them.
        """
        edges = dict(block_edges or {})
        return replace(cls._around(edges), max_steps=24, max_value_elements=1 << 16, max_tile_elements=1 << 16)

    @classmethod
    def cuda(cls, block_edges: Mapping[str, tuple[int, ...]] | None = None) -> Limits:
        """Limits for a GPU, where the float64 reference sets the pace.

        Args:
            block_edges: as for `cpu`.
        """
        edges = {"queries": (16, 32), **dict(block_edges or {})}
        return replace(cls._around(edges), max_value_elements=1 << 21, max_tile_elements=1 << 21)

    @classmethod
    def _around(cls, edges: dict[str, tuple[int, ...]]) -> Limits:
        unknown = sorted(set(edges) - {"queries", "samples", "channels"})
        if unknown:
            raise ValueError(f"block_edges has {unknown}; expected queries, samples and channels alone")
        # A subject that declares no block size along a dimension keeps the default there.
        return replace(cls(), **{name: tuple(sizes) for name, sizes in edges.items() if sizes})  # type: ignore[arg-type]

    def at_most(self, steps: int) -> Limits:
        """Reduce what the interpreter is given to what can be run again and again; a GPU has no such limit."""
        return self if self.max_steps is None else replace(self, max_steps=min(self.max_steps, steps))

    def tiny(self) -> Limits:
        """The same block edges with budgets for checks that run the subject once per input element."""
        steps = 4 if self.max_steps is None else min(4, self.max_steps)
        return replace(self, max_steps=steps, max_value_elements=96, max_tile_elements=192)


@dataclass
class Sizes:
    """Sizes on their way into the budget, as in Recipe."""

    batch: int
    queries: int
    heads: int
    channels: int
    points: int
    levels: list[tuple[int, int]]

    @classmethod
    def of(cls, recipe: Recipe) -> Sizes:
        """Return the sizes of a recipe."""
        sizes = {name: getattr(recipe, name) for name in ("batch", "queries", "heads", "channels", "points")}
        return cls(**sizes, levels=list(recipe.levels))

    def steps(self, limits: Limits) -> int:
        """Interpreter steps: B * M * ceil(Q / block) * ceil(L * K / block) * ceil(D / 64)."""
        queries = -(-self.queries // min(limits.queries))
        samples = -(-len(self.levels) * self.points // min(limits.samples))
        return self.batch * self.heads * queries * samples * -(-self.channels // CHANNELS_PER_STEP)

    @property
    def value_elements(self) -> int:
        """B * S * M * D."""
        return self.batch * sum(height * width for height, width in self.levels) * self.heads * self.channels

    @property
    def tile_elements(self) -> int:
        """B * Q * M * L * K * D."""
        return self.batch * self.queries * self.heads * len(self.levels) * self.points * self.channels


FOCUSES = ("queries", "heads", "channels", "points", "levels", "batch")
"""What fitting may keep to the end; the order is that of a ring, each sacrificed before the one that follows."""


def fit(sizes: Sizes, limits: Limits, *, keep: str) -> None:
    """Reduce sizes in place until they are within the limits.

    Dimensions give way in a fixed order that begins after `keep` and ends with it, each one small notch at a time and
    only as far as needed. So every dimension stays large in the recipes that keep it, and sizes that fit stay what
    they were drawn as, which is all that a shrinker sees near the end.

    Args:
        sizes: what was drawn.
        limits: the budgets.
        keep: one of FOCUSES.
    """
    first = FOCUSES.index(keep) + 1
    order = FOCUSES[first:] + FOCUSES[:first]
    _reduce(sizes, order, _VALUE_NOTCHES, limits, lambda: sizes.value_elements > limits.max_value_elements)
    _reduce(sizes, order, _TILE_NOTCHES, limits, lambda: sizes.tile_elements > limits.max_tile_elements)
    if limits.max_steps is not None:
        steps = limits.max_steps
        _reduce(sizes, order, _TILE_NOTCHES, limits, lambda: sizes.steps(limits) > steps)


_Notch = Callable[[Sizes, Limits], bool]


def _reduce(
    sizes: Sizes, order: tuple[str, ...], notches: Mapping[str, _Notch], limits: Limits, excessive: Callable[[], bool]
) -> None:
    for name in order:
        notch = notches.get(name)
        while notch is not None and excessive() and notch(sizes, limits):
            pass


def _fewer_batches(sizes: Sizes, _limits: Limits) -> bool:
    sizes.batch -= sizes.batch > 1
    return sizes.batch > 1


def _fewer_heads(sizes: Sizes, _limits: Limits) -> bool:
    sizes.heads -= sizes.heads > 1
    return sizes.heads > 1


def _fewer_points(sizes: Sizes, _limits: Limits) -> bool:
    sizes.points -= sizes.points > 1
    return sizes.points > 1


def _fewer_channels(sizes: Sizes, _limits: Limits) -> bool:
    sizes.channels = max((rung for rung in CHANNEL_LADDER if rung < sizes.channels), default=1)
    return sizes.channels > 1


def _fewer_queries(sizes: Sizes, limits: Limits) -> bool:
    # Whole blocks first: the place within the last block is what was drawn on purpose.
    block = min(limits.queries)
    sizes.queries = sizes.queries - block if sizes.queries > block else max(1, sizes.queries // 2)
    return sizes.queries > 1


def _fewer_levels(sizes: Sizes, _limits: Limits) -> bool:
    if len(sizes.levels) > 1:
        sizes.levels.pop()
    return len(sizes.levels) > 1


def _smaller_levels(sizes: Sizes, _limits: Limits) -> bool:
    """Halve the longer side of the largest level; of a very wide or tall one the other side first."""
    index = max(range(len(sizes.levels)), key=lambda number: sizes.levels[number][0] * sizes.levels[number][1])
    short, long = sorted(sizes.levels[index])
    smaller = ((short + 1) // 2, long) if short > 1 and long >= _WIDE else (short, (long + 1) // 2)
    height, width = sizes.levels[index]
    sizes.levels[index] = smaller if height <= width else (smaller[1], smaller[0])
    return max(map(max, sizes.levels)) > 1 or _fewer_levels(sizes, _limits)


_TILE_NOTCHES: dict[str, _Notch] = {
    "batch": _fewer_batches,
    "heads": _fewer_heads,
    "points": _fewer_points,
    "channels": _fewer_channels,
    "queries": _fewer_queries,
    "levels": _fewer_levels,
}
_VALUE_NOTCHES: dict[str, _Notch] = {
    "batch": _fewer_batches,
    "heads": _fewer_heads,
    "channels": _fewer_channels,
    "levels": _smaller_levels,
}
