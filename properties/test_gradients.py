"""Output and all three gradients lie within their error bounds, and gradcheck agrees in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.recipe import Recipe
from properties.strategies import recipes
from reference.expect import expect
from reference.inputs import Inputs
from reference.model import UNIT_ROUNDOFF

# Full Jacobians cost two forwards per input element.
FULL_JACOBIAN_ELEMENTS = 8
FLOAT64 = next(cell for cell in CELLS if cell.value == torch.float64)


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_gradients_within_bound(harness: Harness, cell: DtypeCell) -> None:
    """out, grad_value, grad_sampling_locations and grad_attention_weights are within their bounds.

    At a pixel edge the location gradient may be that of either cell. Where nothing is sampled and for skipped samples
    the bound is 0, so those gradients must be exactly 0.
    """
    if not harness.subject.backward:
        pytest.skip(f"{harness.subject.name} does not declare a backward")
    harness.for_all(recipes(cell, limits=harness.limits), harness.check)


@pytest.mark.parametrize("jacobian", ["full", "projected"])
@pytest.mark.parametrize("cell", [FLOAT64], ids=lambda cell: cell.name)
def test_gradcheck(harness: Harness, cell: DtypeCell, jacobian: str) -> None:
    """torch.autograd.gradcheck accepts the float64 gradients on samples that keep away from pixel edges."""
    ordinary = ("normal", "sparse")
    limits = harness.limits.tiny()
    if jacobian == "full":
        most = FULL_JACOBIAN_ELEMENTS
        limits = dataclasses.replace(limits, max_value_elements=most, max_tile_elements=most)
    strategy = recipes(cell, limits=limits, locations=("away", "far"), values=ordinary, grads=ordinary)
    # A case runs the operator tens of times.
    harness.for_all(strategy, lambda recipe: check_gradcheck(harness, recipe, fast=jacobian == "projected"), share=0.25)


def check_gradcheck(harness: Harness, recipe: Recipe, *, fast: bool) -> None:
    """Run gradcheck on one recipe, with tolerances derived from the reference's bounds.

    The output is linear in value and weights, and bilinear in a location inside its cell, where a central difference
    is exact; so its only error is that of two forwards over twice the step, which allows a long step.

    Args:
        harness: runs the subject.
        recipe: with samples away from pixel edges.
        fast: project the Jacobians on random vectors instead of comparing every entry.
    """
    built = recipe.build(harness.device)
    # gradcheck refuses stride 0; layouts are the business of the other properties.
    inputs = dataclasses.replace(
        built,
        value=built.value.contiguous(),
        locations=built.locations.contiguous(),
        weights=built.weights.contiguous(),
        grad_output=torch.ones_like(built.grad_output, memory_format=torch.contiguous_format),
    )
    widest = max(side for level in inputs.levels for side in level)
    # "away" keeps samples a tenth of a pixel off the edges: a twentieth, as a power of two, is a safe step.
    step = 2.0 ** min(-6, -5 - (widest - 1).bit_length())
    shapes, starts = inputs.level_table()
    leaves = [t.clone().requires_grad_() for t in (inputs.value, inputs.locations, inputs.weights)]
    # The projections come from torch's global generator.
    torch.manual_seed(recipe.seed)
    with harness.clock("subject"):
        torch.autograd.gradcheck(
            lambda value, locations, weights: harness.subject.call(value, shapes, starts, locations, weights),
            leaves,
            eps=step,
            atol=_forward_error(inputs, step) / step,
            rtol=0.0,
            nondet_tol=_run_to_run(inputs),
            fast_mode=fast,
        )
    harness.record_case(recipe)


def _forward_error(inputs: Inputs, step: float) -> float:
    """Bound the float64 error of a forward whose inputs have moved by `step`, gradients included.

    Each query sums L * K samples of four products; a coordinate error of at most 4 u per pixel of width meets slopes
    of at most four pixels. The analytic gradients are sums of no more and no larger terms, apart from the level size.
    """
    unit = UNIT_ROUNDOFF[torch.float64]
    samples = inputs.weights.shape[3] * inputs.weights.shape[4]
    widest = max(side for level in inputs.levels for side in level)
    value = float(inputs.value.abs().max()) + step
    weight = float(inputs.weights.abs().max()) + step
    roundings = samples + inputs.channels + inputs.queries + 16 + 16 * widest
    return roundings * unit * 4 * samples * weight * value


def _run_to_run(inputs: Inputs) -> float:
    """Bound the difference of two backwards for a gradient of at most 1: 2 (n - 1) u times the sum of |contributions|.

    Two contributions commute, so up to n = 2 the results must be equal.
    """
    magnitudes = dataclasses.replace(inputs, weights=inputs.weights.abs())
    expectation = expect(magnitudes)
    assert expectation.grad_value is not None
    assert expectation.contributions is not None
    count = expectation.contributions.unsqueeze(-1).double()
    spread = 2 * (count - 1) * UNIT_ROUNDOFF[torch.float64] * expectation.grad_value.value.abs()
    return float(torch.where(count > 2, spread, 0.0).max())
