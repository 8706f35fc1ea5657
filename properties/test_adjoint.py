"""Gradients against the forward alone: adjoint identities, and differences that have no truncation error.

out is linear in value and in weights, whatever the step, and linear in x and in y inside a cell. So

    sum over the samples of a query of a * grad_a  =  sum over the channels of g * out
    sum over the pixels of a map of V * grad_V     =  sum over the queries of g * out

and a difference of two forwards over a step that is exact is a derivative up to rounding. No reference is needed but
for error bounds.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.recipe import Recipe
from properties.relations import Call, Relation, small, summed, widest
from properties.strategies import recipes
from properties.transforms import choice, coarse
from reference.expect import expect
from reference.inputs import Inputs

SHARE = 0.5
# Two cells share what is drawn, and each case is seven forwards and a backward.
SHARE_OF_DIFFERENCES = 0.25
# No sum of these overflows float16, so that every result must be finite.
ORDINARY = ("normal", "sparse", "constant")
# Locations are rounded to multiples of 2^-20 and moved by 2^-16 or more, so both ends of a step are float32 numbers.
LOCATION_BITS = 20
# Samples "away" from pixel edges are a tenth of a pixel off, so a step of a twentieth stays in the cell.
STEPS_PER_PIXEL = 20

cells = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
# In 16 bits the storage of out hides all but the coarsest step.
wide_cells = pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell.value in (torch.float64, torch.float32)], ids=lambda cell: cell.name
)


@cells
def test_gradients_are_adjoint_to_the_forward(harness: Harness, cell: DtypeCell) -> None:
    """Both identities hold for every query and every map, within the error bounds of what they sum."""
    strategy = recipes(cell, limits=small(harness.limits), values=ORDINARY, grads=ORDINARY, layouts=False)

    def check(recipe: Recipe) -> None:
        __tracebackhide__ = True
        relation = Relation(harness, recipe)
        check_adjoint(relation, relation.call(relation.build()))
        harness.record_case(recipe)

    harness.for_all(strategy, check, share=SHARE)


def check_adjoint(relation: Relation, call: Call) -> None:
    """Hold both sums against sum g * out."""
    inputs = call.inputs
    heads = (inputs.heads, inputs.channels)
    grad = inputs.grad_output.double().unflatten(-1, heads)
    out = call.results["out"].double().unflatten(-1, heads)
    error = call.bound("out").unflatten(-1, heads)
    # (B, Q, M) and (B, M)
    weights = inputs.weights.double()
    left, left_error = paired(weights, call.results["grad_attention_weights"], call.bound("grad_attention_weights"), 2)
    right, right_error = paired(grad, out, error, 1)
    relation.close(
        "sum of a * grad_a against sum of g * out, by query", "the sum", left, right, left_error + right_error
    )
    value = inputs.value.double().transpose(1, 2)
    pushed, pushed_error = paired(
        value, call.results["grad_value"].transpose(1, 2), call.bound("grad_value").transpose(1, 2), 2
    )
    right, right_error = paired(grad.transpose(1, 2), out.transpose(1, 2), error.transpose(1, 2), 2)
    relation.close(
        "sum of V * grad_V against sum of g * out, by map", "the sum", pushed, right, pushed_error + right_error
    )


def paired(factor: Tensor, result: Tensor, bound: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Sum factor * result over the last dimensions, and bound the error: sum |factor| * bound, plus that of summing.

    A factor of exactly 0 says nothing of its result, however wide its bound.
    """
    last = tuple(range(-dims, 0))
    total, rounding = summed(factor * result.double(), last)
    weighed = torch.where(factor == 0.0, 0.0, factor.abs() * bound)
    return total, weighed.sum(last) + rounding


@wide_cells
def test_differences_are_exact(harness: Harness, cell: DtypeCell) -> None:
    """Differences of forwards give sums of grad_value and grad_a, and each location gradient by itself."""
    strategy = recipes(
        cell, limits=small(harness.limits), locations=("away", "far"), values=ORDINARY, grads=ORDINARY, layouts=False
    )

    def check(recipe: Recipe) -> None:
        __tracebackhide__ = True
        if harness.case is not None and (recipe.hot or not {"away", "far"}.issuperset(recipe.locations)):
            pytest.skip("the case has samples that may be on pixel edges, where a step leaves the cell")
        relation = Relation(harness, recipe)
        inputs = relation.build()
        call = relation.call(dataclasses.replace(inputs, locations=rounded_locations(inputs)))
        check_linear_differences(relation, call)
        check_location_differences(relation, call)
        harness.record_case(recipe)

    harness.for_all(strategy, check, share=SHARE_OF_DIFFERENCES)


