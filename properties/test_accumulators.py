"""Gradients accumulated in a 16-bit dtype lie within the bound of that accumulator, overflow included.

The bound grows with n u_h, u_h = 2^-11 or 2^-8, for n contributions to one element: from n = 2048 (float16) or 256
(bfloat16) on it exceeds the result, and a passed case says nothing but that no finite result was due where one may
overflow. Such cases are named in the summary.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from properties.accumulators import HALF_CELLS, assume_supported, label
from properties.cells import DtypeCell
from properties.harness import Harness
from properties.recipe import Recipe
from properties.strategies import crowded_recipes, recipes
from properties.subject import Subject
from reference.repeat import lossy_from


@pytest.mark.parametrize("cell", HALF_CELLS, ids=lambda cell: cell.name)
def test_native_accumulation_within_bound(harness: Harness, cell: DtypeCell) -> None:
    """grad_value is finite where no partial sum can overflow, and within (5 u + n u_h) sum|t| there."""
    refusal = harness.subject.refuses(cell, "native")
    if refusal is not None:
        pytest.skip(refusal)
    subject = harness.subject.with_accumulate("native")
    strategy = st.one_of(recipes(cell, limits=harness.limits), crowded_recipes(cell, limits=harness.limits))
    harness.for_all(strategy, lambda recipe: check(harness, recipe, subject))


def check(harness: Harness, recipe: Recipe, subject: Subject) -> None:
    """Judge one case, and name it when its accumulator is out of its range."""
    __tracebackhide__ = True
    assume_supported(recipe, subject, harness.device)
    case = harness.check(recipe, subject=subject)
    lossy = case.verdict.collisions >= lossy_from(recipe.cell.value)
    harness.event(f"native accumulation: {'lossy' if lossy else 'in range'}")
    if lossy:
        harness.record_lossy(label(recipe.cell, subject), case.verdict.collisions)
