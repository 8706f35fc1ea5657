"""Makes one report of those of several shards, or of several nights.

python -m ci merge DIR [DIR...] --report OUT
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from properties.failures import started_in
from properties.report import ItemStats

from .faults import Fault, merged
from .progress import closing_lines
from .result import BROKEN, FORMAT, STATUS, Tally, finished
from .state import write_json

# What has to be the same for the sum to mean anything.
SAME = ("subject", "quick", "only")
# What a report says of each of its parts.
KEPT = (
    "shard",
    "seed",
    "device",
    "device_name",
    "versions",
    "workers",
    "commit",
    "started",
    "budget_seconds",
    "elapsed_seconds",
    "resumed",
    "verdict",
)


def read(folder: Path) -> dict[str, Any]:
    """Read the result of a run.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, or of another version.
    """
    path = folder / "nightly.json"
    try:
        plain: Any = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"merge: {str(path)!r} is no JSON: {error}") from None
    if not isinstance(plain, dict) or plain.get("kind") != "nightly" or plain.get("format") != FORMAT:
        raise ValueError(f"merge: {str(path)!r} given, expected the result of a nightly run in format {FORMAT}")
    return plain


def missing_shards(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which shards of those that the parts speak of are not among them."""
    counts = {part["shard"][1] for part in parts if part["shard"] is not None}
    there = {tuple(part["shard"]) for part in parts if part["shard"] is not None}
    missing = [(number, count) for count in sorted(counts) for number in range(1, count + 1)]
    return [f"shard {number}/{count} is missing" for number, count in missing if (number, count) not in there]


def merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result of all parts together.

    Args:
        parts: results of nightly runs.

    Raises:
        ValueError: they are of different subjects, or not of the same tests.
    """
    for name in SAME:
        values = {json.dumps(part[name]) for part in parts}
        if len(values) > 1:
            raise ValueError(f"merge: {name} is {' and '.join(sorted(values))}, expected the same in all parts")
    total = Tally()
    for part in parts:
        _add(total, part)
    shards = [None if part["shard"] is None else int(part["shard"][0]) for part in parts]
    found = [[Fault.from_dict(fault) for fault in part["faults"]] for part in parts]
    total.faults = merged(list(zip(shards, found, strict=True)))
    first = min(parts, key=lambda part: str(part["started"]))
    header = {name: first[name] for name in first if name not in ("verdict", "reasons")}
    header |= {
        "shard": None,
        "merged": [{name: part.get(name) for name in KEPT} for part in parts],
        "workers": sum(int(part["workers"]) for part in parts),
        "elapsed_seconds": max(float(part["elapsed_seconds"]) for part in parts),
        "budget_seconds": max(float(part["budget_seconds"]) for part in parts),
        "resumed": sum(int(part["resumed"]) for part in parts),
        "device": {"type": first["device"]["type"], "gpus": [gpu for part in parts for gpu in part["device"]["gpus"]]},
    }
    broken = [f"{_name(part)}: {part['reasons'][0]}" for part in parts if part["verdict"] == BROKEN]
    return finished(
        header,
        total,
        wall=max(float(part["totals"]["wall"]) for part in parts),
        reachable=sorted({name for part in parts for name in part["reachable"]}),
        bandit=_bandit(parts),
        broken=[*missing_shards(parts), *broken],
        notes=[note for part in parts for note in part["notes"]],
    )


def _name(part: Mapping[str, Any]) -> str:
    return "a run" if part["shard"] is None else f"shard {part['shard'][0]}/{part['shard'][1]}"


def _add(total: Tally, part: Mapping[str, Any]) -> None:
    for plain in part["items"]:
        fields = {name: value for name, value in plain.items() if name != "turns"}
        fields["ratio"] = {output: float(ratio) for output, ratio in plain["ratio"].items()}
        item = ItemStats.from_dict(fields)
        nodeid = f"{item.test}[{item.variant}]" if item.variant else item.test
        # Workers of different runners may have the same name.
        item.worker = f"{_name(part)} {item.worker}"
        total.turns[nodeid] = total.turns.get(nodeid, 0) + int(plain["turns"])
        if nodeid in total.items:
            total.items[nodeid].add(item)
        else:
            total.items[nodeid] = item
    total.errors += part["errors"]
    total.crashes += part["crashes"]
    total.skipped |= part["skipped"]
    total.corpus_cases += part["corpus"]["cases"]
    total.corpus_failures += part["corpus"]["failed"]
    for row in part["compiles"]:
        total.compiled(row["kernel"], count=row["count"], seconds=row["seconds"], slowest=row["slowest"])


def _bandit(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for part in parts:
        for row in part["bandit"]:
            known = rows.setdefault((row["test"], row["variant"]), dict.fromkeys(row, 0) | {"ratio": 0.0})
            known |= {"test": row["test"], "variant": row["variant"]}
            for name in ("turns", "cases", "seconds", "new_classes"):
                known[name] += row[name]
            known["ratio"] = max(known["ratio"], float(row["ratio"]))
    whole = sum(row["seconds"] for row in rows.values()) or 1.0
    for row in rows.values():
        row["share"] = round(row["seconds"] / whole, 5)
    return sorted(rows.values(), key=lambda row: -row["seconds"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="reports of nightly runs")
    parser.add_argument("--report", type=Path, required=True, metavar="OUT", help="folder of the one report")
    parser.add_argument("--mutants", type=Path, metavar="FILE", help="result of `mutants --json`, for the report")
    parser.add_argument("--trend", type=Path, nargs="+", default=[], metavar="FILE", help="earlier nightly.json files")


def run(options: argparse.Namespace) -> int:
    """Merge. Exit status 0: clean, 1: something failed, 2: a part is missing or could not run."""
    from ci import report  # noqa: PLC0415 - draws figures

    here = started_in(Path.cwd())
    folders = [here / folder for folder in options.folders]
    out = here / options.report
    try:
        if out.resolve() in [folder.resolve() for folder in folders]:
            raise ValueError(f"report: {str(options.report)!r} is one of the parts, expected another folder")
        result = merge([read(folder) for folder in folders])
        collect(folders, out)
        write_json(out / "nightly.json", result)
        mutants = None if options.mutants is None else here / options.mutants
        report.render(out, mutants=mutants, trend=[here / path for path in options.trend])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"merge: {error}\n")
        return STATUS[BROKEN]
    console = Console()
    for line in closing_lines(result, elapsed=result["elapsed_seconds"]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return STATUS[result["verdict"]]


def collect(folders: Sequence[Path], out: Path) -> None:
    """Put the cases and the case files of all parts into one folder."""
    (out / "failures").mkdir(parents=True, exist_ok=True)
    with (out / "cases.jsonl").open("wb") as whole:
        for folder in folders:
            # The name of a case file follows from what is in it: two of one name are the same.
            for case in sorted((folder / "failures").glob("*.json")):
                shutil.copyfile(case, out / "failures" / case.name)
            if (folder / "cases.jsonl").exists():
                with (folder / "cases.jsonl").open("rb") as lines:
                    shutil.copyfileobj(lines, whole, 1 << 20)
