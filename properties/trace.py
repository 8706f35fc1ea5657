"""The numbers behind one element of a result: the samples that make it up, their corners, factors and contributions.

Written with loops over samples in plain floats, apart from the vectorised reference on purpose: what it adds up to can
be held against the reference by whoever reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.expect import Bounded
from reference.inputs import Inputs

from .verdict import Evidence, element_at, level_of
from .walk import Case

CORNERS = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
# Samples that miss the pixel of grad_value, shown where none touches it.
NEAREST = 3


@dataclass(frozen=True, kw_only=True)
class Corner:
    """One of the four pixels around a sample.

    Attributes:
        name: one of CORNERS.
        row: of the pixel.
        column: of the pixel.
        inside: whether the pixel exists.
        factor: what its value is multiplied by: the bilinear factor, or its derivative for a location gradient.
        value: element of value, or the dot product of the pixel with grad_output; 0 outside.
    """

    name: str
    row: int
    column: int
    inside: bool
    factor: float
    value: float

    @property
    def product(self) -> float:
        """Factor times value; exactly 0 outside, whatever the factor."""
        return self.factor * self.value if self.inside else 0.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample and what it adds to the element.

    Attributes:
        index: (batch, query, head, level, point).
        size: (H, W) of its level.
        location: (x, y) as stored.
        at: (x_im, y_im), pixel coordinates.
        counts: whether -1 < x_im < W and -1 < y_im < H; a sample that does not is skipped.
        corners: the four, none where it is skipped.
        weight: attention weight.
        grad: element of grad_output that a contribution to grad_value has as a factor; 1 for other outputs.
        scale: what the sum over the corners is multiplied by.
        contribution: to the element.
    """

    index: tuple[int, ...]
    size: tuple[int, int]
    location: tuple[float, float]
    at: tuple[float, float]
    counts: bool
    corners: tuple[Corner, ...]
    weight: float
    grad: float
    scale: float
    contribution: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One element of a result, taken apart.

    Attributes:
        element: which, what was expected and what was returned.
        samples: those with the largest contributions, largest first; skipped samples come last.
        rest: number of further samples.
        rest_sum: what those add.
        total: what all samples add up to.
    """

    element: Evidence
    samples: tuple[Sample, ...]
    rest: int
    rest_sum: float
    total: float


def worst_elements(bounded: Bounded, observed: Tensor, *, most: int) -> list[tuple[int, ...]]:
    """Indices of the elements with the largest error over bound, largest first."""
    ratio = bounded.ratio(observed).nan_to_num(nan=torch.inf, posinf=torch.inf).reshape(-1)
    order = torch.sort(ratio, descending=True, stable=True).indices[:most].cpu()
    return [tuple(int(i) for i in torch.unravel_index(flat, bounded.value.shape)) for flat in order]


def worst_element(case: Case) -> Evidence:
    """The worst element of the first output that failed, or that of `out` with the largest error over bound."""
    failed = [one for one in case.verdict.evidence if one.index]
    if failed or case.verdict.evidence:
        return (failed or list(case.verdict.evidence))[0]
    bounded, observed = case.expectation.out, case.observation.out
    if observed.numel() == 0:
        return Evidence(output="out", failure="shape", expected="no elements", got="no elements", ratio=0.0)
    return element_at("out", worst_elements(bounded, observed, most=1)[0], observed, bounded, bounded.ratio(observed))


def trace(inputs: Inputs, element: Evidence, *, most: int = 20) -> Trace:
    """Take one element apart.

    Args:
        inputs: the operands.
        element: with an index.
        most: samples to list; the others are summed.
    """
    inputs = _on_cpu(inputs)
    others = 0.0
    if element.output == "grad_value":
        batch, pixel, head, channel = element.index
        chosen, number, others = _touching(inputs, batch, pixel, head, channel, most)
    elif element.output == "out":
        batch, query, channel = element.index
        head = channel // inputs.channels
        found = [
            _sample(inputs, (batch, query, head, level, point), element)
            for level in range(len(inputs.levels))
            for point in range(inputs.points)
        ]
        found.sort(key=lambda one: (not one.counts, -_size(one.contribution)))
        chosen, number = found[:most], len(found)
        others = sum(one.contribution for one in found[most:])
    else:
        chosen, number = [_sample(inputs, element.index[:5], element)], 1
    return Trace(
        element=element,
        samples=tuple(chosen),
        rest=number - len(chosen),
        rest_sum=others,
        total=sum(one.contribution for one in chosen) + others,
    )


def _on_cpu(inputs: Inputs) -> Inputs:
    names = ("value", "locations", "weights", "grad_output")
    return Inputs(levels=inputs.levels, **{name: getattr(inputs, name).detach().cpu() for name in names})


def _size(number: float) -> float:
    return math.inf if math.isnan(number) else abs(number)


def _sample(inputs: Inputs, index: tuple[int, ...], element: Evidence) -> Sample:
    batch, query, head, level, _point = index
    height, width = inputs.levels[level]
    x, y = (float(part) for part in inputs.locations[index].double())
    x_im, y_im = x * width - 0.5, y * height - 0.5
    counts = -1 < x_im < width and -1 < y_im < height
    weight = float(inputs.weights[index])
    gradient = inputs.grad_output[batch, query].double().reshape(inputs.heads, inputs.channels)[head]
    axis = element.index[5] if element.output == "grad_sampling_locations" else None
    scale = 1.0 if element.output == "grad_attention_weights" else weight
    if axis is not None:
        scale *= (width, height)[axis]
    grad = float(gradient[element.index[3]]) if element.output == "grad_value" else 1.0
    scale *= grad
    corners: list[Corner] = []
    if counts:
        left, top = math.floor(x_im), math.floor(y_im)
        for name, (down, right) in CORNERS.items():
            row, column = top + down, left + right
            factor_x, factor_y = 1 - abs(x_im - column), 1 - abs(y_im - row)
            if axis == 0:
                factor_x = 1.0 if right else -1.0
            if axis == 1:
                factor_y = 1.0 if down else -1.0
            inside = 0 <= row < height and 0 <= column < width
            value = 0.0
            if inside:
                start = sum(h * w for h, w in inputs.levels[:level])
                pixel = inputs.value[batch, start + row * width + column, head].double()
                value = _read(pixel, gradient, element)
            corners.append(
                Corner(name=name, row=row, column=column, inside=inside, factor=factor_x * factor_y, value=value)
            )
    if element.output == "grad_value":
        _, row, column = level_of(element.index[1], inputs.levels)
        blended = sum(one.factor for one in corners if (one.row, one.column) == (row, column))
        touches = any((one.row, one.column) == (row, column) for one in corners)
        contribution = scale * blended if touches else 0.0
    else:
        contribution = scale * sum(one.product for one in corners) if counts else 0.0
    return Sample(
        index=tuple(index),
        size=(height, width),
        location=(x, y),
        at=(x_im, y_im),
        counts=counts,
        corners=tuple(corners),
        weight=weight,
        grad=grad,
        scale=scale,
        contribution=contribution,
    )


def _read(pixel: Tensor, gradient: Tensor, element: Evidence) -> float:
    """What a corner holds for this element: one channel, or all channels against grad_output."""
    if element.output == "out":
        return float(pixel[element.index[2] % len(pixel)])
    if element.output == "grad_value":
        return float(pixel[element.index[3]])
    return float((pixel * gradient).sum())


def _touching(
    inputs: Inputs, batch: int, pixel: int, head: int, channel: int, most: int
) -> tuple[list[Sample], int, float]:
    """Samples with the pixel among their corners: the largest, the number of all, and the sum of the others."""
    level, row, column = level_of(pixel, inputs.levels)
    height, width = inputs.levels[level]
    element = Evidence(
        output="grad_value", failure="out of bound", expected=0.0, got=0.0, index=(batch, pixel, head, channel)
    )
    at = inputs.locations[batch, :, head, level].double() * torch.tensor([width, height], dtype=torch.float64) - 0.5
    size = torch.tensor([width, height], dtype=torch.float64)
    counts = ((at > -1) & (at < size)).all(dim=-1)
    pixel_at = torch.tensor([column, row], dtype=torch.float64)
    step = pixel_at - at.floor()
    touches = counts & ((step == 0) | (step == 1)).all(dim=-1)
    gradient = inputs.grad_output[batch].double().reshape(inputs.queries, inputs.heads, -1)[:, head, channel, None]
    factor = (1 - (at - pixel_at).abs()).prod(dim=-1)
    added = torch.where(touches, inputs.weights[batch, :, head, level].double() * factor * gradient, 0.0)
    number = int(touches.sum())
    if number == 0:
        far = (at - pixel_at).abs().amax(dim=-1).nan_to_num(nan=torch.inf).reshape(-1)
        order = torch.sort(far, stable=True).indices[: min(most, NEAREST)]
    else:
        sizes = torch.where(touches, added.abs().nan_to_num(nan=torch.inf), -1.0).reshape(-1)
        order = torch.sort(sizes, descending=True, stable=True).indices[: min(most, number)]
    chosen = [
        _sample(inputs, (batch, int(flat) // inputs.points, head, level, int(flat) % inputs.points), element)
        for flat in order
    ]
    left = added.reshape(-1).index_fill(0, order, 0.0)
    return chosen, max(number, len(chosen)), float(left.sum())
