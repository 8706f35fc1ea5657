"""A pixel that is not sampled has no influence: what it holds appears nowhere, and its gradient is exactly 0."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.memory import poisoned
from properties.recipe import Recipe
from properties.strategies import recipes
from properties.verdict import PropertyFailed, judge, story
from reference.expect import expect
from reference.inputs import Inputs
from reference.reach import reach

# One row (entry, query, head) of so many is given an infinite gradient.
INFINITE_ROWS = 3
# No product of two bilinear factors and such a value is rounded to zero.
LEAST_VALUE = 2.0**-14


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_unsampled_pixels_appear_nowhere(harness: Harness, cell: DtypeCell) -> None:
    """With NaN in every pixel that no sample may read, all four results stay within their bounds."""

    def poison(inputs: Inputs) -> Inputs:
        sampled = reach(inputs, harness.subject.arithmetic).pixels.unsqueeze(-1)
        return dataclasses.replace(inputs, value=torch.where(sampled, inputs.value, torch.nan))

    harness.for_all(
        recipes(cell, limits=harness.limits),
        lambda recipe: harness.check(recipe, change=poison),
    )


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_fresh_memory_is_written(harness: Harness, cell: DtypeCell) -> None:
    """With fresh memory full of NaN nothing is left unwritten, and what is not sampled has a gradient of exactly 0."""
    strategy = recipes(cell, limits=harness.limits)
    harness.for_all(strategy, lambda recipe: harness.check(recipe, around=poisoned()))


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_infinite_gradients_stay_where_they_enter(harness: Harness, cell: DtypeCell) -> None:
    """An infinite element of grad_output reaches what it belongs to alone, and no corner outside of the map.

    The gradient of a weight is the sum over the channels of grad_output times the sampled value. Where values are
    positive and one channel is infinite it is infinite, and not NaN: that would be the product with a corner that is
    none.
    """
    if "infinite_gradients" not in harness.subject.supports:
        pytest.skip(f"{harness.subject.name} does not declare that it supports infinite_gradients")
    harness.for_all(recipes(cell, limits=harness.limits), lambda recipe: check_infinite(harness, recipe), share=0.5)


def check_infinite(harness: Harness, recipe: Recipe) -> None:
    """Make some elements of grad_output infinite; judge what they cannot reach, and the sign of what they must."""
    built = recipe.build(harness.device)
    inputs = dataclasses.replace(built, value=built.value.abs().clamp_min(LEAST_VALUE))
    subject = harness.subject.varied(recipe.seed)
    channel = recipe.seed % recipe.channels
    row = torch.arange(inputs.weights[..., 0, 0].numel(), device=harness.device).view(inputs.weights.shape[:3])
    hit = (row + recipe.seed) % INFINITE_ROWS == 0
    grad = inputs.grad_output.reshape(*hit.shape, recipe.channels).clone()
    grad[hit, channel] = torch.inf
    given = dataclasses.replace(inputs, grad_output=grad.view(inputs.grad_output.shape))
    with harness.clock("reference"):
        expectation = expect(inputs, subject.arithmetic)
        reached = reach(inputs, subject.arithmetic)
        samples = hit[..., None, None] & reached.live
        elsewhere = torch.where(hit[..., None, None, None], inputs.locations, torch.nan)
        pixels = reach(dataclasses.replace(inputs, locations=elsewhere), subject.arithmetic).pixels
    # NumPy, behind Triton's interpreter, warns of 0 times infinity, which is then selected away.
    with harness.clock("subject"), np.errstate(invalid="ignore"):
        observation = subject.observe(given)
    spoilt = {
        "grad_value": pixels[..., None] & (torch.arange(recipe.channels, device=harness.device) == channel),
        "grad_sampling_locations": samples[..., None],
        "grad_attention_weights": samples,
    }
    unjudged = {}
    for output, where in spoilt.items():
        bounded, got = getattr(expectation, output), getattr(observation, output)
        if got is not None and got.shape == bounded.value.shape:
            unjudged[output] = torch.where(where, bounded.value.to(got.dtype), got)
    verdict = judge(dataclasses.replace(observation, **unjudged), expectation)
    harness.record(ratio=verdict.ratios, collisions=verdict.collisions)
    if not verdict.passed:
        lines = [line for one in verdict.evidence for line in story(one, inputs)]
        told = f"  given     infinite grad_output in channel {channel} of every {INFINITE_ROWS}rd row; this is another"
        raise PropertyFailed("\n".join([*lines, told]), evidence=verdict.evidence)
    if observation.grad_attention_weights is not None:
        bounded = expectation.grad_attention_weights
        assert bounded is not None
        # 0 times infinity is NaN by IEEE: nothing is asked where a factor may be 0.
        required = samples & reached.certain & ~bounded.hazard
        require_infinite(observation.grad_attention_weights, required, inputs, channel)


def require_infinite(got: Tensor, where: Tensor, inputs: Inputs, channel: int) -> None:
    """Raise unless the gradients of these weights are positive and infinite."""
    wrong = where & (got != torch.inf)
    if not bool(wrong.any()):
        return
    sample = tuple(int(i) for i in wrong.nonzero()[0])
    x, y = (float(v) for v in inputs.locations[sample].double())
    height, width = inputs.levels[sample[3]]
    raise PropertyFailed(
        f"grad_attention_weights: not infinite where grad_output is, and all values are positive\n"
        f"  element   {sample} (batch, query, head, level, point); {int(wrong.sum())} such elements are wrong\n"
        f"  sample    level {sample[3]} ({height} x {width}), location ({x!r}, {y!r}); infinite in channel {channel}\n"
        f"  expected  inf: a corner outside of the map is no factor of it\n"
        f"  got       {float(got[sample])!r}"
    )
