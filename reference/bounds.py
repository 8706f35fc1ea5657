"""The largest error that a correct kernel may make, per element, before its result is rounded to storage.

Machine model: every operation in the compute format is rounded to nearest, fl(a op b) = (a op b)(1 + d) + e with
|d| <= u and |e| <= eta, where e is not 0 only on underflow. Additions come in any order. Contraction to fused
multiply-adds only removes roundings. gamma_k = k u / (1 - k u) bounds k roundings.

An error has three sources, kept apart so that a reader of a failure sees which one explains it: arithmetic (roundings),
coordinate (the sample was evaluated at a coordinate that is off by at most the stencil's `error`), and underflow.
Storage is added by `reference.expect`. Symbols: a weight, g gradient of out, v value, w bilinear factor, P samples per
query, D channels, S = sum of w |v|, ex and ey coordinate errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from .float64 import Chunk
from .model import OVERFLOW, UNIT_ROUNDOFF, Arithmetic, compute_dtype

# |e| of one operation that underflows: half the smallest subnormal, or the smallest normal where it is flushed.
UNDERFLOW = {(torch.float32, False): 2.0**-150, (torch.float32, True): 2.0**-126, (torch.float64, False): 2.0**-1074}
# 16-bit atomics keep subnormals: half the smallest one per addition.
NATIVE_UNDERFLOW = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}
# The float64 reference errs by 2^-29 of a float32 bound.
REFERENCE_ERROR = 1.0 + 2.0**-20
# Twice for float64 kernels: the reference is no more accurate than they are. (Coordinate errors are doubled at their
# source.)
FLOAT64_REFERENCE_ERROR = 2.0
# Of the probabilistic bound: it fails with a probability of the order of exp(-18) for each sum.
LAMBDA = 6.0


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The machine model of one call: what `Arithmetic` means for operands of one dtype.

    Attributes:
        value_dtype: decides the compute dtype.
        arithmetic: the kernel's declaration.
        exact_reference: whether the values that kernels are compared with come from rational arithmetic.
    """

    value_dtype: torch.dtype
    arithmetic: Arithmetic
    exact_reference: bool = False

    @cached_property
    def compute(self) -> torch.dtype:
        """The format that the kernel computes in."""
        return compute_dtype(self.value_dtype)

    @cached_property
    def unit(self) -> float:
        """Unit roundoff u of the compute format."""
        return UNIT_ROUNDOFF[self.compute]

    @cached_property
    def underflow(self) -> float:
        """Largest absolute error eta of an operation that underflows."""
        return UNDERFLOW[self.compute, self.arithmetic.flush_to_zero and self.compute == torch.float32]

    @cached_property
    def atomic_underflow(self) -> float:
        """Likewise for one addition of an atomic: of its operands or its sum."""
        return UNDERFLOW[self.compute, self.arithmetic.flush_atomics and self.compute == torch.float32]

    @cached_property
    def native(self) -> bool:
        """Whether grad_value is accumulated in a 16-bit format."""
        return self.arithmetic.accumulate == "native" and self.value_dtype in NATIVE_UNDERFLOW

    @cached_property
    def accumulator_unit(self) -> float:
        """Unit roundoff of one addition to grad_value."""
        return UNIT_ROUNDOFF[self.value_dtype] if self.native else self.unit

    @cached_property
    def largest(self) -> float:
        """Magnitude from which the compute format overflows."""
        return OVERFLOW[self.compute]

    @cached_property
    def spread(self) -> float:
        """How much larger than the pixels an intermediate of the interpolation may be.

        Four factors may add up to a little more than 1; the other forms subtract pixels first.
        """
        return 1.0 + 16.0 * self.unit if self.arithmetic.interpolation == "weights" else 2.0

    @cached_property
    def slack(self) -> float:
        """Factor for the error of the reference itself."""
        doubled = self.compute == torch.float64 and not self.exact_reference
        return FLOAT64_REFERENCE_ERROR if doubled else REFERENCE_ERROR

    def gamma(self, roundings: int) -> float:
        """Relative error of `roundings` successive roundings: k u / (1 - k u)."""
        return roundings * self.unit / (1.0 - roundings * self.unit)


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """The exact value and the parts of its error bound, all of one shape.

    Attributes:
        value: exact result, float64.
        arithmetic: error from roundings.
        coordinate: error from the rounded pixel coordinate.
        underflow: error from operations that underflow.
        reached: bool; False where nothing may contribute, so that the result must be exactly 0.
        hazard: bool; an intermediate result may overflow, so that infinities and NaN are admissible.
    """

    value: Tensor
    arithmetic: Tensor
    coordinate: Tensor
    underflow: Tensor
    reached: Tensor
    hazard: Tensor

    def reshape(self, shape: torch.Size | tuple[int, ...]) -> Terms:
        """Return the same terms in another shape."""
        return Terms(**{f.name: getattr(self, f.name).reshape(shape) for f in fields(self)})


