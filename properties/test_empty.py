"""Empty operands give empty or zero results, forward and backward."""

from __future__ import annotations

import pytest

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.memory import poisoned
from properties.strategies import empty_recipes


@pytest.mark.partial
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_empty_operands(harness: Harness, cell: DtypeCell) -> None:
    """B, Q, L, K, M or D of 0: shapes and dtypes as ever, and every element that is left is exactly 0."""
    if not harness.subject.empty:
        pytest.skip(f"{harness.subject.name} does not declare empty operands")
    strategy = empty_recipes(cell, limits=harness.limits)
    harness.for_all(strategy, lambda recipe: harness.check(recipe, around=poisoned()))
