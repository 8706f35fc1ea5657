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
from properties.verdict import INDICES, PropertyFailed, judge, level_of, story
from reference.expect import expect
from reference.inputs import Inputs
from reference.model import Arithmetic
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
    # Another way to add up is a path of its own: half of the cases take it, whichever rows are infinite.
    others = harness.subject.determinisms[1:]
    half, subject = recipe.seed // INFINITE_ROWS, harness.subject
    if others and half % 2:
        subject = subject.with_determinism(others[half // 2 % len(others)])
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
        pixels = reached_by(samples, inputs, subject.arithmetic)
        # Positive factors of an infinite gradient, none of which may be or come out as 0, which times infinity is NaN.
        sure = samples & reached.certain & (inputs.weights.double() >= LEAST_VALUE)
        sums = reached_by(sure, inputs, subject.arithmetic) & ~reached_by(samples & ~sure, inputs, subject.arithmetic)
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
        required = samples & reached.certain & ~bounded.hazard
        require_infinite("grad_attention_weights", observation.grad_attention_weights, required, inputs, channel)
    if observation.grad_value is not None:
        bounded = expectation.grad_value
        assert bounded is not None
        required = sums & ~bounded.hazard[..., channel]
        require_infinite("grad_value", observation.grad_value[..., channel], required, inputs, channel)


def reached_by(samples: Tensor, inputs: Inputs, arithmetic: Arithmetic) -> Tensor:
    """Return the pixels that these samples alone may read."""
    elsewhere = torch.where(samples.unsqueeze(-1), inputs.locations, torch.nan)
    return reach(dataclasses.replace(inputs, locations=elsewhere), arithmetic).pixels


def require_infinite(output: str, got: Tensor, where: Tensor, inputs: Inputs, channel: int) -> None:
    """Raise unless these elements are positive and infinite."""
    wrong = where & (got != torch.inf)
    if not bool(wrong.any()):
        return
    at = tuple(int(i) for i in wrong.nonzero()[0])
    if output == "grad_value":
        level, row, column = level_of(at[1], inputs.levels)
        place = f"pixel     (row {row}, column {column}) of level {level}"
    else:
        x, y = (float(v) for v in inputs.locations[at].double())
        height, width = inputs.levels[at[3]]
        place = f"sample    level {at[3]} ({height} x {width}), location ({x!r}, {y!r})"
    indices = ", ".join(name for name in INDICES[output] if name != "channel")
    raise PropertyFailed(
        f"{output}: not infinite where grad_output is, and all that it is multiplied by is positive\n"
        f"  element   {at} ({indices}); {int(wrong.sum())} such elements are wrong\n"
        f"  {place}; infinite in channel {channel}\n"
        f"  expected  inf: nothing that is infinite is multiplied by 0 or added with another sign\n"
        f"  got       {float(got[at])!r}"
    )
