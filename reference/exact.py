"""The operator in rational arithmetic, one sample at a time: slow, and obviously right.

Nothing is rounded and nothing is vectorised, so this file is what the float64 reference is tested against. A level
of H x W pixels is read as the surface

    s(x, y) = sum over the pixels (i, j) of value[i, j] * hat(x - j) * hat(y - i),    hat(z) = max(0, 1 - |z|)

which is bilinear interpolation with zero padding, written without cells, corners or borders: a pixel that does not
exist has no term. With x = loc_x * W - 1/2 and y = loc_y * H - 1/2,

    out[b, q, m] = sum over levels l and points k of weight * s_l(x, y)

and the gradients are its derivatives. hat has kinks at -1, 0 and 1, so out has one wherever x or y is an integer:
there the derivative with respect to that coordinate has two one-sided values, and both are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .inputs import Inputs

# numpy has no element type for Fraction: these are arrays of dtype object.
Rationals = NDArray[Any]
# (pixel index on the S axis, factor): the pixels that one sample reads, or pushes its gradient to.
Taps = list[tuple[int, Fraction]]

HALF = Fraction(1, 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactGradients:
    """Exact gradients of sum(out * grad_output), as object arrays of Fraction.

    The two variants of the location gradient are, for each of x and y, the derivative from above (`right`: the cell
    that starts at the coordinate) and from below (`left`: the cell that ends there). They differ only where that
    coordinate is an integer from -1 to W (or H); a kernel may return either there, x and y chosen independently.

    Attributes:
        value: (B, S, M, D).
        locations_right: (B, Q, M, L, K, 2).
        locations_left: (B, Q, M, L, K, 2).
        weights: (B, Q, M, L, K).
    """

    value: Rationals
    locations_right: Rationals
    locations_left: Rationals
    weights: Rationals


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One sampling point that contributes: its place, its weight and the factors of the pixels around it."""

    batch: int
    query: int
    head: int
    level: int
    point: int
    weight: Fraction
    taps: Taps  # hat * hat: the interpolation
    slopes_right: tuple[Taps, Taps]  # derivatives of taps with respect to loc_x and loc_y, from above
    slopes_left: tuple[Taps, Taps]  # the same from below


