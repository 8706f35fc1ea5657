"""Small inputs for the tests of the reference: one recipe of awkward numbers, drawn from a numpy generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference.inputs import Inputs

Array = NDArray[Any]

# (value, locations, weights): every combination of dtypes that the operator accepts, mixed ones by example.
DTYPE_CELLS = (
    (torch.float64, torch.float64, torch.float64),
    (torch.float32, torch.float32, torch.float32),
    (torch.float16, torch.float16, torch.float16),
    (torch.float16, torch.float32, torch.float16),
    (torch.float16, torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.float32),
)
LEVEL_SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 25, 31, 32, 50, 64, 100, 128, 333, 1000, 1024, 1500)
PLACES = ("inside", "edge", "near_edge", "border", "outside", "far", "huge", "nan", "collide", "corner_zone")
MAGNITUDES = ("normal", "wide", "sparse", "huge", "subnormal", "constant", "stagnant", "positive", "extreme")
# Largest number of pixels of a level: large sides are paired with short ones, so that value stays small.
LARGEST_LEVEL = 6000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one case."""

    levels: tuple[tuple[int, int], ...]
    batch: int = 1
    queries: int = 4
    heads: int = 1
    points: int = 2
    channels: int = 3


def draw_shape(rng: np.random.Generator, *, longest: float = np.inf) -> Shape:
    """Draw level sizes from 1 to 1500, powers of two and others, and small counts of everything else.

    Args:
        rng: the source of everything.
        longest: upper limit of level sides, for coordinate arithmetic that is too coarse beyond it.
    """
    levels = []
    for _ in range(rng.integers(1, 4)):
        long = int(rng.choice([size for size in LEVEL_SIZES if size <= longest]))
        short = int(rng.choice([size for size in LEVEL_SIZES if size * long <= LARGEST_LEVEL and size <= longest]))
        levels.append((long, short) if rng.integers(2) else (short, long))
    return Shape(
        levels=tuple(levels),
        batch=int(rng.integers(1, 3)),
        queries=int(rng.choice([1, 3, 8, 30])),
        heads=int(rng.integers(1, 3)),
        points=int(rng.choice([1, 2, 4])),
        channels=int(rng.choice([1, 2, 5, 16])),
    )


def draw(
    rng: np.random.Generator,
    shape: Shape,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    *,
    places: tuple[str, ...] = PLACES,
    value: str = "normal",
    weight: str = "normal",
    grad: str = "normal",
) -> Inputs:
    """Draw one input.

    Args:
        rng: the source of everything.
        shape: sizes.
        dtypes: of value, locations and weights.
        places: from PLACES; each sample takes one of them.
        value: from MAGNITUDES.
        weight: from MAGNITUDES.
        grad: from MAGNITUDES.
    """
    value_dtype, location_dtype, weight_dtype = dtypes
    pixels = sum(height * width for height, width in shape.levels)
    samples = (shape.batch, shape.queries, shape.heads, len(shape.levels), shape.points)
    return Inputs(
        value=draw_numbers(rng, (shape.batch, pixels, shape.heads, shape.channels), value_dtype, value),
        levels=shape.levels,
        locations=draw_locations(rng, samples, shape.levels, location_dtype, places),
        weights=draw_numbers(rng, samples, weight_dtype, weight),
        grad_output=draw_numbers(rng, (shape.batch, shape.queries, shape.heads * shape.channels), value_dtype, grad),
    )


def lattice(rng: np.random.Generator, shape: Shape, dtype: torch.dtype) -> Inputs:
    """Draw numbers on which arithmetic of 24 bits is exact: everything is a small multiple of a power of two.

    Locations are multiples of 1/16 from -1/4 to 5/4, often on a pixel edge; values and gradients integers up to 7;
    weights multiples of 1/4 up to 1.
    """
    pixels = sum(height * width for height, width in shape.levels)
    samples = (shape.batch, shape.queries, shape.heads, len(shape.levels), shape.points)

    def numbers(low: int, high: int, scale: float, *sizes: int) -> Tensor:
        return torch.from_numpy(rng.integers(low, high + 1, sizes) * scale).to(dtype)

    return Inputs(
        value=numbers(-7, 7, 1.0, shape.batch, pixels, shape.heads, shape.channels),
        levels=shape.levels,
        locations=numbers(-4, 20, 1 / 16, *samples, 2),
        weights=numbers(-4, 4, 1 / 4, *samples),
        grad_output=numbers(-7, 7, 1.0, shape.batch, shape.queries, shape.heads * shape.channels),
    )


