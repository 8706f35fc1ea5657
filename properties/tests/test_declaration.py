"""Declarations: from attributes and from files, what is refused, and what they keep from being drawn and tested."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from properties import declaration
from properties.cells import CELLS
from properties.declaration import Declaration
from properties.recipe import Hot, Recipe
from properties.strategies import lattice_recipes, recipes
from properties.subject import Subject, declaring, from_callable, load

FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")
FLOAT16 = next(cell for cell in CELLS if cell.name == "float16")


def operator(*arguments: Any) -> Any:
    """Stands for any implementation; it is never called."""
    raise AssertionError(arguments)


def stranger(**attributes: Any) -> Any:
    def call(*arguments: Any) -> Any:
        return operator(*arguments)

    for name, value in attributes.items():
        setattr(call, name, value)
    return call


def test_everything_that_can_be_declared_arrives_in_the_subject():
    says = {
        "dtypes": ("float32", "float16"),
        "mixed_dtypes": False,
        "gradients": ("value",),
        "layouts": "contiguous",
        "empty": False,
        "devices": ("cpu",),
        "nonfinite": "overflow",
        "validates": True,
        "engine": "kernels",
        "accumulate": "native",
        "interpolation": "lerp",
        "coordinates": "grid",
        "coordinate_dtype": "storage",
        "corner_sum": "nested",
        "accumulators": ("native",),
        "determinisms": ("run_to_run",),
        "determinism": "run_to_run",
        "supports": ("vmap",),
        "uniform": True,
        "block_edges": {"queries": (4,)},
    }
    assert set(says) == set(declaration.NAMES)
    subject = from_callable(stranger(**says), name="stranger")
    plain = from_callable(stranger(), name="stranger")
    arithmetic = {"accumulate", "interpolation", "coordinates", "coordinate_dtype", "corner_sum"}
    for name, value in says.items():
        if name in arithmetic:
            assert getattr(subject.arithmetic, name) == value
            assert getattr(plain.arithmetic, name) != value
        elif name not in {"dtypes", "mixed_dtypes"}:
            assert getattr(subject, name) == value
            assert getattr(plain, name) != value
    assert [cell.name for cell in subject.cells] == ["float32", "float16"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layouts", "strided"),
        ("nonfinite", "ignore"),
        ("gradients", ("locations",)),
        ("devices", ()),
        ("empty", "no"),
        ("uniform", 1),
        ("block_edges", {"query": (4,)}),
        ("block_edges", {"queries": (0,)}),
    ],
)
def test_a_value_that_it_may_not_be_is_refused(name: str, value: object):
    with pytest.raises(ValueError, match=rf"subject: stranger\.{name} is .*expected "):
        from_callable(stranger(**{name: value}), name="stranger")


def test_a_misspelt_attribute_is_not_ignored():
    with pytest.raises(ValueError, match="'accumulat' is no declaration; did you mean 'accumulate'"):
        from_callable(stranger(accumulat="native"), name="stranger")
    assert from_callable(stranger(author="somebody"), name="stranger").name == "stranger"


def test_a_file_goes_before_the_attributes(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('dtypes = ["float16"]\nempty = false\n')
    subject = from_callable(stranger(dtypes=("float32",), layouts="contiguous"), name="stranger", file=file)
    assert {cell.value for cell in subject.cells} == {torch.float16}
    assert (subject.empty, subject.layouts) == (False, "contiguous")


@pytest.mark.parametrize("text", ["dtypes = [", 'dtype = ["float32"]', 'dtypes = ["fp32"]'])
def test_a_file_that_says_nothing_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"declaration|did you mean|expected a tuple"):
        from_callable(stranger(), name="stranger", file=file)
    with pytest.raises(ValueError, match="declaration: "):
        from_callable(stranger(), name="stranger", file=tmp_path / "missing.toml")


def test_what_is_written_can_be_read_again(tmp_path: Path):
    says: dict[str, Any] = {"dtypes": ("float32", "float16"), "empty": False, "layouts": "contiguous", "gradients": ()}
    file = tmp_path / "mine.toml"
    file.write_text(declaration.to_toml(says, {"empty": "it raised"}))
    assert "# it raised\nempty = false\n" in file.read_text()
    assert declaration.checked(declaration.of_file(file), name="x") == Declaration(**says)


def test_a_spec_names_a_subject_or_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "some_module.py").write_text(
        "from properties.subject import Subject\n"
        "class Kernels:\n    @staticmethod\n    def call(*operands):\n        return operands\n"
        "whole = Subject(name='whole', call=Kernels.call, empty=False)\n"
        "number = 3\n"
    )
    file = tmp_path / "mine.toml"
    file.write_text("empty = false\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert isinstance(load("some_module:whole"), Subject)
        assert load("some_module:whole").name == "some_module:whole"
        named = load(f"some_module:Kernels.call@{file}")
        assert not named.empty
        assert named.name.endswith("mine.toml")
        with pytest.raises(ValueError, match="is int, expected a callable or a Subject"):
            load("some_module:number")
        with pytest.raises(ValueError, match="is a Subject; expected a callable before '@"):
            load(f"some_module:whole@{file}")
    finally:
        sys.modules.pop("some_module", None)


def test_installed_subjects_are_found_by_name(monkeypatch: pytest.MonkeyPatch):
    from importlib.metadata import EntryPoint  # noqa: PLC0415

    def points(*, group: str, name: str = "") -> list[EntryPoint]:
        known = [EntryPoint("sample", "properties.adapters.grid_sample:operator", group)]
        return [point for point in known if name in ("", point.name)]

    monkeypatch.setattr("properties.subject.entry_points", points)
    assert load("sample").nonfinite == "overflow"
    with pytest.raises(ValueError, match=r"entry point of 'msda.subjects' \(sample\)"):
        load("simple")


def declared(**changes: Any) -> Subject:
    return declaring(operator, Declaration(**changes), name="stranger")


@given(st.data())
@settings(
    max_examples=50, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)
def test_what_is_not_declared_is_never_drawn(data: st.DataObject):
    cell = data.draw(st.sampled_from((FLOAT32, FLOAT16)))
    for word in ("propagate", "overflow"):
        subject = declared(nonfinite=word, layouts="contiguous", empty=False)
        limits = subject.limits("cpu")
        recipe = data.draw(st.one_of(recipes(cell, limits=limits), lattice_recipes(cell, limits=limits)))
        assert subject.declines(recipe) is None
        locations = recipe.build().locations
        assert locations.isfinite().all()
        # What `declines` says of a recipe must hold for its tensors.
        assert float(locations.double().abs().max()) <= recipe.largest_location


@pytest.mark.parametrize(
    ("changes", "recipe", "reason"),
    [
        ({"dtypes": ("float16",)}, Recipe(cell=FLOAT32), "does not declare float32"),
        ({"empty": False}, Recipe(cell=FLOAT32, queries=0), "empty operands"),
        ({"empty": False}, Recipe(cell=FLOAT32, levels=()), "empty operands"),
        ({"layouts": "contiguous"}, Recipe(cell=FLOAT32, value_layout="sliced"), "contiguous operands alone"),
        ({"nonfinite": "propagate"}, Recipe(cell=FLOAT32, locations=("nan",)), "not finite propagate"),
        ({"nonfinite": "propagate"}, Recipe(cell=FLOAT16, locations=("huge",)), "not finite propagate"),
        ({"nonfinite": "propagate"}, Recipe(cell=FLOAT32, hot=(Hot(0, math.inf, 0.0),)), "not finite propagate"),
        ({"nonfinite": "overflow"}, Recipe(cell=FLOAT32, locations=("huge",)), "range of int32"),
        ({"nonfinite": "overflow"}, Recipe(cell=FLOAT32, hot=(Hot(0, 3e9, 0.0),)), "range of int32"),
        ({"nonfinite": "propagate"}, Recipe(cell=FLOAT32, locations=("huge",)), None),
        ({"nonfinite": "overflow"}, Recipe(cell=FLOAT32, locations=("far", "edge")), None),
        ({}, Recipe(cell=FLOAT32, locations=("nan",), queries=0, value_layout="sliced"), None),
    ],
)
def test_cases_from_files_are_declined_with_a_reason(changes: dict[str, Any], recipe: Recipe, reason: str | None):
    told = declared(**changes).declines(recipe)
    assert (told is None) if reason is None else (told is not None and reason in told)


def test_lacking_gradients_and_devices_are_told():
    assert declared(gradients=()).lacking("cpu", everything=True) == "stranger does not declare a backward"
    assert declared(gradients=()).lacking("cpu", everything=False) is None
    some = declared(gradients=("value", "attention_weights")).lacking("cuda", everything=True)
    assert some == "stranger does not declare gradients of sampling_locations"
    assert (
        declared(devices=("cuda",)).lacking("cpu", everything=False) == "stranger does not declare that it runs on cpu"
    )