class SampleErrors:
    """Per sample and channel: how far the interpolated value may be off. Shared by out and grad_attention_weights."""

    def __init__(self, chunk: Chunk, rounding: Rounding) -> None:
        self.chunk = chunk
        self.rounding = rounding
        self.error_x = chunk.stencil.error[..., 0]
        self.error_y = chunk.stencil.error[..., 1]
        self.one_cell = ~(chunk.stencil.two[..., 0] | chunk.stencil.two[..., 1])

    @cached_property
    def cross(self) -> Tensor:
        """(T, P, 2, 2, D) mixed second differences v00 - v01 - v10 + v11 of each cell, 0 for cells not touched."""
        cross = self.chunk.step_x[..., 1:, :, :] - self.chunk.step_x[..., :-1, :, :]
        cross[..., 1, :, :] = torch.where(self.chunk.stencil.two[..., 1, None, None], cross[..., 1, :, :], 0.0)
        return cross

    @cached_property
    def window_sum(self) -> Tensor:
        """(T, P, D) sum of |v| over the pixels that may be touched."""
        return self.chunk.magnitude.sum(dim=(2, 3))

    @cached_property
    def cell_sum(self) -> Tensor:
        """(T, P, 2, 2, D) sum of |v| over the four pixels of each cell, 0 for cells not touched."""
        rows = self.chunk.magnitude[..., 1:, :, :] + self.chunk.magnitude[..., :-1, :, :]
        cells = rows[..., 1:, :] + rows[..., :-1, :]
        two = self.chunk.stencil.two
        cells[..., 1, :, :] = torch.where(two[..., 1, None, None], cells[..., 1, :, :], 0.0)
        cells[..., 1, :] = torch.where(two[..., 0, None, None], cells[..., 1, :], 0.0)
        return cells

    @cached_property
    def magnitude_sum(self) -> Tensor:
        """(T, P, D) S, the interpolated |v|."""
        return torch.einsum("tpij,tpijd->tpd", self.chunk.blend, self.chunk.magnitude)

    @cached_property
    def across_cells(self) -> Tensor:
        """(T, P, D) change of the value over the error box when it touches several cells.

        The interpolant is continuous, so each step costs at most its largest slope in any touched cell.
        """
        slope_x = self.chunk.step_x.abs().amax(dim=(2, 3))
        slope_y = self.chunk.step_y.abs().amax(dim=(2, 3))
        return self.error_x.unsqueeze(-1) * slope_x + self.error_y.unsqueeze(-1) * slope_y

    def within_cell(self, slope_x: Tensor, slope_y: Tensor, cross: Tensor) -> Tensor:
        """Change of a bilinear patch over the error box: ex|s_x| + ey|s_y| + ex ey|s_xy|, an identity."""
        extra = (1,) * (slope_x.dim() - self.error_x.dim())
        ex = self.error_x.reshape(self.error_x.shape + extra)
        ey = self.error_y.reshape(self.error_y.shape + extra)
        return ex * slope_x.abs() + ey * slope_y.abs() + ex * ey * cross.abs()

    @cached_property
    def sensitivity(self) -> Tensor:
        """(T, P, D) change of the interpolated value over the error box."""
        inside = self.within_cell(
            self.chunk.slope_x[..., 0, :], self.chunk.slope_y[..., 0, :], self.cross[..., 0, 0, :]
        )
        return torch.where(self.one_cell.unsqueeze(-1), inside, self.across_cells)

    @cached_property
    def magnitude_reach(self) -> Tensor:
        """(T, P, D) S anywhere in the error box: no pixel's factor grows by more than ex + ey + ex ey."""
        grown = self.error_x + self.error_y + self.error_x * self.error_y
        return self.magnitude_sum + grown.unsqueeze(-1) * self.window_sum

    @cached_property
    def form(self) -> Tensor | None:
        """(T, P, D) absolute error of the declared interpolation form beyond that of products, or None."""
        unit = self.rounding.unit
        if self.rounding.arithmetic.interpolation == "difference":
            # Weights built by differences carry up to 2u each, whatever their size.
            return 2.0 * unit * (1.0 + 8.0 * unit) * self.cell_sum.amax(dim=(2, 3))
        if self.rounding.arithmetic.interpolation == "lerp":
            return 6.0 * self.rounding.gamma(5) * self.chunk.magnitude.amax(dim=(2, 3))
        return None


