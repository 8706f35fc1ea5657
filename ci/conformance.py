"""Conformance of one subject: every property on every dtype, whether it passed, failed or was skipped, and why.

    python -m ci conformance package.module:callable --markdown report.md

The properties run as pytest runs them; this reads the summary of that run and turns it into one table.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

DTYPES = ("float64", "float32", "float16", "bfloat16")
OTHER = "other"
PROPERTIES = Path(__file__).parent.parent / "properties"
EXPECTED = Path(__file__).parent / "expected"
# Failing cases are made small by Hypothesis; many tests may fail, so the second stage gets little time for each.
MINIMISE_SECONDS = 2.0
STYLES = {"pass": "green", "FAIL": "bold red", "expected": "yellow"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What came of one property on all variants of one dtype.

    Attributes:
        passed: tests that passed.
        cases: that they judged.
        ratio: largest error over bound of those that passed, None where nothing was measured.
        failures: records of the tests that failed; see `properties.failures.Kept`.
        expected: whether all of these were expected.
    """

    passed: int = 0
    cases: int = 0
    ratio: float | None = None
    failures: tuple[Mapping[str, Any], ...] = ()
    expected: bool = False

    @property
    def outcome(self) -> str:
        """One word: "pass", "FAIL", "expected", or "-" where nothing was run."""
        if self.failures:
            return "expected" if self.expected else "FAIL"
        return "pass" if self.passed else "-"

    def __str__(self) -> str:
        if not self.failures:
            return self.outcome if self.ratio is None else f"{self.outcome} {self.ratio:.3f}"
        classes = ", ".join(sorted({str(one["class"]) for one in self.failures}))
        return f"{self.outcome}: {classes}"


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """The report of one subject.

    Attributes:
        summary: of the run, as `properties.report` writes it.
        rows: by property, then by dtype.
    """

    summary: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Cell]]

    @property
    def columns(self) -> list[str]:
        """Dtypes on which anything was run."""
        return [name for name in (*DTYPES, OTHER) if any(row[name].outcome != "-" for row in self.rows.values())]

    @property
    def skipped(self) -> Counter[str]:
        """Tests by the reason for which they were skipped."""
        return Counter(str(reason) for reason in self.summary["skipped"].values())

    @property
    def conforms(self) -> bool:
        """Whether nothing failed but what was expected."""
        return all(cell.outcome != "FAIL" for row in self.rows.values() for cell in row.values())


def dtype_of(item: Mapping[str, Any]) -> str:
    """Return the dtype of value that an item is about: first word of the variant, or a class of its case."""
    cells = [label.removeprefix("cell: ") for label in item["classes"] if label.startswith("cell: ")]
    names = [name.split("-")[0] for name in (str(item["variant"]), *cells)]
    return next((name for name in names if name in DTYPES), OTHER)


def conformance(summary: Mapping[str, Any]) -> Conformance:
    """Group the items of a run by property and dtype.

    Args:
        summary: of the run, as `properties.report` writes it.
    """
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for item in summary["items"]:
        name = str(item["test"]).rpartition("::")[2].removeprefix("test_")
        row = groups.setdefault(name, {dtype: [] for dtype in (*DTYPES, OTHER)})
        row[dtype_of(item)].append(item)
    return Conformance(
        summary=summary,
        rows={name: {dtype: _cell(items) for dtype, items in row.items()} for name, row in groups.items()},
    )


def _cell(items: Sequence[Mapping[str, Any]]) -> Cell:
    passed = [item for item in items if item["outcome"] == "passed"]
    failed = [item for item in items if item["outcome"] in {"failed", "expected"}]
    ratios = [float(ratio) for item in passed for ratio in item["ratio"].values() if ratio is not None]
    unknown = {"class": "unknown", "failure": "it failed before a case was drawn", "evidence": []}
    return Cell(
        passed=len(passed),
        cases=sum(int(item["cases"]) for item in passed),
        ratio=max(ratios, default=None),
        failures=tuple(item["failure"] or unknown for item in failed),
        expected=all(item["outcome"] == "expected" for item in failed),
    )


def worst_ratio(failures: Iterable[Mapping[str, Any]]) -> float:
    """Return the largest error over bound of any element that was recorded, 0 where none was."""
    ratios = [float(row["ratio"]) for failure in failures for row in failure["evidence"]]
    return max((math.inf if math.isnan(ratio) else ratio for ratio in ratios), default=0.0)


