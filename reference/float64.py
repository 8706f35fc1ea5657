"""The operator in float64, vectorised over samples and channels, on any device, in chunks of bounded scratch.

`forward` and `gradients` give plain values. `chunks` walks a call in pieces and offers, per piece, the sums and slopes
from which both the values and the error bounds are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .inputs import Inputs
from .model import Arithmetic
from .stencil import LevelTable, Place, Stencil, coordinate_error, locate, place

# Bytes of scratch per sample and channel: window, differences, magnitudes and temporaries were measured at 1072.
SCRATCH_PER_ELEMENT = 1280
# The bound of a coordinate's error is itself computed in float64.
COORDINATE_ERROR_ERROR = 1.0 + 2.0**-20
# On a CPU, pieces that stay near the caches are four times as fast as pieces that fill the limit.
SCRATCH_LIMIT = {"cuda": 2**31, "cpu": 2**27}


class Chunk:
    """A run of T (batch, query, head) triples with their P samples each and D channels.

    Attributes:
        rows: the slice of flattened (batch, query, head) triples.
        size: (P, 2) float64, (W, H) of each sample's level.
        stencil: the window of each sample.
        weight: (T, P) float64, 0 for skipped samples whatever is stored.
        grad: (T, D) float64, gradient of the output.
        window: (T, P, 3, 3, D) float64 values, 0 where not touched.
        pixel_row: (T, P, 3, 3) int64, row of the touched pixel in value viewed as (B * S * M, D).
    """

    def __init__(self, inputs: Inputs, table: LevelTable, rows: slice, operands: _Operands, error: Tensor) -> None:
        self.rows = rows
        self.size = table.size
        self.stencil: Stencil = locate(operands.places.rows(rows), table, error)
        self.weight = torch.where(self.stencil.live, operands.weights[rows], 0.0)
        self.grad = operands.grad[rows].double()
        triple = torch.arange(rows.start, rows.stop, device=inputs.device)
        head = (triple % inputs.heads)[:, None, None, None]
        batch = (triple // (inputs.heads * inputs.queries))[:, None, None, None]
        pixel = self.stencil.pixel
        self.pixel_row = (batch * inputs.pixels + pixel) * inputs.heads + head
        # Selected, not multiplied: a NaN in a pixel that is not touched must not enter.
        read = inputs.value[batch.expand_as(pixel), pixel, head.expand_as(pixel)].double()
        self.window = torch.where(self.stencil.touched.unsqueeze(-1), read, 0.0)

    @cached_property
    def blend(self) -> Tensor:
        """(T, P, 3, 3) bilinear factor of each window pixel."""
        hat = self.stencil.hat
        return hat[..., 1, :, None] * hat[..., 0, None, :]

    @cached_property
    def interpolated(self) -> Tensor:
        """(T, P, D) bilinear value at the exact coordinate."""
        return torch.einsum("tpij,tpijd->tpd", self.blend, self.window)

    @cached_property
    def magnitude(self) -> Tensor:
        """(T, P, 3, 3, D) absolute window values."""
        return self.window.abs()

    @cached_property
    def step_x(self) -> Tensor:
        """(T, P, 3, 2, D) differences of horizontal neighbours, 0 across a column that cannot be touched."""
        difference = self.window[..., 1:, :] - self.window[..., :-1, :]
        difference[..., 1, :] = torch.where(self.stencil.two[..., 0, None, None], difference[..., 1, :], 0.0)
        return difference

    @cached_property
    def step_y(self) -> Tensor:
        """(T, P, 2, 3, D) differences of vertical neighbours, 0 across a row that cannot be touched."""
        difference = self.window[..., 1:, :, :] - self.window[..., :-1, :, :]
        difference[..., 1, :, :] = torch.where(self.stencil.two[..., 1, None, None], difference[..., 1, :, :], 0.0)
        return difference

    @cached_property
    def slope_x(self) -> Tensor:
        """(T, P, 2, D) d(interpolated)/dx within the left and the right of the two cells."""
        return torch.einsum("tpi,tpijd->tpjd", self.stencil.hat[..., 1, :], self.step_x)

    @cached_property
    def slope_y(self) -> Tensor:
        """(T, P, 2, D) d(interpolated)/dy within the upper and the lower of the two cells."""
        return torch.einsum("tpj,tpijd->tpid", self.stencil.hat[..., 0, :], self.step_y)

    def against_grad(self, per_channel: Tensor, *, absolute: bool = False) -> Tensor:
        """Sum over channels of grad (or |grad|) times `per_channel` (T, ..., D): (T, ...)."""
        grad = self.grad.abs() if absolute else self.grad
        flat = per_channel.reshape(per_channel.shape[0], -1, per_channel.shape[-1])
        return torch.matmul(flat, grad.unsqueeze(-1)).reshape(per_channel.shape[:-1])

    @cached_property
    def location_gradients(self) -> Tensor:
        """(T, P, 2, 2) gradient of (x, y) for either cell, weight and level size included."""
        slopes = self.against_grad(torch.stack([self.slope_x, self.slope_y], dim=2))
        return slopes * (self.size * self.weight.unsqueeze(-1)).unsqueeze(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Operands:
    locations: Tensor
    places: Place
    weights: Tensor
    grad: Tensor


def chunks(
    inputs: Inputs,
    arithmetic: Arithmetic | None = None,
    *,
    at: Place | None = None,
    scratch_bytes: int | None = None,
) -> Iterator[Chunk]:
    """Walk one call in chunks of whole (batch, query, head) triples.

    Args:
        inputs: the operands; L * K and every other dimension may be 0.
        arithmetic: decides the coordinate error; None means an exact coordinate.
        at: pixel coordinates (B, Q, M, L, K, 2) from rational arithmetic; None computes them in float64.
        scratch_bytes: upper limit of temporary memory; None means 2 GiB on a GPU and 128 MiB on a CPU. One triple is
            the smallest chunk.
    """
    triples = inputs.batch * inputs.queries * inputs.heads
    samples = len(inputs.levels) * inputs.points
    if triples == 0 or samples == 0 or inputs.channels == 0:
        return
    table = LevelTable.of(inputs)
    locations = inputs.locations.reshape(triples, samples, 2).double()
    if at is None:
        places = place(locations, table)
    else:
        places = Place(origin=at.origin.reshape(locations.shape), offset=at.offset.reshape(locations.shape))
    operands = _Operands(
        locations=locations,
        places=places,
        weights=inputs.weights.reshape(triples, samples).double(),
        grad=inputs.grad_output.reshape(triples, inputs.channels),
    )
    if scratch_bytes is None:
        scratch_bytes = SCRATCH_LIMIT[inputs.device.type]
    each = max(1, scratch_bytes // (SCRATCH_PER_ELEMENT * samples * inputs.channels))
    for start in range(0, triples, each):
        rows = slice(start, min(start + each, triples))
        locations = operands.locations[rows]
        if arithmetic is None:
            error = torch.zeros_like(locations)
        else:
            error = coordinate_error(locations, table, inputs.value.dtype, inputs.locations.dtype, arithmetic)
            if at is not None:
                error = error * COORDINATE_ERROR_ERROR
            elif inputs.value.dtype == torch.float64:
                # The reference rounds its own coordinate in the same precision.
                error = 2 * error
        yield Chunk(inputs, table, rows, operands, error)


def forward(inputs: Inputs, *, scratch_bytes: int | None = None) -> Tensor:
    """Evaluate the operator in float64 on the stored operands.

    Returns:
        (B, Q, M * D) float64.
    """
    out = inputs.value.new_zeros((inputs.batch * inputs.queries * inputs.heads, inputs.channels), dtype=torch.float64)
    for chunk in chunks(inputs, scratch_bytes=scratch_bytes):
        out[chunk.rows] = torch.einsum("tp,tpd->td", chunk.weight, chunk.interpolated)
    return out.reshape(inputs.batch, inputs.queries, inputs.heads * inputs.channels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gradients:
    """float64 gradients, each of its operand's shape; at a pixel edge the location gradient is the one from above."""

    value: Tensor
    locations: Tensor
    weights: Tensor


