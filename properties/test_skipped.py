"""Skipped samples contribute nothing, whatever their weight, and have gradients of exactly 0."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.strategies import recipes
from reference.inputs import Inputs
from reference.reach import reach

SKIPPING = ("inside", "border", "outside", "far", "huge", "infinite", "nan")


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_skipped_samples_contribute_nothing(harness: Harness, cell: DtypeCell) -> None:
    """Weights of NaN and infinity on skipped samples, and other ways of being skipped, change nothing at all."""
    if harness.subject.nonfinite != "skip":
        pytest.skip(f"{harness.subject.name} declares that what is not finite propagates from skipped samples")

    def spoil(inputs: Inputs) -> Inputs:
        skipped = ~reach(inputs, harness.subject.arithmetic).live
        index = torch.arange(skipped.numel(), device=skipped.device).reshape(skipped.shape)
        bad = torch.where(index % 3 == 0, torch.inf, torch.where(index % 3 == 1, torch.nan, -torch.inf))
        weights = torch.where(skipped, bad.to(inputs.weights.dtype), inputs.weights)
        elsewhere = torch.where(index % 2 == 0, torch.nan, -torch.inf).to(inputs.locations.dtype)
        moved = (skipped & (index % 5 == 0)).unsqueeze(-1)
        locations = torch.where(moved, elsewhere.unsqueeze(-1), inputs.locations)
        return dataclasses.replace(inputs, weights=weights, locations=locations)

    strategy = recipes(cell, limits=harness.limits, locations=SKIPPING)
    harness.for_all(
        strategy, lambda recipe: harness.check(recipe, subject=harness.subject.varied(recipe.seed), change=spoil)
    )
