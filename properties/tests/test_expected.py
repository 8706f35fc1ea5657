"""Expected failures: the file, and runs in which they happen, do not happen, or happen in another way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from properties import expected
from properties.expected import Expected

ROOT = Path(__file__).parent.parent.parent
# In float16 twice what is right, else right.
SUBJECT = """
import torch
from properties.adapters.grid_sample import compose

def operator(value, *others):
    out = compose(value, *others)
    return out * 2 if value.dtype == torch.float16 else out

operator.dtypes = ("float32", "float16")
operator.mixed_dtypes = False
operator.coordinates = "grid"
operator.nonfinite = "overflow"
operator.empty = False
"""
ENTRY = '[[expected]]\nproperty = "{}"\nvariants = ["{}"]\nclass = "{}"\nreason = "{}"\n'


def test_entries_fit_by_property_and_variant():
    entry = Expected(property="gradients_*", kind="logic fault", reason="because", variants=("float16*", "float32"))
    assert entry.fits("properties/test_gradients.py::test_gradients_within_bound[float16-float32-float16]")
    assert entry.fits("properties/test_gradients.py::test_gradients_within_bound[float32]")
    assert not entry.fits("properties/test_gradients.py::test_gradients_within_bound[bfloat16]")
    assert not entry.fits("properties/test_forward.py::test_forward_within_bound[float32]")
    assert Expected(property="corpus", kind="crash", reason="because").fits(
        "properties/test_corpus.py::test_corpus[g01_x]"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[expected", "is no TOML"),
        ("[other]\nx = 1\n", r"expected \[\[expected\]\] tables alone"),
        ('[[expected]]\nproperty = "x"\n', "kind, reason missing"),
        (ENTRY.format("x", "*", "bad luck", "why"), "class is 'bad luck', expected one of logic fault"),
        (ENTRY.format("x", "*", "crash", " "), "the reason is empty"),
        (ENTRY.format("x", "*", "crash", "why") + "retry = 3\n", "retry unknown"),
        (ENTRY.format("x", "*", "crash", "why") + 'devices = ["tpu"]\n', "devices is .* expected cuda or cpu"),
        (ENTRY.format("x", "*", "crash", "why") + 'devices = "cpu"\n', "devices is 'cpu', expected a list of words"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str):
    file = tmp_path / "expected.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        expected.read(file)


def run(folder: Path, *entries: str, workers: str = "0") -> tuple[int, str, dict[str, str]]:
    """Verify the subject with these entries; exit status, output, and outcomes by variant."""
    (folder / "half_wrong.py").write_text(SUBJECT)
    (folder / "expected.toml").write_text("\n".join(entries))
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", "-p", "properties.plugin"]
    command += [
        str(ROOT / "properties" / "test_forward.py"),
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    command += ["--msda-subject", "half_wrong:operator", "--msda-device", "cpu", "--msda-examples", "40"]
    command += ["--msda-seed", "3", "--msda-minimise", "0", "--msda-expected", "expected.toml"]
    command += ["--msda-json", "summary.json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MSDA_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    summary = json.loads((folder / "summary.json").read_text())
    return done.returncode, done.stdout, {item["variant"]: item["outcome"] for item in summary["items"]}


def entry(variant: str, kind: str = "logic fault") -> str:
    return ENTRY.format("forward_within_bound", variant, kind, "it doubles them")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_expected_failure_does_not_fail_the_run(tmp_path: Path, workers: str):
    status, output, outcomes = run(tmp_path, entry("float16"), workers=workers)
    assert status == 0, output
    assert "1 xfailed" in output
    assert outcomes == {"float16": "expected", "float32": "passed"}
    assert "fails as expected" in output


def test_an_entry_that_nothing_failed_for_fails_the_run(tmp_path: Path):
    # What is said of the other device is not looked for.
    elsewhere = entry("float32", "memory") + 'devices = ["cuda"]\n'
    status, output, _ = run(tmp_path, entry("float16"), entry("float32"), elsewhere)
    assert "memory" not in output
    assert status == 1
    assert "expected failure did not happen: forward_within_bound[float32], logic fault: it doubles them" in output


def test_another_class_than_expected_fails_the_run(tmp_path: Path):
    status, output, outcomes = run(tmp_path, entry("float16", "memory"))
    assert status == 1
    assert outcomes == {"float16": "failed", "float32": "passed"}
    assert "expected failure did not happen: forward_within_bound[float16], memory" in output