def likely(arithmetic: float, roundings: float) -> float:
    """Return what the error from roundings hardly ever exceeds: lambda sqrt(k) u sum |t| where k u sum |t| is proven.

    Higham and Mary 2019, with lambda = 6; for roundings that are independent and of mean zero, which they need not be.
    For pictures, never for a verdict.

    Args:
        arithmetic: proven.
        roundings: k, successive ones.
    """
    return arithmetic * min(1.0, LAMBDA / math.sqrt(roundings)) if roundings > 0.0 else arithmetic


def out_roundings(samples: int, arithmetic: Arithmetic) -> int:
    """Return k of the output's bound.

    Args:
        samples: P, of one query and head.
        arithmetic: the kernel's declaration.
    """
    form = "flat" if arithmetic.corner_sum == "flat" else arithmetic.interpolation
    flat = 4 * samples + 4
    return {"flat": flat, "weights": samples + 7, "difference": flat, "lerp": samples + 1}[form]


def gradient_roundings(channels: int) -> int:
    """Return k of the bounds of grad_sampling_locations and grad_attention_weights: sums over D channels."""
    return channels + 7


def out(errors: SampleErrors) -> Terms:
    """Bound the output: gamma_k (A + ...) + sum |a| D with k = P + 7 for nested sums, 4 P + 4 for flat ones.

    Two roundings for the factors, one for their product, one each for the products with v and a; then three additions
    of corners and P - 1 of samples, or 4 P - 1 in one running sum. All terms are (T, D).
    """
    chunk, rounding = errors.chunk, errors.rounding
    samples = chunk.weight.shape[1]
    per_sample = rounding.gamma(out_roundings(samples, rounding.arithmetic)) * errors.magnitude_reach
    if errors.form is not None:
        per_sample = per_sample + errors.form
    weight = chunk.weight
    absolute = weight.abs()
    # One product over the samples for each part: (T, P, D) against (T, P).
    parts = torch.stack([per_sample, errors.sensitivity, errors.window_sum], dim=1)
    arithmetic, coordinate, everything = torch.einsum("tp,tkpd->ktd", absolute, parts).unbind(0)
    live = chunk.stencil.live
    tiny = torch.einsum("tp,tpd->td", live.double() * (1.0 + absolute), 8.0 + 3.0 * errors.window_sum)
    value = torch.einsum("tp,tpd->td", weight, chunk.interpolated)
    most = chunk.magnitude.amax(dim=(1, 2, 3))
    hazard = ~(everything < rounding.largest) | ~(rounding.spread * most < rounding.largest)
    return Terms(
        value=value,
        arithmetic=arithmetic,
        coordinate=coordinate,
        underflow=rounding.underflow * tiny,
        reached=live.any(dim=1, keepdim=True).expand_as(value),
        hazard=hazard,
    )


def grad_attention_weights(errors: SampleErrors) -> Terms:
    """Bound sum_c g_c s_c: gamma_(D+7) sum |g|(S + ...) plus the coordinate term. All terms are (T, P).

    One coordinate error is shared by all channels, so inside a cell the slopes are summed with their signs before the
    absolute value is taken.
    """
    chunk, rounding = errors.chunk, errors.rounding
    signed = torch.stack(
        [chunk.interpolated, chunk.slope_x[..., 0, :], chunk.slope_y[..., 0, :], errors.cross[..., 0, 0, :]], dim=2
    )
    value, slope_x, slope_y, cross = chunk.against_grad(signed).unbind(-1)
    magnitudes = [errors.magnitude_reach, errors.across_cells]
    if errors.form is not None:
        magnitudes.append(errors.form)
    sums = chunk.against_grad(torch.stack(magnitudes, dim=2), absolute=True)
    reach, across = sums[..., 0], sums[..., 1]
    arithmetic = rounding.gamma(gradient_roundings(chunk.grad.shape[-1])) * reach
    if errors.form is not None:
        arithmetic = arithmetic + sums[..., 2]
    live = chunk.stencil.live
    # Products with g come before or after the corners are blended.
    products = chunk.against_grad(errors.window_sum, absolute=True)
    most = errors.window_sum.amax(dim=-1)
    return Terms(
        value=value,
        arithmetic=arithmetic,
        coordinate=torch.where(errors.one_cell, errors.within_cell(slope_x, slope_y, cross), across),
        # live.double(): a Python float times a bool tensor is float32, where eta would be 0.
        underflow=rounding.underflow * live.double() * _one_plus_grad(chunk, 8.0 + 3.0 * errors.window_sum),
        reached=live,
        hazard=~(rounding.spread * torch.maximum(products, most) < rounding.largest),
    )


