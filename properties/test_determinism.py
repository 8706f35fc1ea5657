"""Repeated runs agree: bit for bit where nothing is added atomically, within the bound of a reordered sum elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from properties.accumulators import PAIRS, assume_supported, label, name_of
from properties.cells import CELLS, DtypeCell
from properties.declaration import Determinism
from properties.harness import Harness
from properties.recipe import Recipe
from properties.repeat import walk_repeatedly
from properties.strategies import crowded_recipes, recipes
from properties.subject import Subject
from properties.verdict import PropertyFailed
from reference.model import Accumulate

# Six programs have enough orders, and a case runs them eight times or more.
INTERPRETER_STEPS = 6
# A case is many runs; the fewer variants of the promise share their cases.
SHARE = {"not_guaranteed": 0.75, "run_to_run": 0.3}


@pytest.mark.parametrize(("cell", "accumulate"), PAIRS, ids=[name_of(*pair) for pair in PAIRS])
def test_runs_agree(harness: Harness, cell: DtypeCell, accumulate: Accumulate) -> None:
    """With atomics: grad_value within 2 (n - 1) u sum|t|, the same bits for n <= 2, and all else the same bits.

    Runs differ in stream, in what runs beside them and in what fresh memory holds; in the interpreter, in the order of
    the programs.
    """
    check_all(harness, cell, accumulate, "not_guaranteed")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_runs_are_equal(harness: Harness, cell: DtypeCell) -> None:
    """A subject that promises run-to-run determinism returns the same bits of grad_value too."""
    accumulate = harness.subject.arithmetic.accumulate
    check_all(harness, cell, accumulate, "run_to_run")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_equal_runs_are_within_bound(harness: Harness, cell: DtypeCell) -> None:
    """What is the same in every run is also right: all results are within their bounds, long sums included."""
    refusal = harness.subject.refuses(cell, determinism="run_to_run")
    if refusal is not None:
        pytest.skip(refusal)
    subject = harness.subject.with_determinism("run_to_run")
    strategy = st.one_of(recipes(cell, limits=harness.limits), crowded_recipes(cell, limits=harness.limits))
    harness.for_all(strategy, lambda recipe: harness.check(recipe, subject=subject), share=0.5)


def check_all(harness: Harness, cell: DtypeCell, accumulate: Accumulate, determinism: Determinism) -> None:
    """Check repeated runs of one dtype cell, accumulator and promise."""
    refusal = harness.subject.refuses(cell, accumulate, determinism)
    if refusal is not None:
        pytest.skip(refusal)
    subject = harness.subject.with_accumulate(accumulate).with_determinism(determinism)
    limits = harness.limits.at_most(INTERPRETER_STEPS)
    strategy = st.one_of(recipes(cell, limits=limits), crowded_recipes(cell, limits=limits))
    harness.for_all(strategy, lambda recipe: check(harness, recipe, subject), share=SHARE[determinism])


def check(harness: Harness, recipe: Recipe, subject: Subject) -> None:
    """Run one recipe repeatedly, record how the runs agree, and fail when they do not."""
    __tracebackhide__ = True
    assume_supported(recipe, subject, harness.device)
    repetition = walk_repeatedly(recipe, subject, harness.device, clock=harness.clock)
    collisions = repetition.agreement.collisions
    harness.event(f"contributions: {'at most 2' if collisions <= 2 else 'more than 2'}")
    harness.record_agreement(label(recipe.cell, subject), repetition.agreement)
    if repetition.story:
        raise PropertyFailed(repetition.story, evidence=repetition.verdict.evidence)
