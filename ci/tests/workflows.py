"""The workflows as the tests read them: their files, and their steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

yaml = pytest.importorskip("yaml", reason="needs pyyaml, in the extra dev")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(path for path in FOLDER.glob("*") if path.suffix in (".yml", ".yaml"))


class Step(NamedTuple):
    """A step of a job that runs a script."""

    workflow: str
    job: str
    name: str

    @property
    def label(self) -> str:
        """Where it is."""
        return "/".join(self)


def steps_of(path: Path) -> Iterator[tuple[Step, dict[str, Any]]]:
    """Yield the steps of all jobs of a workflow, each with what is written in it."""
    for job, plain in load(path)["jobs"].items():
        for step in plain.get("steps", []):
            yield Step(path.stem, job, step.get("name", "")), step


def load(path: Path) -> dict[str, Any]:
    """Read a workflow; YAML takes its `on` for a truth value."""
    plain: dict[str, Any] = yaml.safe_load(path.read_text())
    return plain


RUNS = {step: plain for path in WORKFLOWS for step, plain in steps_of(path) if "run" in plain}