def draw_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> Tensor:
    """Draw finite numbers of one of the MAGNITUDES, rounded to a storage dtype."""
    limits = torch.finfo(dtype)
    unit = limits.eps / 2
    signs = rng.choice([-1.0, 1.0], shape)
    if kind == "positive":
        numbers = rng.random(shape)
    elif kind == "wide":
        numbers = signs * 10.0 ** rng.uniform(-4, 4, shape)
    elif kind == "extreme":
        # Any exponent that the dtype has: products underflow, overflow, and meet the thresholds in between.
        numbers = signs * 2.0 ** rng.uniform(np.log2(limits.smallest_normal), np.log2(limits.max), shape)
    elif kind == "sparse":
        numbers = rng.standard_normal(shape) * (rng.random(shape) < 0.1)
    elif kind == "huge":
        numbers = signs * limits.max * rng.choice([1.0, 1.0 - 2 * unit, 0.5, 0.1, 1e-2], shape)
    elif kind == "subnormal":
        numbers = signs * limits.smallest_normal * 2.0 ** rng.uniform(-np.log2(1 / limits.eps), 4, shape)
    elif kind == "constant":
        numbers = np.full(shape, rng.standard_normal())
    elif kind == "stagnant":
        # One large number and many of just under half its last place: every addition rounds the same way.
        scale = 2.0**-24 if dtype != torch.float64 else unit
        numbers = np.where(rng.random(shape) < 0.1, 1.0, rng.uniform(0.3, 1.0, shape) * scale)
    else:
        numbers = rng.standard_normal(shape)
    return torch.from_numpy(np.asarray(numbers)).clamp(limits.min, limits.max).to(dtype)


def draw_locations(
    rng: np.random.Generator,
    samples: tuple[int, ...],
    levels: tuple[tuple[int, int], ...],
    dtype: torch.dtype,
    places: tuple[str, ...],
) -> Tensor:
    """Draw normalised locations (*samples, 2), each coordinate at one of the PLACES; samples ends in (L, K)."""
    shape = (*samples, 2)
    size = np.array(levels, dtype=np.float64).reshape(-1, 1, 2)[..., ::-1]  # (L, 1, 2) as (W, H)
    size = np.broadcast_to(size, shape)
    edge = np.floor(rng.uniform(-1, size + 1))
    shared = rng.uniform(0, size.astype(np.float64))[:, :1]  # one point for all queries: heavy collisions
    pixel = {
        "inside": rng.uniform(0, size - 1),
        "edge": edge,
        "near_edge": edge,
        "border": rng.choice([-1.0, -0.5, 0.0], shape) + rng.integers(0, 2, shape) * size,
        "outside": rng.uniform(-size - 2, 2 * size + 2),
        "far": rng.uniform(-1, 1, shape) * 1e3 * size,
        "huge": rng.choice([-1.0, 1.0], shape) * 1e30 * size,
        "nan": rng.choice([np.nan, np.inf, -np.inf], shape),
        "collide": np.broadcast_to(shared, shape) + rng.choice([0.0, 0.3], shape),
        "corner_zone": rng.uniform(-1, 0.0, shape) * 2.0 ** -rng.integers(0, 30, shape),
    }
    # Both axes of most samples are at one kind of place, so that not every sample is off the map along one axis.
    choice = rng.choice(len(places), (*samples, 1)) + np.zeros(shape, dtype=int)
    choice = np.where(rng.random(shape) < 0.3, rng.choice(len(places), shape), choice)
    coordinate = np.choose(choice, [pixel[place] for place in places])
    location = torch.from_numpy((coordinate + 0.5) / size).to(dtype)
    steps = torch.from_numpy(rng.integers(-3, 4, shape) * (np.array(places)[choice] == "near_edge"))
    return _step(location, steps)


def _step(location: Tensor, steps: Tensor) -> Tensor:
    """Move each number by so many units in the last place, away from 0 or towards it, but not past it."""
    # By its bits: torch.nextafter does not know 16-bit types everywhere.
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[location.itemsize]
    bits = location.view(integer)
    far_enough = (bits & torch.iinfo(integer).max) > 8
    return torch.where(far_enough, bits + steps.to(integer), bits).view(location.dtype)