def _one_plus_grad(chunk: Chunk, per_channel: Tensor) -> Tensor:
    """Sum over channels of (1 + |g|) times `per_channel` (T, P, D): (T, P)."""
    return torch.matmul(per_channel, (1.0 + chunk.grad.abs()).unsqueeze(-1)).squeeze(-1)


def grad_sampling_locations(errors: SampleErrors) -> Terms:
    """Bound the location gradient within each of the two cells of its axis. All terms are (T, P, 2, 2): axis, cell.

    W |a| (gamma_(D+7) sum |g|(T + e V) + e sum |g| M), where T is the interpolated sum of the magnitudes of the two
    columns, V the sum of |v| of a cell, M the mixed difference of a cell and e the coordinate error of the OTHER axis:
    inside a cell the gradient does not depend on its own coordinate.
    """
    chunk, rounding = errors.chunk, errors.rounding
    magnitude = chunk.magnitude
    columns = magnitude[..., 1:, :] + magnitude[..., :-1, :]
    rows = magnitude[..., 1:, :, :] + magnitude[..., :-1, :, :]
    hat = chunk.stencil.hat
    along = torch.stack(
        [
            torch.einsum("tpi,tpijd->tpjd", hat[..., 1, :], columns),
            torch.einsum("tpj,tpijd->tpid", hat[..., 0, :], rows),
        ],
        dim=2,
    )
    cells, cross = errors.cell_sum, errors.cross.abs()
    volume = torch.stack([cells.amax(dim=2), cells.amax(dim=3)], dim=2)
    mixed = torch.stack([cross.amax(dim=2), cross.amax(dim=3)], dim=2)
    sums = chunk.against_grad(torch.stack([along, volume, mixed], dim=2), absolute=True)
    along_sum, volume_sum, mixed_sum = sums.unbind(2)
    # Factors that are differences carry an absolute error; so does each of two lerps that are subtracted.
    unit, form = rounding.unit, rounding.arithmetic.interpolation
    absolute_error = 0.0 if form == "weights" else 2.0 * unit * (1.0 + 8.0 * unit)
    if form == "lerp":
        absolute_error += 12.0 * rounding.gamma(5)
    other = chunk.stencil.error.flip(-1).unsqueeze(-1)
    absolute = chunk.weight.abs()
    scale = (chunk.size * absolute.unsqueeze(-1)).unsqueeze(-1)
    gamma = rounding.gamma(gradient_roundings(chunk.grad.shape[-1]))
    live = chunk.stencil.live
    tiny = (live.double() * (1.0 + absolute) * _one_plus_grad(chunk, 8.0 + 3.0 * errors.window_sum)).unsqueeze(-1)
    underflow = rounding.underflow * (1.0 + chunk.size) * tiny
    # Two pixels may be subtracted, and W, a and g multiplied, before anything small scales them down.
    largest = (1.0 + absolute) * _one_plus_grad(chunk, 1.0 + errors.window_sum)
    hazard = ~(2.0 * (1.0 + chunk.size) * largest.unsqueeze(-1) < rounding.largest)
    shape = scale.expand_as(along_sum).shape
    return Terms(
        value=chunk.location_gradients,
        arithmetic=scale * (gamma * (along_sum + other * volume_sum) + absolute_error * volume_sum),
        coordinate=scale * other * mixed_sum,
        underflow=underflow.unsqueeze(-1).expand(shape),
        reached=live[..., None, None].expand(shape),
        hazard=hazard.unsqueeze(-1).expand(shape),
    )
