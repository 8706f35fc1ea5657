"""What a kernel must return bitwise where none of its operations rounds.

On operands whose products and partial sums all fit into the significand of the arithmetic, a kernel's result is the
exact one, rounded once to its storage dtype. The float64 reference is exact there too, so the expectation has no
tolerance. Whoever calls this must know that the operands are of that kind: `properties.lattice` makes them so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .expect import Bounded, Expectation
from .float64 import chunks, pick_cell
from .inputs import Inputs


def expect_exactly(inputs: Inputs, *, gradients: bool = True, scratch_bytes: int | None = None) -> Expectation:
    """Evaluate the reference, with bounds of zero around the values that storage rounds it to.

    Where a pixel coordinate is an integer, the location gradient of that axis may be that of either neighbouring cell,
    and nothing between them. -0 counts as 0. Where rounding to storage overflows, the infinity is required.

    Args:
        inputs: operands on which no intermediate result is rounded; samples that are skipped may lie anywhere.
        gradients: evaluate the three gradients too.
        scratch_bytes: as for `reference.expect.expect`.

    Returns:
        The expectation, with no parts of bounds: there is nothing to explain.
    """
    sums = _Sums.zeros(inputs)
    for chunk in chunks(inputs, scratch_bytes=scratch_bytes):
        sums.out[chunk.rows] = torch.einsum("tp,tpd->td", chunk.weight, chunk.interpolated)
        if not gradients:
            continue
        sums.weights[chunk.rows] = chunk.against_grad(chunk.interpolated)
        upper, two = chunk.stencil.upper, chunk.stencil.two
        both = chunk.location_gradients
        sums.locations[chunk.rows] = pick_cell(both, upper)
        sums.neighbour[chunk.rows] = pick_cell(both, upper ^ two)
        factor = torch.where(chunk.stencil.touched, chunk.weight[..., None, None] * chunk.blend, 0.0)
        terms = factor.unsqueeze(-1) * chunk.grad[:, None, None, None, :]
        index = chunk.pixel_row.reshape(-1)
        sums.value.index_add_(0, index, terms.reshape(-1, inputs.channels))
        sums.count.index_add_(0, index, (factor != 0.0).reshape(-1).long())
    out = _stored(sums.out.reshape(inputs.batch, inputs.queries, -1), inputs.value.dtype)
    if not gradients:
        return Expectation(out=out)
    location_dtype = inputs.locations.dtype
    neighbour = _stored(sums.neighbour.reshape(inputs.locations.shape), location_dtype)
    return Expectation(
        out=out,
        grad_value=_stored(sums.value.reshape(inputs.value.shape), inputs.value.dtype),
        grad_sampling_locations=_stored(sums.locations.reshape(inputs.locations.shape), location_dtype, neighbour),
        grad_attention_weights=_stored(sums.weights.reshape(inputs.weights.shape), inputs.weights.dtype),
        contributions=sums.count.reshape(inputs.batch, inputs.pixels, inputs.heads),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """float64 results on their way: `neighbour` is the location gradient on the other side of a pixel edge."""

    out: Tensor
    value: Tensor
    locations: Tensor
    neighbour: Tensor
    weights: Tensor
    count: Tensor

    @classmethod
    def zeros(cls, inputs: Inputs) -> _Sums:
        triples = inputs.batch * inputs.queries * inputs.heads
        samples = len(inputs.levels) * inputs.points
        rows = inputs.batch * inputs.pixels * inputs.heads

        def zero(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=inputs.device)

        return cls(
            out=zero(triples, inputs.channels),
            value=zero(rows, inputs.channels),
            locations=zero(triples, samples, 2),
            neighbour=zero(triples, samples, 2),
            weights=zero(triples, samples),
            count=zero(rows, dtype=torch.int64),
        )


def _stored(exact: Tensor, dtype: torch.dtype, *alternatives: Bounded) -> Bounded:
    # The exact result fits into the arithmetic's significand, so torch's detour over float32 rounds only once.
    rounded = exact.to(dtype).double()
    zero = torch.zeros_like(exact)
    return Bounded(
        dtype=dtype,
        # Kept exact where it overflows: the comparison knows by it which infinity is right.
        value=torch.where(rounded.isfinite(), rounded, exact),
        bound=zero,
        parts={},
        before_storage=zero,
        hazard=torch.zeros_like(exact, dtype=torch.bool),
        alternatives=alternatives,
    )
