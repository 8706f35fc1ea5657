"""The report of a nightly run: from `nightly.json` and `cases.jsonl` to `report.html`, `summary.md` and `junit.xml`."""

from .command import render

__all__ = ["render"]
