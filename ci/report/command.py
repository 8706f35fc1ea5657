"""Writes the report of a run: `report.html`, `summary.md` and `junit.xml`, beside what it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import junit, load, page

HTML, SUMMARY, JUNIT = "report.html", "summary.md", "junit.xml"


def render(folder: Path, *, mutants: Path | None = None, trend: Sequence[Path] = ()) -> None:
    """Write the report of a run into its folder.

    Args:
        folder: holds `nightly.json` and perhaps `cases.jsonl`.
        mutants: result of `python -m ci mutants --json`, for the score.
        trend: `nightly.json` of earlier runs.

    Raises:
        OSError: something cannot be read or written.
        ValueError: `nightly.json` is none, or the extra `report` is not installed.
    """
    run = load.read(folder, mutants=mutants, trend=trend)
    for name, content in ((JUNIT, junit.document(run)), (SUMMARY, page.summary(run)), (HTML, page.html(run))):
        # Whoever watches the folder never sees half a report.
        unfinished = folder / f".{name}.unfinished"
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(folder / name)
