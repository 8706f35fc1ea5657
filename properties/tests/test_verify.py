"""Verification in code: the same properties and variants as pytest's, for callables, names and subjects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from properties import verify as module
from properties.adapters.grid_sample import compose
from properties.declaration import Declaration
from properties.subject import declaring
from properties.variants import variants
from properties.verify import verify

ROOT = Path(__file__).parent.parent.parent


def operator(value: Tensor, *others: Tensor) -> Tensor:
    return compose(value, *others)


def twice(value: Tensor, *others: Tensor) -> Tensor:
    return 2 * compose(value, *others)


def declare(call, **changes):
    says: dict[str, Any] = {
        "dtypes": ("float32",),
        "mixed_dtypes": False,
        "coordinates": "grid",
        "nonfinite": "overflow",
        "empty": False,
    }
    return declaring(call, Declaration(**(says | changes)), name="stranger")


def test_a_right_subject_passes_and_the_summary_says_what_was_checked(msda_device: str):
    summary = verify(declare(operator), examples=20, device=msda_device, seed=5, properties="*within_bound")
    assert summary.passed, summary
    assert summary.header["seed"] == 5
    checked = {(item.test.rpartition("::")[2], item.variant) for item in summary.items}
    assert checked == {("test_forward_within_bound", "float32"), ("test_gradients_within_bound", "float32")}
    assert "stranger does not declare float64" in set(summary.skipped.values())
    assert "forward_within_bound" in str(summary)


def test_a_wrong_subject_fails_with_its_smallest_case(msda_device: str):
    summary = verify(declare(twice), examples=20, device=msda_device, seed=5, properties="forward_within_bound")
    assert not summary.passed
    assert summary.counts["failed"] == 1
    (story,) = summary.stories
    assert "out: outside its error bound" in story
    assert "recipe    float32 B1 Q1 M1 D1 K1 levels 1x1" in story
    assert "class     logic fault" in story
    assert summary.items[0].failure["outputs"] == ["out"]


def test_nothing_checked_is_no_success(msda_device: str):
    other = "cpu" if msda_device == "cuda" else "cuda"
    summary = verify(declare(operator, devices=(other,)), device=msda_device, properties="forward_within_bound")
    assert not summary.passed
    assert set(summary.skipped.values()) >= {f"stranger does not declare that it runs on {msda_device}"}


def test_the_same_seed_draws_the_same_cases(msda_device: str):
    runs = [
        verify(declare(operator), examples=30, device=msda_device, seed=9, properties="forward_*") for _ in range(2)
    ]
    assert runs[0].classes == runs[1].classes


def test_attributes_and_names_declare_as_they_do_for_pytest(msda_device: str):
    def bare(value: Tensor, *others: Tensor) -> Tensor:
        return compose(value, *others)

    bare.dtypes = ("float32",)  # type: ignore[attr-defined]
    bare.nonfinite = "overflow"  # type: ignore[attr-defined]
    bare.coordinates = "grid"  # type: ignore[attr-defined]
    bare.mixed_dtypes = False  # type: ignore[attr-defined]
    name = "properties.adapters.grid_sample:operator"
    for subject in (bare, name):
        summary = verify(subject, examples=10, device=msda_device, seed=1, properties="empty*")
        assert any("float16-float32-float32" in reason for reason in summary.skipped.values())
        assert "bare" in summary.header["subject"] or summary.header["subject"] == name


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(ValueError, match="properties: 'speed' fits none of them"):
        verify(declare(operator), properties="speed")


def test_the_variants_are_those_of_pytest():
    names = set()
    for function in module._properties():
        test = f"properties/{function.__module__.rpartition('.')[2]}.py::{function.__name__}"
        names |= {f"{test}[{label}]" if label else test for label, _ in variants(function)}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "properties"]
    command += ["--ignore=properties/tests", "--msda-device", "cpu", "-p", "no:cacheprovider"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    collected = {line for line in listed.splitlines() if "::" in line and "::test_corpus[" not in line}
    assert names == collected
