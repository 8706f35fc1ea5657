"""Reductions of a failing case: fewer entries, smaller levels, plain layouts, plain numbers.

Each returns another state and decides nothing; `properties.minimise` tries them and keeps those that still fail.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .explicit import OPERANDS, Explicit
from .fills import store
from .layouts import drawn_shape
from .recipe import LATTICE_LOCATIONS, LATTICE_VALUES, LATTICE_WEIGHTS, Recipe

# The axes of a size in each operand, those first that make a run much shorter. The last axis of grad_output is taken
# apart into heads and channels for this.
AXES: dict[str, dict[str, int]] = {
    "batch": {"value": 0, "locations": 0, "weights": 0, "grad_output": 0},
    "heads": {"value": 2, "locations": 2, "weights": 2, "grad_output": 2},
    "queries": {"locations": 1, "weights": 1, "grad_output": 1},
    "levels": {"value": 1, "locations": 3, "weights": 3},
    "points": {"locations": 4, "weights": 4},
    "channels": {"value": 3, "grad_output": 3},
}
# The plainest numbers of each operand, the plainest first: weights and gradients of 1 are not there to be multiplied
# by, and a value of 0 is not there to be looked at.
PLAIN: dict[str, tuple[float, ...]] = {
    "grad_output": (1.0, 0.0, -1.0),
    "weights": (1.0, 0.0, -1.0),
    "value": (0.0, 1.0, -1.0),
    "locations": (0.5, 0.25, 0.75, 0.0, 1.0),
}
# Fraction bits that a number may be cut down to; 0 leaves a power of two.
FRACTION_BITS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 20)
_STORED_BITS = 52
_FRACTION = (1 << _STORED_BITS) - 1
# Of a number that is not plain: its fraction counts before its exponent, and that before its sign.
_OTHER, _PER_BIT, _MINUS_ZERO = 8, 8192, 7
SMALLEST_LEVELS = ((1, 1), (1, 2), (2, 1), (2, 2))
MOST_WINDOWS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """A case with its numbers in memory.

    Attributes:
        shell: sizes, dtypes and layouts; it has no numbers of its own.
        tensors: by operand, float64, of `layouts.drawn_shape`: a dimension that is expanded is held once.
    """

    shell: Recipe
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, recipe: Recipe) -> State:
        """Build the numbers of a recipe."""
        inputs = recipe.build("cpu")
        # A recipe of given numbers has neither; the names of patterns say nothing any more, but properties read them.
        kept = tuple(name for name in recipe.locations if name not in LATTICE_LOCATIONS)
        shell = dataclasses.replace(
            recipe,
            explicit=None,
            hot=(),
            lattice=None,
            locations=kept or ("inside",),
            weights="softmax" if recipe.weights in LATTICE_WEIGHTS else recipe.weights,
            value="normal" if recipe.value in LATTICE_VALUES else recipe.value,
            grad_output="normal" if recipe.grad_output in LATTICE_VALUES else recipe.grad_output,
        )
        return cls.compressed(shell, {operand: getattr(inputs, operand).double() for operand in OPERANDS})

    @classmethod
    def compressed(cls, shell: Recipe, full: Mapping[str, Tensor]) -> State:
        """Take operands of full shape; of a dimension that the layout expands the first slice counts."""
        tensors = {}
        for operand, tensor in full.items():
            shape = shell.shape(operand)
            drawn = drawn_shape(operand, shape, getattr(shell, f"{operand}_layout"), shell.seed)
            tensors[operand] = tensor.reshape(shape)[tuple(slice(size) for size in drawn)].contiguous()
        return cls(shell=shell, tensors=tensors)

    def full(self, operand: str) -> Tensor:
        """Return an operand in its full shape, grad_output as (B, Q, M, D)."""
        tensor = self.tensors[operand].expand(self.shell.shape(operand))
        return tensor.unflatten(-1, (self.shell.heads, self.shell.channels)) if operand == "grad_output" else tensor

    def recipe(self) -> Recipe:
        """Write the numbers down."""
        return dataclasses.replace(self.shell, explicit=Explicit.of(**self.tensors))

    def size(self, dimension: str) -> int:
        """Return the number of entries along one of AXES."""
        return len(self.shell.levels) if dimension == "levels" else int(getattr(self.shell, dimension))

    @property
    def numbers(self) -> int:
        """How many numbers have to be written down."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @cached_property
    def measure(self) -> tuple[int, int, int]:
        """What has to become smaller: the sizes, then the layouts that are not plain, then what the numbers cost."""
        shell = self.shell
        entries = sum(self.size(dimension) for dimension in AXES) + sum(h + w for h, w in shell.levels)
        elements = sum(math.prod(shell.shape(operand)) for operand in OPERANDS)
        layouts = sum(getattr(shell, f"{operand}_layout") != "contiguous" for operand in OPERANDS)
        return (elements + entries, layouts, sum(int(cost(name, self.tensors[name]).sum()) for name in OPERANDS))

    @cached_property
    def identity(self) -> bytes:
        """A digest: two states with the same one are the same case."""
        digest = hashlib.sha256(repr((self.shell, self.shell.levels)).encode())
        for operand in OPERANDS:
            digest.update(self.tensors[operand].numpy().tobytes())
        return digest.digest()


