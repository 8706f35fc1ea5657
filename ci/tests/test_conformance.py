"""The conformance report: from the summary of a run to a table, and the command on a subject that is half wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci import conformance

ROOT = Path(__file__).parent.parent.parent
SUBJECT = """
import torch
from properties.adapters.grid_sample import compose

def operator(value, *others):
    out = compose(value, *others)
    return out * 2 if value.dtype == torch.float64 else out

operator.dtypes = ("float64", "float32")
operator.mixed_dtypes = False
operator.coordinates = "grid"
operator.nonfinite = "overflow"
operator.empty = False
"""


def item(test: str, variant: str, outcome: str = "passed", **fields: Any) -> dict[str, Any]:
    plain = {"test": f"properties/test_x.py::test_{test}", "variant": variant, "outcome": outcome, "cases": 3}
    return plain | {"ratio": {"out": 0.5}, "classes": {}, "failure": {}} | fields


def failure(kind: str, recipe: str, ratio: float | str) -> dict[str, Any]:
    return {"class": kind, "failure": "out: wrong", "recipe": recipe, "evidence": [{"output": "out", "ratio": ratio}]}


def summary(*items: dict[str, Any], skipped: dict[str, str] | None = None) -> dict[str, Any]:
    where = {"subject": "some:kernel", "device_name": "GPU", "versions": {"torch": "2"}, "seed": 1}
    return where | {"items": list(items), "skipped": skipped or {}}


def test_variants_of_a_dtype_are_one_cell():
    report = conformance.conformance(
        summary(
            item("forward", "float16", ratio={"out": 0.25}),
            item("forward", "float16-float32-float32", ratio={"out": 0.75}),
            item("forward", "float32", "failed", failure=failure("crash", "float32 B1", "nan")),
            item("corpus", "g01", classes={"cell: bfloat16": 1}),
            item("corpus", "g02", "expected", classes={"cell: float32-x": 1}, failure=failure("memory", "x", 3.0)),
        )
    )
    assert report.columns == ["float32", "float16", "bfloat16"]
    assert str(report.rows["forward"]["float16"]) == "pass 0.750"
    assert str(report.rows["forward"]["float32"]) == "FAIL: crash"
    assert str(report.rows["corpus"]["bfloat16"]) == "pass 0.500"
    assert str(report.rows["corpus"]["float32"]) == "expected: memory"
    assert str(report.rows["forward"]["float64"]) == "-"
    assert not report.conforms


def test_a_failure_is_shown_by_its_smallest_case_and_largest_ratio():
    report = conformance.conformance(
        summary(
            item("forward", "float16", "failed", failure=failure("logic fault", "float16 B1 Q12", 7.0)),
            item("forward", "bfloat16", "failed", failure=failure("logic fault", "bfloat16 B1", "inf")),
            item("forward", "float32", "failed", failure=failure("precision loss", "float32 B1 Q1", 1.5)),
            item("forward", "float64", "failed"),
            skipped={"a": "because", "b": "because", "c": "no | backward"},
        )
    )
    rows = {row[1]: row for row in conformance.failure_rows(report)}
    assert rows["logic fault"][0] == "forward (float16, bfloat16)"
    assert (rows["logic fault"][2], rows["logic fault"][4]) == ("inf", "bfloat16 B1")
    assert rows["precision loss"][2] == "1.5"
    assert rows["unknown"][4] == "-"
    text = conformance.markdown(report)
    assert "- because (2)" in text
    assert "| forward | FAIL: unknown | FAIL: precision loss | FAIL: logic fault | FAIL: logic fault |" in text


def run(folder: Path, *arguments: str, subject: str = "half_wrong:operator") -> tuple[int, str]:
    (folder / "half_wrong.py").write_text(SUBJECT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MSDA_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-m", "ci", "conformance", subject, "--device", "cpu", "--examples", "2", "--seed", "1"]
    command += ["--workers", "2", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


def test_the_command_reports_what_fails_and_what_passes(tmp_path: Path):
    report, file = tmp_path / "report.md", tmp_path / "summary.json"
    status, output = run(tmp_path, "--markdown", str(report), "--json", str(file))
    assert status == 1, output
    text = report.read_text()
    row = next(line for line in text.splitlines() if line.startswith("| forward_within_bound |"))
    assert row.startswith("| forward_within_bound | FAIL: logic fault | pass ")
    assert "half_wrong:operator does not declare float16" in text
    # The harness' own tests say nothing of a subject.
    assert not any("/tests/" in one["test"] for one in json.loads(file.read_text())["items"])


@pytest.mark.parametrize("subject", ["no.such.module:f", "half_wrong:missing"])
def test_a_subject_that_cannot_be_run_is_told(tmp_path: Path, subject: str):
    status, output = run(tmp_path, subject=subject)
    assert status == 2
    assert "could not be run" in output


def test_expected_failures_of_this_project_can_be_read():
    from properties import expected  # noqa: PLC0415

    files = sorted(conformance.EXPECTED.glob("*.toml"))
    assert files
    for file in files:
        assert expected.read(file)
        module = file.stem.rpartition(".")[0]
        assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists()
    assert conformance.expected_of("properties.adapters.transformers:operator@x.toml") in files
    assert conformance.expected_of("some.other:operator") is None
