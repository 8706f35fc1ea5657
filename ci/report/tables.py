"""The tables of a run: properties by dtype, input classes, repeated runs, compiles, the time that each property got."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import text
from .load import Run, mapping, number, objects, whole
from .points import DTYPES, OTHER, dtype_of

GROUPS = {
    "cell": "Dtypes of value, locations, weights",
    "batch": "Batch",
    "queries": "Queries",
    "heads": "Heads",
    "channels": "Channels",
    "L": "Levels",
    "K": "Points",
    "samples": "Samples of a query",
    "level": "Shapes of levels",
    "location": "Locations",
    "collisions": "Collisions",
    "lattice": "Exact lattice",
    "value": "Values",
    "weights": "Weights",
    "grad": "Gradients",
    "layout value": "Layout of value",
    "layout locations": "Layout of locations",
    "layout weights": "Layout of weights",
    "layout grad_output": "Layout of grad_output",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What came of one property on all variants of one dtype.

    Attributes:
        cases: drawn.
        rate: cases a second of the loop, without compiling; None where nothing ran.
        ratio: largest error over bound, None where nothing was measured.
        state: "passed", "failed", "expected", or "" where nothing ran.
        faults: distinct ones.
    """

    cases: int = 0
    rate: float | None = None
    ratio: float | None = None
    state: str = ""
    faults: int = 0

    @property
    def heat(self) -> float:
        """How close to the bound, from 0 to 1."""
        if self.ratio is None:
            return 0.0
        return min(1.0, self.ratio) if not math.isnan(self.ratio) else 1.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One property.

    Attributes:
        test: node id without the variant.
        cells: by dtype of value.
        variants: a row of the detailed table for each variant.
    """

    test: str
    cells: Mapping[str, Cell]
    variants: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Class:
    """One input class.

    Attributes:
        name: without its group.
        cases: that had it.
        floor: that it must have, 0 without one.
        width: of its bar, from 0 to 1.
        mark: place of its floor on the bar, from 0 to 1.
    """

    name: str
    cases: int
    floor: int
    width: float
    mark: float

    @property
    def missed(self) -> bool:
        """Whether it is below its floor."""
        return self.cases < self.floor


VARIANT_COLUMNS = ("variant", "cases", "cases/s", "error/bound", "of", "collisions", "compiles", "seconds", "outcome")


def properties(run: Run) -> tuple[list[str], list[Row]]:
    """Return the dtypes that have anything to show, and a row for each property."""
    items: dict[str, list[Mapping[str, Any]]] = {}
    for item in objects(run.nightly, "items"):
        items.setdefault(str(item.get("test", "")), []).append(item)
    faults: dict[tuple[str, str], int] = {}
    for fault in objects(run.nightly, "faults"):
        place = (str(fault.get("property", "")), dtype_of(str(fault.get("variant") or "")))
        faults[place] = faults.get(place, 0) + 1
        # A property that only failed has no item where the run was cut short.
        items.setdefault(place[0], [])
    rows = [_row(test, found, faults) for test, found in items.items()]
    columns = [name for name in (*DTYPES, OTHER) if any(row.cells[name].state for row in rows)]
    return columns, rows


def _row(test: str, items: Sequence[Mapping[str, Any]], faults: Mapping[tuple[str, str], int]) -> Row:
    by_dtype: dict[str, list[Mapping[str, Any]]] = {name: [] for name in (*DTYPES, OTHER)}
    for item in items:
        by_dtype[_dtype(item)].append(item)
    return Row(
        test=test,
        cells={name: _cell(found, faults.get((test, name), 0)) for name, found in by_dtype.items()},
        variants=tuple(_variant(item) for item in sorted(items, key=lambda item: str(item.get("variant", "")))),
    )


def _dtype(item: Mapping[str, Any]) -> str:
    """Of the variant, else of the one dtype cell that all cases had: files of the corpus are named otherwise."""
    named = dtype_of(str(item.get("variant") or ""))
    cells = {dtype_of(label.removeprefix("cell: ")) for label in mapping(item, "classes") if label.startswith("cell: ")}
    return cells.pop() if named == OTHER and len(cells) == 1 else named


def _cell(items: Sequence[Mapping[str, Any]], faults: int) -> Cell:
    ratios = [value for item in items for value in map(number, mapping(item, "ratio").values()) if value is not None]
    outcomes = {str(item.get("outcome", "passed")) for item in items if item.get("outcome") != "skipped"}
    cases = sum(whole(item.get("cases")) for item in items)
    seconds = sum(_running(item) for item in items)
    state = "failed" if faults or "failed" in outcomes else "expected" if "expected" in outcomes else ""
    return Cell(
        cases=cases,
        rate=cases / seconds if seconds > 0 else None,
        ratio=max(ratios, key=rank, default=None),
        state=state or ("passed" if outcomes else ""),
        faults=faults,
    )


def _running(item: Mapping[str, Any]) -> float:
    parts = [number(item.get(name)) or 0.0 for name in ("seconds", "compile_seconds", "compile_waited")]
    return max(0.0, parts[0] - parts[1] - parts[2])


def _variant(item: Mapping[str, Any]) -> tuple[str, ...]:
    ratios = {str(name): number(value) for name, value in mapping(item, "ratio").items()}
    known = {name: value for name, value in ratios.items() if value is not None}
    worst = max(known.items(), key=lambda pair: rank(pair[1]), default=None)
    running = _running(item)
    return (
        str(item.get("variant") or text.NONE),
        text.count(item.get("cases", 0)),
        text.rate(whole(item.get("cases")) / running) if running else text.NONE,
        text.ratio(worst[1]) if worst else text.NONE,
        worst[0] if worst else "",
        text.count(item["collisions"]) if whole(item.get("collisions")) else text.NONE,
        text.count(item.get("compiles", 0)),
        text.duration(item.get("seconds")),
        str(item.get("outcome", "")),
    )


def rank(ratio: float) -> float:
    """For comparing: NaN is the largest of all."""
    return math.inf if math.isnan(ratio) else ratio


def coverage(run: Run) -> dict[str, list[Class]]:
    """Input classes by group; what is below its floor comes first in its group."""
    reached, floors = mapping(run.nightly, "classes"), mapping(run.nightly, "floors")
    counts = {str(name): (whole(reached.get(name)), whole(floors.get(name))) for name in {**floors, **reached}}
    longest = math.log1p(max((max(pair) for pair in counts.values()), default=1) or 1)
    groups: dict[str, list[Class]] = {}
    for label, (cases, floor) in counts.items():
        group, _, name = label.partition(": ")
        found = Class(
            name=name or group,
            cases=cases,
            floor=floor,
            # Counts differ by orders of magnitude.
            width=math.log1p(max(0, cases)) / longest,
            mark=math.log1p(max(0, floor)) / longest,
        )
        groups.setdefault(group, []).append(found)
    order = [*GROUPS, *sorted(set(groups) - set(GROUPS))]
    return {
        GROUPS.get(group, group): sorted(groups[group], key=lambda one: (not one.missed, _natural(one.name)))
        for group in order
        if group in groups
    }


def _natural(name: str) -> list[tuple[int, str]]:
    """For sorting "K: 10" behind "K: 9", and "float64" as text."""
    return [(int(part), "") if part.isdecimal() else (10**9, part) for part in re.split(r"(\d+)", name) if part]


AGREEMENT_COLUMNS = (
    "dtype, accumulator",
    "cases",
    "runs",
    "unequal runs",
    "elements",
    "unequal elements",
    "largest spread",
    "spread/bound",
    "largest n",
)


def determinism(run: Run) -> list[tuple[str, ...]]:
    """A row for each dtype and accumulator whose runs were repeated."""
    rows = []
    for name, figures in mapping(run.nightly, "determinism").items():
        if not isinstance(figures, Mapping):
            continue
        spread = number(figures.get("spread"))
        rows.append(
            (
                text.one_line(name),
                *(text.count(figures.get(key)) for key in ("cases", "runs", "unequal_runs", "elements", "unequal")),
                text.NONE if spread is None else f"{spread:.2g}",
                text.ratio(figures.get("ratio")),
                text.count(figures.get("collisions")),
            )
        )
    return rows


def lossy(run: Run) -> list[str]:
    """Accumulators that were used beyond any meaning, a line each."""
    return [
        f"{text.one_line(name)}: {text.plural(whole(figures.get('cases')), 'case')} in which up to "
        f"{text.count(figures.get('collisions'))} samples met in one pixel, where the bound exceeds the result"
        for name, figures in mapping(run.nightly, "lossy").items()
        if isinstance(figures, Mapping)
    ]


def compiles(run: Run) -> list[tuple[str, ...]]:
    """Kernel, compiles, seconds of all, seconds of the slowest; the most expensive first."""
    found = sorted(objects(run.nightly, "compiles"), key=lambda one: -(number(one.get("seconds")) or 0.0))
    return [
        (
            text.one_line(one.get("kernel", text.NONE)),
            text.count(one.get("count")),
            text.duration(one.get("seconds")),
            text.duration(one.get("slowest")),
        )
        for one in found
    ]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What one property and variant got of the time.

    Attributes:
        name: property and variant in words.
        share: of the time, from 0 to 1.
        cells: turns, cases, seconds, new classes, largest ratio.
    """

    name: str
    share: float
    cells: tuple[str, ...]


ARM_COLUMNS = ("turns", "cases", "time", "new classes", "error/bound")


def bandit(run: Run) -> list[Arm]:
    """Who got time, the most first."""
    rows = objects(run.nightly, "bandit")
    whole_time = sum(number(row.get("seconds")) or 0.0 for row in rows) or 1.0
    arms = []
    for row in rows:
        seconds = number(row.get("seconds")) or 0.0
        told = number(row.get("share"))
        variant = row.get("variant")
        arms.append(
            Arm(
                name=text.title(str(row.get("test", ""))) + (f", {variant}" if variant else ""),
                share=min(1.0, max(0.0, told if told is not None and math.isfinite(told) else seconds / whole_time)),
                cells=(
                    text.count(row.get("turns")),
                    text.count(row.get("cases")),
                    text.duration(seconds),
                    text.count(row.get("new_classes")),
                    text.ratio(row.get("ratio")),
                ),
            )
        )
    return sorted(arms, key=lambda arm: -arm.share)
