"""Every element of the output lies within its error bound, whatever the shapes, dtypes, layouts and locations."""

from __future__ import annotations

import pytest

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.strategies import recipes


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_forward_within_bound(harness: Harness, cell: DtypeCell) -> None:
    """Out is within its bound when no gradient is wanted: the path of inference."""
    harness.for_all(recipes(cell, limits=harness.limits), lambda recipe: harness.check(recipe, gradients=False))