def rounded_locations(inputs: Inputs) -> Tensor:
    """Round to a grid that is fine enough to stay in the cell, and coarse enough to step on exactly."""
    grid = 2.0**LOCATION_BITS
    return ((inputs.locations.double() * grid).round() / grid).to(inputs.locations.dtype)


def check_linear_differences(relation: Relation, call: Call) -> None:
    """Steps in value and in weights may have any length: as long as the operand itself, less its leading bits."""
    inputs = call.inputs
    heads = (inputs.heads, inputs.channels)
    step = inputs.value - coarse(inputs.value)
    change, error = forward_change(relation, call, dataclasses.replace(inputs, value=coarse(inputs.value)))
    right, right_error = summed(change.unflatten(-1, heads), (1, 3))
    right_error = right_error + error.unflatten(-1, heads).sum((1, 3))
    pushed, bound = call.results["grad_value"].transpose(1, 2), call.bound("grad_value").transpose(1, 2)
    left, left_error = paired(step.double().transpose(1, 2), pushed, bound, 2)
    relation.close(
        "a step of value against the change of g * out, by map", "the sum", left, right, left_error + right_error
    )

    step = inputs.weights - coarse(inputs.weights)
    change, error = forward_change(relation, call, dataclasses.replace(inputs, weights=coarse(inputs.weights)))
    right, right_error = summed(change.unflatten(-1, heads), 3)
    right_error = right_error + error.unflatten(-1, heads).sum(3)
    name = "grad_attention_weights"
    left, left_error = paired(step.double(), call.results[name], call.bound(name), 2)
    relation.close("a step of weights against the change of g * out", "the sum", left, right, left_error + right_error)


def forward_change(relation: Relation, call: Call, start: Inputs) -> tuple[Tensor, Tensor]:
    """Return g * (out - out at another start), (B, Q, M * D) float64, and the bound of its error."""
    before, bound = forward(relation, start)
    grad = call.inputs.grad_output.double()
    return grad * (call.results["out"].double() - before), grad.abs() * (call.bound("out") + bound)


def forward(relation: Relation, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Run the forward alone; float64 results and their bound."""
    with relation.harness.clock("subject"):
        out = relation.subject.observe(inputs, gradients=False).out
    with relation.harness.clock("reference"):
        bounded = expect(inputs, relation.subject.arithmetic, gradients=False).out
    return out.double(), widest(bounded)


def check_location_differences(relation: Relation, call: Call) -> None:
    """Move one sample of every query and head by a step in x, or in y, to either side: the slope is its gradient."""
    inputs = call.inputs
    seed = relation.recipe.seed
    level, point = choice(seed, 20, len(inputs.levels)), choice(seed, 21, inputs.points)
    axis = choice(seed, 22, 2)
    side = inputs.levels[level][1 - axis]
    step = 2.0 ** -(STEPS_PER_PIXEL * side - 1).bit_length()
    ends = []
    for sign in (1.0, -1.0):
        locations = inputs.locations.clone()
        locations[:, :, :, level, point, axis] += sign * step
        ends.append(forward(relation, dataclasses.replace(inputs, locations=locations)))
    grad = inputs.grad_output.double()
    heads = (inputs.heads, inputs.channels)
    slope, rounding = summed((grad * (ends[0][0] - ends[1][0])).unflatten(-1, heads), 3)
    error = (grad.abs() * (ends[0][1] + ends[1][1])).unflatten(-1, heads).sum(3)
    name, place = "grad_sampling_locations", (slice(None), slice(None), slice(None), level, point, axis)
    allowed = call.bound(name)[place] + (error + 2.0 * rounding) / (2.0 * step)
    what = f"a step of {'xy'[axis]} against the change of g * out"
    relation.close(what, "the sum", call.results[name][place].double(), slope / (2.0 * step), allowed)
