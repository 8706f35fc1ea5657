"""Subjects: declarations, snapshots of operands, and what a subject may not do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from properties.cells import CELLS
from properties.recipe import Recipe
from properties.snapshot import Snapshot
from properties.subject import from_callable, load
from properties.walk import walk

FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")


def operator(*arguments: Any) -> Any:
    """Stands for any implementation; it is never called."""
    raise AssertionError(arguments)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("dtypes", ("fp32",)),
        ("dtypes", "bfloat16"),
        ("dtypes", (torch.float32,)),
        ("dtypes", ()),
        ("interpolation", "lrep"),
        ("coordinates", "pixels"),
        ("accumulate", "float16"),
        ("determinism", "yes"),
    ],
)
def test_a_declaration_that_says_nothing_is_refused(attribute: str, value: object):
    def stranger(*arguments: Any) -> Any:
        return operator(*arguments)

    setattr(stranger, attribute, value)
    with pytest.raises(ValueError, match=rf"subject: stranger\.{attribute} is "):
        from_callable(stranger, name="stranger")


def test_dtypes_are_whole_names():
    def stranger(*arguments: Any) -> Any:
        return operator(*arguments)

    stranger.dtypes = ("bfloat16",)  # type: ignore[attr-defined]
    assert {cell.value for cell in from_callable(stranger, name="stranger").cells} == {torch.bfloat16}


@pytest.mark.parametrize("spec", ["nonsense", "no.such.module:f", ".relative:f", "math:no_such_function", "math:pi"])
def test_a_spec_that_names_nothing_is_refused(spec: str):
    with pytest.raises(ValueError, match="subject: "):
        load(spec)


def test_a_module_that_fails_in_its_own_way_is_told(tmp_path, monkeypatch):
    (tmp_path / "stumbles.py").write_text("import math\nmath.no_such_function\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"cannot import 'stumbles'.*AttributeError"):
        load("stumbles:operator")


@pytest.mark.parametrize("field", ["value", "locations", "weights", "grad_output"])
def test_a_write_between_the_elements_is_seen(field: str):
    recipe = Recipe(cell=FLOAT32, queries=2, channels=3, value_layout="sliced", locations_layout="offset")
    inputs = recipe.build()
    before = Snapshot.of(inputs)
    assert before.written(inputs) == []
    storage = getattr(inputs, field).untyped_storage()
    torch.empty(0, dtype=torch.uint8).set_(storage)[-1] += 1
    names = {"locations": "sampling_locations", "weights": "attention_weights"}
    assert before.written(inputs) == [names.get(field, field)]


def test_a_subject_that_overwrites_its_operands_does_not_certify_itself():
    """It clears the weights and then rightly returns zeros."""

    def zeroer(value: Any, shapes: Any, starts: Any, locations: Any, weights: Any) -> Any:
        del shapes, starts, locations
        with torch.no_grad():
            weights.zero_()
        out = (weights.sum() * value.sum()).expand(value.shape[0], weights.shape[1], value.shape[2] * value.shape[3])
        return out * 0.0

    recipe = Recipe(cell=FLOAT32, levels=((2, 2),), channels=2)
    verdict = walk(recipe, from_callable(zeroer, name="zeroer"), torch.device("cpu"), gradients=False).verdict
    found = {(evidence.output, evidence.failure) for evidence in verdict.evidence}
    assert ("attention_weights", "written") in found
    assert ("out", "out of bound") in found