def cost(operand: str, numbers: Tensor) -> Tensor:
    """Return how far each number is from a plain one, int64: what is easier to read costs less."""
    exact = numbers.contiguous().numpy()
    fraction = exact.view(np.int64) & _FRACTION
    lowest = (fraction & -fraction).astype(np.float64)
    bits = np.where(fraction == 0, 0, _STORED_BITS - np.frexp(np.maximum(lowest, 1.0))[1] + 1)
    finite = np.isfinite(exact)
    exponents = np.abs(np.frexp(np.where(finite, exact, 1.0))[1].astype(np.int64) - 1)
    costs = _OTHER + _PER_BIT * bits.astype(np.int64) + 2 * exponents + np.signbit(exact)
    costs = np.where(finite, costs, _OTHER + _PER_BIT * (_STORED_BITS + 1) + np.isnan(exact))
    for place, plain in enumerate(PLAIN[operand]):
        costs = np.where(exact == plain, place, costs)
    costs = np.where((exact == 0.0) & np.signbit(exact), _MINUS_ZERO, costs)
    return torch.from_numpy(np.asarray(costs, dtype=np.int64).reshape(exact.shape))


# ---------------------------------------------------------------- sizes and layouts


def with_entries(state: State, dimension: str, kept: Sequence[int]) -> State:
    """Keep some entries along one of AXES, in all operands that have it.

    Args:
        state: a case.
        dimension: one of AXES.
        kept: indices, in order.
    """
    shell = state.shell
    levels = tuple(shell.levels[index] for index in kept) if dimension == "levels" else shell.levels
    changed: dict[str, Any] = {"levels": levels} if dimension == "levels" else {dimension: len(kept)}
    full = {operand: state.full(operand) for operand in OPERANDS}
    for operand, axis in AXES[dimension].items():
        entries = list(kept)
        if dimension == "levels" and operand == "value":
            starts = [0, *itertools.accumulate(height * width for height, width in shell.levels)]
            entries = [pixel for index in kept for pixel in range(starts[index], starts[index + 1])]
        full[operand] = full[operand].index_select(axis, torch.tensor(entries, dtype=torch.int64))
    return State.compressed(dataclasses.replace(shell, **changed), full)


def with_layouts(state: State, operands: Sequence[str]) -> State:
    """Give some operands the plain layout; what was held once is then written out."""
    changed: dict[str, Any] = {f"{operand}_layout": "contiguous" for operand in operands}
    full = {operand: state.full(operand) for operand in OPERANDS}
    return State.compressed(dataclasses.replace(state.shell, **changed), full)


# ---------------------------------------------------------------- smaller levels


