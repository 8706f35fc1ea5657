"""Reads what a run left behind. Only the header must be right; what else is missing or odd is left out, and told.

A report is read when something went wrong, so a damaged part must not take the rest with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .points import Points, read_points

FORMAT = 1
NIGHTLY = "nightly.json"
CASES = "cases.jsonl"


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that the report shows.

    Attributes:
        folder: of the run; paths of case files start there.
        nightly: content of `nightly.json`.
        points: figures of the single cases.
        mutants: result of `python -m ci mutants --json`, None when it was not given.
        earlier: content of `nightly.json` of earlier runs, oldest first.
        notes: what could not be read, one line each.
    """

    folder: Path
    nightly: Mapping[str, Any]
    points: Points = field(default_factory=Points)
    mutants: Mapping[str, Any] | None = None
    earlier: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def read(folder: Path, *, mutants: Path | None = None, trend: Sequence[Path] = ()) -> Run:
    """Read a run and what belongs to it.

    Args:
        folder: holds `nightly.json` and perhaps `cases.jsonl`.
        mutants: result of `python -m ci mutants --json`.
        trend: `nightly.json` of earlier runs, in any order.

    Raises:
        OSError: `nightly.json` cannot be read.
        ValueError: it is not what a nightly run writes, or from a newer version.
    """
    nightly = read_nightly(folder / NIGHTLY)
    notes: list[str] = []
    cases = folder / CASES
    points = Points()
    if cases.is_file():
        points = read_points(cases)
        if points.unreadable:
            lines = "1 line" if points.unreadable == 1 else f"{points.unreadable} lines"
            notes.append(f"{CASES}: {lines} could not be read and are in no figure")
    else:
        notes.append(f"{CASES} is missing: no figures of single cases")
    score = None
    if mutants is not None:
        try:
            score = read_mutants(mutants)
        except (OSError, ValueError) as error:
            notes.append(f"mutants left out: {error}")
    return Run(
        folder=folder,
        nightly=nightly,
        points=points,
        mutants=score,
        earlier=tuple(_earlier(trend, nightly, notes)),
        notes=tuple(notes),
    )


def read_nightly(path: Path) -> Mapping[str, Any]:
    """Read the summary of one run.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what a nightly run writes, or from a newer version.
    """
    content = _object(path)
    if content.get("kind") != "nightly":
        raise ValueError(f"{path}: kind is {content.get('kind')!r}, expected 'nightly'")
    version = content.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"{path}: format is {version!r}, expected an integer up to {FORMAT}")
    return content


def read_mutants(path: Path) -> Mapping[str, Any]:
    """Read the result of `python -m ci mutants --json`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is something else.
    """
    content = _object(path)
    if not isinstance(content.get("mutants"), list):
        raise ValueError(f"{path}: mutants is {content.get('mutants')!r}, expected a list")
    return content


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}, expected an object")
    return content


def _earlier(paths: Sequence[Path], nightly: Mapping[str, Any], notes: list[str]) -> Iterable[Mapping[str, Any]]:
    """Earlier runs by their start; a run that is given twice, or is this one, counts once."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for path in paths:
        try:
            run = read_nightly(path)
        except (OSError, ValueError) as error:
            notes.append(f"earlier run left out: {error}")
            continue
        found[_identity(run)] = run
    found.pop(_identity(nightly), None)
    return (found[key] for key in sorted(found))


def _identity(run: Mapping[str, Any]) -> tuple[str, str]:
    return (str(run.get("started", "")), str(run.get("seed", "")))


def mapping(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An entry that is an object, empty where there is none."""
    value = of.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(of: Mapping[str, Any], key: str) -> list[Any]:
    """An entry that is a list, empty where there is none."""
    value = of.get(key)
    return value if isinstance(value, list) else []


def objects(of: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects in an entry that is a list."""
    return [entry for entry in listed(of, key) if isinstance(entry, Mapping)]


def number(value: Any) -> float | None:
    """A number, also one that JSON has no word for and that was written as "inf" or "nan"; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def whole(value: Any) -> int:
    """A count; 0 for anything else."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) else 0
