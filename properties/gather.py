"""From pytest's reports, which come from this process or from any worker, to the summary of the run."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from .report import ItemStats, Summary, merge

# Name under which an item's record travels in its `user_properties`, the one channel that reaches the controller.
RECORD = "msda"
PACKAGES = ("torch", "triton", "numpy", "hypothesis")
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def summary(reports: Mapping[str, Sequence[Any]], *, header: Mapping[str, Any]) -> Summary:
    """Gather what the tests' reports carry.

    Args:
        reports: by outcome, as the terminal reporter keeps them; it also keeps warnings and collection reports there.
        header: what was run; see `Summary`.
    """
    items: dict[str, ItemStats] = {}
    failed: set[str] = set()
    skipped: dict[str, str] = {}
    expected: set[str] = set()
    for outcome in reports.values():
        for one in outcome:
            if not isinstance(one, pytest.TestReport):
                continue
            if one.failed:
                failed.add(one.nodeid)
            if one.skipped and hasattr(one, "wasxfail"):
                expected.add(one.nodeid)
            if one.skipped and isinstance(one.longrepr, tuple):
                skipped[one.nodeid] = str(one.longrepr[2]).removeprefix("Skipped: ")
            for name, record in one.user_properties:
                if name == RECORD and isinstance(record, dict):
                    items[one.nodeid] = ItemStats.from_dict(record)
    for nodeid, item in items.items():
        item.outcome = "failed" if nodeid in failed else "skipped" if nodeid in skipped else "passed"
        if nodeid in expected:
            item.outcome = "expected"
    return Summary(
        header=header,
        items=merge(items.values()),
        counts={name: len(reports.get(name, ())) for name in OUTCOMES},
        skipped=skipped,
        required=_required() if any(item.classes for item in items.values()) else (),
    )


def versions() -> dict[str, str]:
    """Versions of what a result may depend on, from the packages' metadata: importing them would cost seconds."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def _required() -> list[str]:
    from .classes import REQUIRED  # noqa: PLC0415 - imports torch

    return sorted(REQUIRED)