def gradients(inputs: Inputs, *, scratch_bytes: int | None = None) -> Gradients:
    """Evaluate the analytic gradients of sum(out * grad_output) in float64.

    At a kink (an integer pixel coordinate) the location gradient is the limit from above, the choice of every
    floor-based kernel.
    """
    triples = inputs.batch * inputs.queries * inputs.heads
    samples = len(inputs.levels) * inputs.points
    blank = inputs.value.new_zeros(0, dtype=torch.float64)
    grad_value = blank.new_zeros((inputs.batch * inputs.pixels * inputs.heads, inputs.channels))
    grad_locations = blank.new_zeros((triples, samples, 2))
    grad_weights = blank.new_zeros((triples, samples))
    for chunk in chunks(inputs, scratch_bytes=scratch_bytes):
        grad_weights[chunk.rows] = chunk.against_grad(chunk.interpolated)
        grad_locations[chunk.rows] = pick_cell(chunk.location_gradients, chunk.stencil.upper)
        terms = (chunk.weight[..., None, None] * chunk.blend).unsqueeze(-1) * chunk.grad[:, None, None, None, :]
        terms = torch.where(chunk.stencil.touched.unsqueeze(-1), terms, 0.0)
        grad_value.index_add_(0, chunk.pixel_row.reshape(-1), terms.reshape(-1, inputs.channels))
    return Gradients(
        value=grad_value.reshape(inputs.batch, inputs.pixels, inputs.heads, inputs.channels),
        locations=grad_locations.reshape(inputs.locations.shape),
        weights=grad_weights.reshape(inputs.weights.shape),
    )


def pick_cell(both: Tensor, second: Tensor) -> Tensor:
    """Choose along the last axis of two: `both` (..., 2), `second` (...) bool."""
    return torch.where(second, both[..., 1], both[..., 0])
