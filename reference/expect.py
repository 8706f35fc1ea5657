"""For each element of the output and the gradients: the exact value and how far a correct result may be from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from . import bounds, exact
from .accumulation import CONTRIBUTION_ROUNDINGS, GradValueSums
from .bounds import REFERENCE_ERROR, Rounding, SampleErrors, Terms
from .float64 import chunks
from .inputs import Inputs
from .model import HALF_SUBNORMAL, OVERFLOW, UNIT_ROUNDOFF, Arithmetic, UnboundedError
from .stencil import Place

# A window holds a coordinate that is off by less than half a pixel; twice that is lost in the box.
WIDEST_ERROR = 0.25
SMALLEST_FLOAT64 = 2.0**-1074


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounded:
    """Admissible results of one output: value +- bound per element, or one of two such intervals.

    Attributes:
        dtype: storage dtype of the output.
        value: exact result, float64.
        bound: largest admissible |result - value|, storage rounding included.
        parts: what the bound is made of, by source: arithmetic, coordinate, underflow, storage.
        before_storage: the bound without storage rounding; decides which results may overflow.
        hazard: bool, an intermediate result may overflow: infinities and NaN are admissible.
        alternatives: further intervals, each admissible instead (location gradients at pixel edges).
    """

    dtype: torch.dtype
    value: Tensor
    bound: Tensor
    parts: dict[str, Tensor]
    before_storage: Tensor
    hazard: Tensor
    alternatives: tuple[Bounded, ...] = ()

    def ratio(self, observed: Tensor) -> Tensor:
        """Error over bound per element: at most 1 for an admissible result.

        0 / 0 counts as 0; an error where none is allowed as infinity. Where the operands are not finite, so that the
        bound is not, anything goes. An infinity is admissible where the exact result may round to it, a NaN only where
        an intermediate result may overflow.

        Args:
            observed: the result, of `value`'s shape and any floating dtype.
        """
        result = observed.to(dtype=torch.float64, device=self.value.device)
        ratio = self._ratio(result)
        for other in self.alternatives:
            ratio = torch.minimum(ratio, other._ratio(result))
        return ratio

    def _ratio(self, result: Tensor) -> Tensor:
        error = (result - self.value).abs()
        ratio = torch.where(error == 0.0, 0.0, error / self.bound)
        rounds_to_infinity = torch.sign(result) * self.value + self.before_storage >= OVERFLOW[self.dtype]
        excused = self.hazard | (result.isinf() & rounds_to_infinity)
        ratio = torch.where(result.isfinite(), ratio, torch.where(excused, 0.0, torch.inf))
        return torch.where(self.bound.isfinite() & self.value.isfinite(), ratio, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectation:
    """What a correct kernel may return for one `Inputs`.

    Attributes:
        out: (B, Q, M * D).
        grad_value: (B, S, M, D), or None when only the forward was evaluated; likewise the other gradients.
        grad_sampling_locations: (B, Q, M, L, K, 2).
        grad_attention_weights: (B, Q, M, L, K).
        contributions: (B, S, M) int64, samples that may contribute to each pixel of grad_value.
        magnitude: (B, S, M, D) float64, largest sum of |contributions| to each element of grad_value.
        roundings: successive roundings behind the arithmetic part of each output's bound; for grad_value (B, S, M).
    """

    out: Bounded
    grad_value: Bounded | None = None
    grad_sampling_locations: Bounded | None = None
    grad_attention_weights: Bounded | None = None
    contributions: Tensor | None = None
    magnitude: Tensor | None = None
    roundings: Mapping[str, int | Tensor] = field(default_factory=dict)


def expect(
    inputs: Inputs,
    arithmetic: Arithmetic | None = None,
    *,
    gradients: bool = True,
    rational: bool = False,
    scratch_bytes: int | None = None,
) -> Expectation:
    """Evaluate the reference and the bounds of one call.

    Args:
        inputs: the stored operands, on any device; the exact function of them is the reference value.
        arithmetic: what the kernel declares; None means the defaults of the shipped kernels.
        gradients: evaluate the three gradients too.
        rational: take values and coordinates from `reference.exact`. Only for tiny inputs with finite values, weights
            and gradients; it halves the bounds of float64, which otherwise allow for the reference's own rounding.
        scratch_bytes: upper limit of temporary memory beyond the returned tensors; None means 2 GiB on a GPU and
            128 MiB on a CPU.

    Raises:
        ValueError: the declared coordinate arithmetic is too coarse for the level sizes to bound anything.
    """
    arithmetic = arithmetic or Arithmetic()
    rounding = Rounding(value_dtype=inputs.value.dtype, arithmetic=arithmetic, exact_reference=rational)
    _require_fine_coordinates(inputs, arithmetic, rounding)
    triples = inputs.batch * inputs.queries * inputs.heads
    samples = len(inputs.levels) * inputs.points
    device = inputs.device
    out = _blank((triples, inputs.channels), device)
    if gradients:
        locations = _blank((triples, samples, 2, 2), device)
        weights = _blank((triples, samples), device)
        second = torch.zeros((triples, samples, 2, 2), dtype=torch.bool, device=device)
        grad_value = GradValueSums(inputs.batch * inputs.pixels * inputs.heads, inputs.channels, rounding, device)
    at = _rational_coordinates(inputs) if rational else None
    for chunk in chunks(inputs, arithmetic, at=at, scratch_bytes=scratch_bytes):
        errors = SampleErrors(chunk, rounding)
        _fill(out, chunk.rows, bounds.out(errors))
        if gradients:
            _fill(weights, chunk.rows, bounds.grad_attention_weights(errors))
            _fill(locations, chunk.rows, bounds.grad_sampling_locations(errors))
            second[chunk.rows] = torch.stack([chunk.stencil.two, chunk.stencil.upper], dim=-1)
            grad_value.add(chunk)
    out_shape = (inputs.batch, inputs.queries, inputs.heads * inputs.channels)
    bounded_out = _store(out.reshape(out_shape), inputs.value.dtype, rounding)
    if rational:
        bounded_out = _with_value(bounded_out, exact.forward(inputs))
    roundings: dict[str, int | Tensor] = {"out": bounds.out_roundings(samples, arithmetic)}
    if not gradients:
        return Expectation(out=bounded_out, roundings=roundings)
    bounded_value = _store(
        grad_value.terms().reshape(inputs.value.shape),
        inputs.value.dtype,
        rounding,
        rounded=arithmetic.accumulate == "native",
    )
    bounded_locations = _store_two_sided(locations, second, inputs, rounding)
    bounded_weights = _store(weights.reshape(inputs.weights.shape), inputs.weights.dtype, rounding)
    if rational:
        true = exact.gradients(inputs)
        bounded_value = _with_value(bounded_value, true.value)
        two = second[..., 0].reshape(inputs.locations.shape)
        bounded_locations = _with_value(bounded_locations, true.locations_right, two=two)
        bounded_weights = _with_value(bounded_weights, true.weights)
    counts = grad_value.count.reshape(inputs.batch, inputs.pixels, inputs.heads)
    across_channels = bounds.gradient_roundings(inputs.channels)
    roundings |= {"grad_sampling_locations": across_channels, "grad_attention_weights": across_channels}
    return Expectation(
        out=bounded_out,
        grad_value=bounded_value,
        grad_sampling_locations=bounded_locations,
        grad_attention_weights=bounded_weights,
        contributions=counts,
        magnitude=grad_value.magnitude().reshape(inputs.value.shape) * REFERENCE_ERROR,
        roundings=roundings | {"grad_value": counts + CONTRIBUTION_ROUNDINGS},
    )


def _rational_coordinates(inputs: Inputs) -> Place:
    nearest, rests = (torch.from_numpy(part).to(inputs.device) for part in exact.coordinates(inputs))
    return Place(origin=nearest, offset=rests)


def _with_value(bounded: Bounded, value: exact.Rationals, *, two: Tensor | None = None) -> Bounded:
    """Replace the value by the exact one; rounding it to float64 is an error of the reference, added to the bound.

    Args:
        bounded: what float64 arithmetic says.
        value: the exact results.
        two: for location gradients, where a neighbouring cell is admissible too. `reference.exact` does not know that
            cell's gradient, so it keeps its float64 value, which errs like a kernel: by the bound once more.
    """
    true = torch.from_numpy(exact.to_float64(value)).to(bounded.value.device)
    rounded = UNIT_ROUNDOFF[torch.float64] * true.abs() + torch.where(true != 0.0, SMALLEST_FLOAT64, 0.0)

    def add(one: Bounded, error: Tensor, center: Tensor) -> Bounded:
        return replace(
            one,
            value=center,
            bound=one.bound + error,
            before_storage=one.before_storage + error,
            parts={**one.parts, "reference": error},
        )

    others = []
    for other in bounded.alternatives:
        assert two is not None
        error = torch.where(two, other.parts["arithmetic"] + other.parts["underflow"], rounded)
        others.append(add(other, error, torch.where(two, other.value, true)))
    return replace(add(bounded, rounded, true), alternatives=tuple(others))


def _require_fine_coordinates(inputs: Inputs, arithmetic: Arithmetic, rounding: Rounding) -> None:
    unit = UNIT_ROUNDOFF[inputs.locations.dtype if arithmetic.coordinate_dtype == "storage" else rounding.compute]
    widest = max((side for level in inputs.levels for side in level), default=0)
    # The largest factor of any coordinate form is 7 (grid: |x| + |loc W| + 1 + 5/2 W on the map), and the float64
    # reference doubles it.
    if 14 * unit * (widest + 2) > WIDEST_ERROR:
        raise UnboundedError(
            f"arithmetic: coordinates with unit roundoff {unit} on a level {widest} pixels wide may be off by a "
            f"quarter of a pixel or more; expected levels narrower than {WIDEST_ERROR / 14 / unit:.0f} pixels"
        )


def _blank(shape: tuple[int, ...], device: torch.device) -> Terms:
    """Terms of a result to which nothing contributes: exactly 0."""
    zero = [torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(4)]
    never = [torch.zeros(shape, dtype=torch.bool, device=device) for _ in range(2)]
    value, arithmetic, coordinate, underflow = zero
    return Terms(
        value=value,
        arithmetic=arithmetic,
        coordinate=coordinate,
        underflow=underflow,
        reached=never[0],
        hazard=never[1],
    )


def _fill(whole: Terms, rows: slice, part: Terms) -> None:
    whole.value[rows] = part.value
    whole.arithmetic[rows] = part.arithmetic
    whole.coordinate[rows] = part.coordinate
    whole.underflow[rows] = part.underflow
    whole.reached[rows] = part.reached
    whole.hazard[rows] = part.hazard


def _store(terms: Terms, dtype: torch.dtype, rounding: Rounding, *, rounded: bool = False) -> Bounded:
    """Add the rounding to the storage dtype: E (1 + u_o) + u_o |value| + half a subnormal.

    Args:
        terms: what was computed.
        dtype: how it is stored.
        rounding: the machine model.
        rounded: the result is of the storage dtype already: it was accumulated in it.
    """
    arithmetic = terms.arithmetic * rounding.slack
    # The coordinate errors of a float64 reference are in the stencil.
    coordinate = terms.coordinate * REFERENCE_ERROR
    # Added where anything is reached at all: elsewhere the result is exactly 0.
    underflow = torch.where(terms.reached, terms.underflow * rounding.slack, 0.0)
    before = arithmetic + coordinate + underflow
    if rounded or dtype == rounding.compute:
        storage = torch.zeros_like(before)
    else:
        unit = UNIT_ROUNDOFF[dtype]
        storage = unit * (before + terms.value.abs())
        storage = torch.where(terms.reached, storage + HALF_SUBNORMAL[dtype], storage)
    parts = {"arithmetic": arithmetic, "coordinate": coordinate, "underflow": underflow, "storage": storage}
    return Bounded(
        dtype=dtype,
        value=terms.value,
        bound=before + storage,
        parts=parts,
        before_storage=before,
        hazard=terms.hazard,
    )


def _store_two_sided(terms: Terms, second: Tensor, inputs: Inputs, rounding: Rounding) -> Bounded:
    """Bound the location gradient in the cell that holds the exact coordinate, and in the neighbour it may fall into.

    Args:
        terms: (triples, samples, 2, 2), axis and cell.
        second: (triples, samples, 2, 2) bool: is there a second cell, and does it hold the exact coordinate.
        inputs: for shapes and dtypes.
        rounding: the machine model.
    """
    both = _store(terms, inputs.locations.dtype, rounding)
    has_two, upper = second.unbind(-1)

    def of_cell(take_second: Tensor, alternatives: tuple[Bounded, ...]) -> Bounded:
        def pick(stacked: Tensor) -> Tensor:
            return torch.where(take_second, stacked[..., 1], stacked[..., 0]).reshape(inputs.locations.shape)

        return Bounded(
            dtype=both.dtype,
            value=pick(both.value),
            bound=pick(both.bound),
            parts={name: pick(part) for name, part in both.parts.items()},
            before_storage=pick(both.before_storage),
            hazard=pick(both.hazard),
            alternatives=alternatives,
        )

    # Where only one cell can hold the sample, the neighbour is that cell again.
    neighbour = of_cell(upper ^ has_two, ())
    return of_cell(upper, (neighbour,))
