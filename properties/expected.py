"""Failures that are expected of a subject, each with its reason, from one file per subject.

Strict: an entry that nothing failed for fails the run, and so does a failure of another class than the entry says.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from .failures import user_folder
from .kinds import MEANING
from .session import run_of

TABLE = "expected"
DEVICES = ("cuda", "cpu")
# Name under which a failure tells the controller which entry expected it.
MET = "msda expected"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Tests that may fail, in one way.

    Attributes:
        property: name of the test function without "test_"; may have wildcards.
        kind: class of the failure, one of `kinds.Kind`.
        reason: why.
        variants: patterns of the parametrised part, dtype cells mostly; one of them must fit.
        devices: where it happens; elsewhere the entry says nothing.
    """

    property: str
    kind: str
    reason: str
    variants: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = DEVICES

    def fits(self, nodeid: str) -> bool:
        """Whether this speaks of a test.

        Args:
            nodeid: "file::function[variant]".
        """
        function, _, variant = nodeid.rpartition("::")[2].partition("[")
        if not fnmatchcase(function.removeprefix("test_"), self.property):
            return False
        return any(fnmatchcase(variant.removesuffix("]"), pattern) for pattern in self.variants)

    def __str__(self) -> str:
        return f"{self.property}[{', '.join(self.variants)}], {self.kind}: {self.reason}"


ENTRIES = pytest.StashKey[tuple[Expected, ...]]()


def read(path: Path) -> tuple[Expected, ...]:
    """Read a TOML file of [[expected]] tables with property, class, reason and, if not all, variants.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is something else.
    """
    try:
        plain = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected failures: {str(path)!r} is no TOML: {error}") from None
    rows = plain.get(TABLE, [])
    if set(plain) - {TABLE} or not isinstance(rows, list):
        raise ValueError(f"expected failures: {str(path)!r} has {', '.join(plain)}; expected [[{TABLE}]] tables alone")
    return tuple(_entry(row, f"{str(path)!r}, entry {number}") for number, row in enumerate(rows, 1))


def _entry(row: dict[str, Any], where: str) -> Expected:
    row = {("kind" if name == "class" else name): value for name, value in row.items()}
    names = {one.name for one in fields(Expected)}
    missing, unknown = {"property", "kind", "reason"} - set(row), set(row) - names
    if missing or unknown:
        wrong = ", ".join(sorted(missing)) + " missing" if missing else ", ".join(sorted(unknown)) + " unknown"
        expected = "property, class, reason and perhaps variants and devices"
        raise ValueError(f"expected failures: {where}: {wrong}; expected {expected}")
    if row["kind"] not in MEANING:
        raise ValueError(f"expected failures: {where}: class is {row['kind']!r}, expected one of {', '.join(MEANING)}")
    if not str(row["reason"]).strip():
        raise ValueError(f"expected failures: {where}: the reason is empty, expected some words")
    lists = {name: row[name] for name in ("variants", "devices") if name in row}
    for name, given in lists.items():
        if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
            raise ValueError(f"expected failures: {where}: {name} is {given!r}, expected a list of words")
    if not set(lists.get("devices", ())) <= set(DEVICES):
        raise ValueError(f"expected failures: {where}: devices is {row['devices']!r}, expected {' or '.join(DEVICES)}")
    return Expected(**(row | {name: tuple(given) for name, given in lists.items()}))


def of(config: pytest.Config) -> tuple[Expected, ...]:
    """Return what the file of `--msda-expected` says; read once.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is something else.
    """
    if ENTRIES not in config.stash:
        file = config.getoption("msda_expected", None)
        entries = read(user_folder(config) / file) if file else ()
        device = run_of(config).device.type
        config.stash[ENTRIES] = tuple(entry for entry in entries if device in entry.devices)
    return config.stash[ENTRIES]


def forgive(config: pytest.Config, report: Any, kind: str) -> None:
    """Turn a failure that is expected into one that the run survives, and note which entry expected it."""
    for number, entry in enumerate(of(config)):
        if entry.kind == kind and entry.fits(report.nodeid):
            report.outcome, report.wasxfail = "skipped", entry.reason
            report.user_properties.append((MET, number))
            return


def unmet(config: pytest.Config, reporter: Any) -> list[str]:
    """Say which expected failures did not happen, in the process that sees all reports.

    Args:
        config: of this process.
        reporter: pytest's terminal reporter.
    """
    if hasattr(config, "workerinput"):
        return []
    reports = reporter.stats.get("xfailed", ())
    met = {value for report in reports for name, value in report.user_properties if name == MET}
    entries = enumerate(of(config))
    return [f"expected failure did not happen: {entry}" for number, entry in entries if number not in met]
