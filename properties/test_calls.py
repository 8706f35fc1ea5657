"""Other ways to make the same call: gradients of some operands alone, and other forms of the level table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.recipe import Recipe
from properties.strategies import recipes
from properties.subject import Subject
from properties.verdict import PropertyFailed, judge, story
from reference.expect import Expectation, expect
from reference.inputs import Inputs

Wanted = tuple[bool, bool, bool]

SOME = [
    (value, locations, weights)
    for value, locations, weights in product((True, False), repeat=3)
    if 0 < value + locations + weights < 3
]
VALUE_ALONE = (True, False, False)
SAMPLES_ALONE = (False, True, True)
GRADIENTS = ("grad_value", "grad_sampling_locations", "grad_attention_weights")
FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_gradients_of_some_operands(harness: Harness, cell: DtypeCell) -> None:
    """Gradients are within their bounds when only some of the operands require one, and the others get none."""
    strategy = recipes(cell, limits=harness.limits)
    harness.for_all(strategy, lambda recipe: check_some_gradients(harness, recipe), share=0.25)


def check_some_gradients(harness: Harness, recipe: Recipe) -> None:
    """Ask for the gradients of one or two operands; which, the recipe's seed decides."""
    inputs = recipe.build(harness.device)
    with harness.clock("reference"):
        expectation = expect(inputs, harness.subject.arithmetic)
    for wanted, subject in ways(harness.subject, recipe.seed):
        check_wanted(harness, subject, inputs, expectation, wanted)


def ways(subject: Subject, seed: int) -> Iterator[tuple[Wanted, Subject]]:
    """Yield which gradients to ask for, and the subject told how to add them up.

    Another way to add up may have a path of its own for value alone, so that is asked for in every case. So are the
    gradients of both operands of a sample: whoever writes that of value all the same has no memory for it.
    """
    yield SAMPLES_ALONE, subject.varied(seed)
    yield SOME[seed % len(SOME)], subject.varied(seed // len(SOME))
    for other in subject.determinisms[1:]:
        yield VALUE_ALONE, subject.with_determinism(other)


def check_wanted(harness: Harness, subject: Subject, inputs: Inputs, expectation: Expectation, wanted: Wanted) -> None:
    """Judge the gradients that are wanted, and that there are no others."""
    unwanted: dict[str, Any] = {name: None for name, wants in zip(GRADIENTS, wanted, strict=True) if not wants}
    with harness.clock("subject"):
        observation = subject.observe(inputs, wanted=wanted)
    verdict = judge(observation, dataclasses.replace(expectation, **unwanted))
    harness.record(ratio=verdict.ratios, collisions=verdict.collisions)
    if not verdict.passed:
        asked = ", ".join(name for name in GRADIENTS if name not in unwanted)
        lines = [line for one in verdict.evidence for line in story(one, inputs)]
        told = [f"  asked for {asked} alone, {subject.determinism} results"]
        raise PropertyFailed("\n".join([*lines, *told]), evidence=verdict.evidence)


@pytest.mark.partial
@pytest.mark.parametrize("cell", [FLOAT32], ids=lambda cell: cell.name)
def test_level_tables_of_other_forms(harness: Harness, cell: DtypeCell) -> None:
    """int32 tables, tables with strides, tables on the host and derived starts give the same bits."""
    if not harness.subject.validates:
        pytest.skip(f"{harness.subject.name} does not declare other forms of the level table")
    harness.for_all(recipes(cell, limits=harness.limits), lambda recipe: check_tables(harness, recipe), share=0.1)


def check_tables(harness: Harness, recipe: Recipe) -> None:
    """Compare the outputs of all forms bitwise."""
    inputs = recipe.build(harness.device)
    shapes, starts = inputs.level_table()
    forms: dict[str, tuple[Tensor, Tensor | None]] = {
        "int64": (shapes, starts),
        "int32": (shapes.int(), starts.int()),
        "int32 and int64": (shapes.int(), starts),
        "with strides": (shapes.t().contiguous().t(), torch.stack([starts, starts], dim=1)[:, 0]),
        "on the host": (shapes.cpu(), starts.cpu()),
        "without starts": (shapes, None),
    }
    results = {}
    for form, (some_shapes, some_starts) in forms.items():
        with torch.no_grad(), harness.clock("subject"):
            call = harness.subject.call
            out = call(inputs.value, some_shapes, some_starts, inputs.locations, inputs.weights)  # type: ignore[arg-type]
        results[form] = out.nan_to_num(nan=7.0)
    for form, out in results.items():
        if not torch.equal(out, results["int64"]):
            raise PropertyFailed(f"out: a level table {form} gives another result than one of int64\n  on {recipe!r}")
    harness.record_case(recipe)