def cropped(state: State, level: int) -> Iterator[State]:
    """Yield the case with one level cropped: to the smallest sizes, to halves, by single rows and columns."""
    height, width = state.shell.levels[level]
    halves = ((-(-height // 2), width), (height, -(-width // 2)), (height - 1, width), (height, width - 1))
    sizes = [(h, w) for h, w in (*SMALLEST_LEVELS, *halves) if 0 < h <= height and 0 < w <= width]
    for rows, columns in dict.fromkeys(size for size in sizes if size != (height, width)):
        windows = list(
            itertools.product(_windows(state, level, 1, height, rows), _windows(state, level, 0, width, columns))
        )
        for top, left in windows:
            yield crop(state, level, (top, left), (rows, columns), move=True)
        for top, left in dict.fromkeys((windows[0], (0, 0))):
            yield crop(state, level, (top, left), (rows, columns), move=False)


def _windows(state: State, level: int, axis: int, side: int, kept: int) -> list[int]:
    """Where a window may begin along one axis: around the first samples, at the start, at the end."""
    if kept == side:
        return [0]
    place = state.tensors["locations"][..., level, :, axis].reshape(-1) * side - 0.5
    near = sorted({int(x) for x in place.floor().tolist() if -1 <= x < side})[:2]
    begins = [x + step for x in near for step in (0, 1)] if kept == 1 else near
    clipped = [min(max(begin, 0), side - kept) for begin in (*begins, 0, side - kept)]
    return list(dict.fromkeys(clipped))[:MOST_WINDOWS]


def crop(state: State, level: int, corner: tuple[int, int], size: tuple[int, int], *, move: bool) -> State:
    """Crop one level to a window.

    Args:
        state: a case.
        level: which.
        corner: first row and column of the window.
        size: of the window.
        move: let samples stay on their pixels, which have other numbers now; else their normalised locations stay.
    """
    shell = state.shell
    height, width = shell.levels[level]
    (top, left), (rows, columns) = corner, size
    blocks = list(state.full("value").split([h * w for h, w in shell.levels], dim=1))
    window = blocks[level].unflatten(1, (height, width))[:, top : top + rows, left : left + columns]
    blocks[level] = window.flatten(1, 2)
    levels = (*shell.levels[:level], (rows, columns), *shell.levels[level + 1 :])
    full = {operand: state.full(operand) for operand in OPERANDS} | {"value": torch.cat(blocks, dim=1)}
    if move:
        scale = torch.tensor([width, height], dtype=torch.float64)
        begin = torch.tensor([left, top], dtype=torch.float64)
        locations = full["locations"].clone()
        moved = (locations[..., level, :, :] * scale - begin) / torch.tensor([columns, rows], dtype=torch.float64)
        locations[..., level, :, :] = store(moved, shell.cell.locations).double()
        full["locations"] = locations
    return State.compressed(dataclasses.replace(shell, levels=levels), full)


# ---------------------------------------------------------------- numbers


def rewrites(state: State, operand: str) -> Iterator[Tensor]:
    """Yield what all numbers of an operand might be instead, the plainest first; all can be stored."""
    numbers = state.tensors[operand]
    cell = state.shell.cell
    dtype = {"locations": cell.locations, "weights": cell.weights}.get(operand, cell.value)
    for plain in PLAIN[operand]:
        yield torch.full_like(numbers, plain)
    for bits in FRACTION_BITS:
        # Towards zero: a number that grows might overflow where nothing did.
        yield _cut(numbers, bits, up=False)
        if operand == "locations":
            yield store(_cut(numbers, bits, up=True), dtype).double()


def _cut(numbers: Tensor, bits: int, *, up: bool) -> Tensor:
    mantissa, exponent = torch.frexp(numbers.nan_to_num(0.0, 0.0, 0.0))
    scaled = torch.ldexp(mantissa, torch.tensor(bits + 1))
    whole = torch.where(scaled < 0, scaled.floor(), scaled.ceil()) if up else scaled.trunc()
    # In two steps, for 2 to the exponent alone may be neither finite nor above 0.
    half = exponent // 2
    shortened = torch.ldexp(torch.ldexp(torch.ldexp(whole, torch.tensor(-bits - 1)), half), exponent - half)
    return torch.where(numbers.isfinite() & shortened.isfinite(), shortened, numbers)


def plainer(state: State, operand: str, rewritten: Tensor) -> list[int]:
    """Return the numbers, counted row by row, that would cost less when rewritten."""
    less = cost(operand, rewritten) < cost(operand, state.tensors[operand])
    return [int(index) for index in less.reshape(-1).nonzero().reshape(-1)]


def with_numbers(state: State, operand: str, rewritten: Tensor, places: Sequence[int]) -> State:
    """Rewrite some numbers of one operand."""
    tensor = state.tensors[operand].clone()
    index = torch.tensor(places, dtype=torch.int64)
    tensor.view(-1)[index] = rewritten.reshape(-1)[index]
    return State(shell=state.shell, tensors={**state.tensors, operand: tensor})