def smallest(failures: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the failure whose case takes the fewest words to describe."""
    return min(failures, key=lambda failure: (len(str(failure.get("recipe", "?" * 200))), str(failure.get("recipe"))))


def failure_rows(report: Conformance) -> list[tuple[str, str, str, str, str]]:
    """Return property and dtypes, class, worst ratio, first line and smallest case of everything that failed."""
    rows = []
    for name, row in report.rows.items():
        grouped: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for dtype, cell in row.items():
            for failure in cell.failures:
                grouped.setdefault(str(failure["class"]), []).append((dtype, failure))
        for kind, found in grouped.items():
            dtypes = ", ".join(dict.fromkeys(dtype for dtype, _ in found))
            failures = [failure for _, failure in found]
            ratio = worst_ratio(failures)
            least = smallest(failures)
            case = str(least.get("recipe", "-"))
            rows.append((f"{name} ({dtypes})", kind, f"{ratio:.3g}" if ratio else "-", str(least["failure"]), case))
    return rows


def header(report: Conformance) -> str:
    """Say what was run, where, and how it ended, in one line."""
    summary = report.summary
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    counts = Counter(cell.outcome for row in report.rows.values() for cell in row.values())
    cases = sum(int(item["cases"]) for item in summary["items"])
    return (
        f"{summary['subject']} on {summary['device_name']}, {versions}, seed {summary['seed']}: {cases} cases; "
        f"{counts['pass']} passed, {counts['FAIL']} failed, {counts['expected']} failed as expected"
    )


def markdown(report: Conformance) -> str:
    """Return the report as Markdown."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    columns = report.columns
    lines = [header(report), "", line(["property", *columns]), line(["---"] * (len(columns) + 1))]
    lines += [line([name, *(str(row[column]) for column in columns)]) for name, row in report.rows.items()]
    failed = failure_rows(report)
    if failed:
        titles = ("failed", "class", "error/bound", "what", "smallest case")
        lines += ["", line(titles), line(["---"] * len(titles)), *map(line, failed)]
    if report.skipped:
        lines += ["", "Not tested:", ""]
        lines += [f"- {reason} ({count})" for reason, count in report.skipped.most_common()]
    return "\n".join(lines) + "\n"


def show(report: Conformance, console: Console) -> None:
    """Print the report."""
    columns = report.columns
    table = Table("property", *columns, title="largest error/bound where it passed, class of the failure where not")
    for name, row in report.rows.items():
        styled = [f"[{STYLES.get(row[column].outcome, 'dim')}]{row[column]}" for column in columns]
        table.add_row(name, *styled)
    console.print(header(report), soft_wrap=True)
    console.print(table)
    for what, kind, ratio, first, case in failure_rows(report):
        console.print(f"{what}: {kind}, error/bound {ratio}: {first}\n    {case}", markup=False, soft_wrap=True)
    for reason, count in report.skipped.most_common():
        console.print(f"not tested ({count}): {reason}", markup=False, soft_wrap=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("subject", help="package.module:callable[@declaration.toml], or an installed subject's name")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="where it runs")
    parser.add_argument("--examples", type=int, metavar="N", help="cases per property")
    parser.add_argument("--seed", type=int, metavar="N", help="of every draw")
    parser.add_argument("--workers", default="auto", metavar="N", help="processes (default: as many as fit)")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="failures that are expected, as TOML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary of the run as JSON")


def expected_of(subject: str) -> Path | None:
    """Return the file of failures that are expected of a subject, where this project has one."""
    path = EXPECTED / f"{subject.partition('@')[0].replace(':', '.')}.toml"
    return path if path.exists() else None


def run(options: argparse.Namespace) -> int:
    """Run the properties and report. Exit status 0: conforms, 1: something failed, 2: it could not be run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "properties.plugin", "-n", options.workers]
        command += [str(PROPERTIES), f"--ignore={PROPERTIES / 'tests'}"]
        command += ["--msda-subject", options.subject, "--msda-device", options.device, "--msda-json", str(file)]
        command += ["--msda-minimise", f"{MINIMISE_SECONDS:g}"]
        for name in ("examples", "seed"):
            if getattr(options, name) is not None:
                command += [f"--msda-{name}", str(getattr(options, name))]
        expected = options.expected or expected_of(options.subject)
        if expected is not None:
            command += ["--msda-expected", str(Path(expected).resolve())]
        status = subprocess.run(command, check=False).returncode
        text = file.read_text() if file.exists() else ""
    if not text or status not in (0, 1):
        sys.stderr.write(f"conformance: {options.subject} could not be run: pytest ended with status {status}\n")
        return 2
    report = conformance(json.loads(text))
    show(report, Console())
    if options.markdown is not None:
        options.markdown.write_text(markdown(report))
    if options.json is not None:
        options.json.write_text(text)
    return status
