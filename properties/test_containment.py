"""A pixel that is not sampled has no influence: what it holds appears nowhere, and its gradient is exactly 0."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.memory import poisoned
from properties.strategies import recipes
from reference.inputs import Inputs
from reference.reach import reach


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