def coordinates(inputs: Inputs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the pixel coordinates loc * W - 1/2, (B, Q, M, L, K, 2), as the nearest integer and the rest.

    The rest is in [-1/2, 1/2] and rounded once, so its sign tells on which side of a pixel edge the coordinate is. Both
    are NaN where a location is not finite.
    """
    locations = inputs.locations.detach().double().cpu().numpy()
    nearest = np.full(locations.shape, np.nan)
    rests = np.full(locations.shape, np.nan)
    for place in np.ndindex(*locations.shape):
        if np.isfinite(locations[place]):
            height, width = inputs.levels[place[3]]
            coordinate = Fraction(float(locations[place])) * (height if place[5] else width) - HALF
            nearest[place] = _nearest(Fraction(round(coordinate)))
            rests[place] = float(coordinate - round(coordinate))
    return nearest, rests


def forward(inputs: Inputs) -> Rationals:
    """Return the exact output, (B, Q, M * D), an object array of Fraction.

    Args:
        inputs: the stored operands, of any dtypes; locations may be NaN or infinite (such samples are skipped).

    Raises:
        ValueError: value or weights hold a NaN or an infinity.
    """
    value = _rationals("value", inputs.value)
    channels = inputs.channels
    out = _zeros((inputs.batch, inputs.queries, inputs.heads * channels))
    for sample in _samples(inputs):
        for pixel, factor in sample.taps:
            for channel in range(channels):
                out[sample.batch, sample.query, sample.head * channels + channel] += (
                    sample.weight * factor * value[sample.batch, pixel, sample.head, channel]
                )
    return out


def gradients(inputs: Inputs) -> ExactGradients:
    """Return the exact gradients of sum(out * grad_output) with respect to every operand.

    Args:
        inputs: the stored operands, of any dtypes; locations may be NaN or infinite (gradients 0 there).

    Raises:
        ValueError: value, weights or grad_output hold a NaN or an infinity.
    """
    value = _rationals("value", inputs.value)
    grad = _rationals("grad_output", inputs.grad_output).reshape(
        inputs.batch, inputs.queries, inputs.heads, inputs.channels
    )
    result = ExactGradients(
        value=_zeros(value.shape),
        locations_right=_zeros(tuple(inputs.locations.shape)),
        locations_left=_zeros(tuple(inputs.locations.shape)),
        weights=_zeros(tuple(inputs.weights.shape)),
    )
    for sample in _samples(inputs):
        batch, head = sample.batch, sample.head
        place = (batch, sample.query, head, sample.level, sample.point)
        incoming = grad[batch, sample.query, head]

        def against_grad(taps: Taps, batch: int = batch, head: int = head, g: Rationals = incoming) -> Fraction:
            terms = (factor * g[c] * value[batch, pixel, head, c] for pixel, factor in taps for c in range(len(g)))
            return sum(terms, Fraction(0))

        for pixel, factor in sample.taps:
            for channel in range(inputs.channels):
                result.value[batch, pixel, head, channel] += sample.weight * factor * incoming[channel]
        result.weights[place] = against_grad(sample.taps)
        for axis in (0, 1):
            result.locations_right[(*place, axis)] = sample.weight * against_grad(sample.slopes_right[axis])
            result.locations_left[(*place, axis)] = sample.weight * against_grad(sample.slopes_left[axis])
    return result


def to_float64(array: Rationals) -> NDArray[np.float64]:
    """Round an object array of Fraction to float64: to nearest, ties to even, and to infinity past the largest."""
    return np.array([_nearest(entry) for entry in array.flat], dtype=np.float64).reshape(array.shape)


def _nearest(number: Fraction) -> float:
    # CPython's int / int division, which float(Fraction) is, rounds correctly; only overflow needs a hand.
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _samples(inputs: Inputs) -> Iterator[_Sample]:
    """Yield every sampling point whose location is finite; one off the map has no taps and so contributes nothing."""
    weights = _rationals("weights", inputs.weights)
    locations = inputs.locations.detach().double().cpu().numpy()  # exact from every dtype
    starts = inputs.level_table()[1].tolist()
    for batch, query, head, level, point in np.ndindex(*inputs.weights.shape):
        place = (batch, query, head, level, point)
        location = locations[place]
        if not np.isfinite(location).all():
            continue
        height, width = inputs.levels[level]
        x = Fraction(float(location[0])) * width - HALF
        y = Fraction(float(location[1])) * height - HALF
        start = starts[level]

        def taps(
            along_x: Callable[[Fraction], Fraction],
            along_y: Callable[[Fraction], Fraction],
            scale: int = 1,
            x: Fraction = x,
            y: Fraction = y,
            width: int = width,
            height: int = height,
            start: int = start,
        ) -> Taps:
            columns = [(j, along_x(x - j)) for j in range(width)]
            rows = [(i, along_y(y - i)) for i in range(height)]
            return [
                (start + i * width + j, scale * column * row)
                for i, row in rows
                if row
                for j, column in columns
                if column
            ]

        # d/d loc_x = W * d/dx, and d/d loc_y = H * d/dy.
        yield _Sample(
            batch=batch,
            query=query,
            head=head,
            level=level,
            point=point,
            weight=weights.item(*place),
            taps=taps(_hat, _hat),
            slopes_right=(taps(_slope_right, _hat, width), taps(_hat, _slope_right, height)),
            slopes_left=(taps(_slope_left, _hat, width), taps(_hat, _slope_left, height)),
        )


def _hat(z: Fraction) -> Fraction:
    return max(Fraction(0), 1 - abs(z))


def _slope_right(z: Fraction) -> Fraction:
    """Derivative of hat at z from above."""
    if -1 <= z < 0:
        return Fraction(1)
    return Fraction(-1) if 0 <= z < 1 else Fraction(0)


def _slope_left(z: Fraction) -> Fraction:
    """Derivative of hat at z from below."""
    if -1 < z <= 0:
        return Fraction(1)
    return Fraction(-1) if 0 < z <= 1 else Fraction(0)


def _rationals(name: str, tensor: Tensor) -> Rationals:
    """Convert a tensor of any floating dtype exactly.

    Raises:
        ValueError: it holds a NaN or an infinity; the message names the argument.
    """
    floats = tensor.detach().double().cpu().numpy()  # float16, bfloat16 and float32 convert to float64 exactly
    if not np.isfinite(floats).all():
        raise ValueError(f"{name} must be finite for exact arithmetic, but holds NaN or infinity")
    result = _zeros(floats.shape)
    for place in np.ndindex(*floats.shape):
        result[place] = Fraction(float(floats[place]))
    return result


def _zeros(shape: tuple[int, ...]) -> Rationals:
    return np.full(shape, Fraction(0), dtype=object)
