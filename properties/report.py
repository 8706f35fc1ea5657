"""The summary of a run: from the records of single items to a table and a JSON file. Knows nothing of pytest."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from properties.agreement import Agreement, Lossy, Record, lossy_lines, table
from properties.agreement import merge as merge_records

FORMAT = 1


@dataclass(kw_only=True)
class ItemStats:
    """What one property did on one variant (a dtype cell), in one process.

    Cases are counted until the first failure; what Hypothesis then runs to shrink it is counted in `shrinks` alone,
    and is in none of the other figures but `seconds`.

    Attributes:
        test: node id of the property without the variant.
        variant: the parametrised part of the node id, "" without one.
        worker: name of the process.
        outcome: "passed", "failed", "skipped", or "expected" for a failure that was.
        cases: recipes given to the property.
        judged: comparisons with the reference; a property may make several in a case, or none.
        discarded: recipes that the property refused.
        shrinks: recipes run after the first failure.
        seconds: time in the drawing loop, everything included.
        started: wall clock at the start of the first loop, 0 when there was none.
        ended: wall clock at the end of the last one.
        stages: seconds by stage; "draw" is what Hypothesis takes.
        ratio: largest error over bound, by output.
        collisions: largest number of samples that met in one pixel.
        compiles: kernels compiled.
        compile_seconds: seconds of compiling.
        compile_waited: seconds of waiting for another worker's compile.
        slowest_compile: name and seconds.
        classes: cases by input class.
        facts: what was measured on the device.
        agreement: figures of repeated runs, by dtype and accumulator; see `agreement`.
        lossy: cases whose accumulator is too coarse for its bound to say anything, by dtype and accumulator.
        failure: class, first line, evidence, recipe and case file of the smallest case that failed; empty without one.
    """

    test: str
    variant: str = ""
    worker: str = "main"
    outcome: str = "passed"
    cases: int = 0
    judged: int = 0
    discarded: int = 0
    shrinks: int = 0
    seconds: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    ratio: dict[str, float] = field(default_factory=dict)
    collisions: int = 0
    compiles: int = 0
    compile_seconds: float = 0.0
    compile_waited: float = 0.0
    slowest_compile: tuple[str, float] | None = None
    classes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    agreement: Record = field(default_factory=dict)
    lossy: Record = field(default_factory=dict)
    failure: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain types, as they travel between processes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ItemStats:
        """Build from `as_dict`, after a journey that may have turned tuples into lists."""
        stats = cls(**values)
        if stats.slowest_compile is not None:
            name, seconds = stats.slowest_compile
            stats.slowest_compile = (name, seconds)
        return stats

    def add(self, other: ItemStats) -> None:
        """Take up what another run of the same property on the same variant did.

        Counts and seconds add up, the largest figures and the first failure are kept.
        """
        for name in ("cases", "judged", "discarded", "shrinks", "seconds", "compiles"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("compile_seconds", "compile_waited"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.stages, other.stages), (self.classes, other.classes)):
            for key, amount in theirs.items():
                mine[key] = mine.get(key, 0) + amount  # type: ignore[assignment]
        for output, ratio in other.ratio.items():
            self.ratio[output] = max(self.ratio.get(output, 0.0), ratio, key=_rank)
        self.started = min(filter(None, (self.started, other.started)), default=0.0)
        self.ended = max(self.ended, other.ended)
        self.collisions = max(self.collisions, other.collisions)
        slowest = [one for one in (self.slowest_compile, other.slowest_compile) if one is not None]
        self.slowest_compile = max(slowest, key=lambda pair: pair[1], default=None)
        self.facts |= other.facts
        self.agreement = merge_records((self.agreement, other.agreement), Agreement)
        self.lossy = merge_records((self.lossy, other.lossy), Lossy)
        self.failure = self.failure or other.failure
        if other.outcome == "failed":
            self.outcome = other.outcome

    @property
    def running(self) -> float:
        """Seconds in the loop without compiling and waiting for a compile."""
        return max(0.0, self.seconds - self.compile_seconds - self.compile_waited)

    @property
    def worst(self) -> tuple[str, float] | None:
        """The output that came closest to its bound, and its ratio. NaN counts as the largest."""
        return max(self.ratio.items(), key=lambda pair: _rank(pair[1]), default=None)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """A run in numbers.

    Attributes:
        cases: of all items.
        judged: of all items.
        wall: seconds of wall clock from the start of the first drawing loop to the end of the last.
        rate: cases a second; see `RATE`.
        compiles: kernels compiled by all workers.
        compile_seconds: of all workers.
        slowest_compile: name and seconds.
        slowest_property: name and seconds, summed over its variants.
        stages: seconds by stage, of all workers.
        worst: property, output and ratio of the largest error over bound.
    """

    cases: int
    judged: int
    wall: float
    rate: float
    compiles: int
    compile_seconds: float
    slowest_compile: tuple[str, float] | None
    slowest_property: tuple[str, float] | None
    stages: dict[str, float]
    worst: tuple[str, str, float] | None


MARKS = {"failed": "FAILED", "expected": "fails as expected"}
COLUMNS = ("  dtypes", "cases", "cases/s", "error/bound", "of", "collisions", "compiles", "seconds", "")
LEFT = (0, 4, 8)  # these columns hold words
# A property with more variants than that is one row; no dtype table is as long.
MOST_VARIANTS = 24

RATE = "cases / (wall clock of all cases, less compiling and waiting for it averaged over the workers)"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A finished run.

    Attributes:
        header: what was run: subject, versions, device, seed, profile, examples, workers.
        items: one record for each property and variant that drew cases.
        counts: tests by outcome, as the test runner counts them; tests that are no properties are among them.
        skipped: node id and reason of what was not tested.
        required: input classes that a full run must reach.
    """

    header: Mapping[str, Any]
    items: Sequence[ItemStats]
    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    required: Sequence[str] = ()

    @property
    def classes(self) -> dict[str, int]:
        """Cases by input class, those without a case included."""
        reached = dict.fromkeys(self.required, 0)
        for item in self.items:
            for name, count in item.classes.items():
                reached[name] = reached.get(name, 0) + count
        return reached

    @property
    def facts(self) -> dict[str, str]:
        """What was measured on the device, by any worker."""
        return {name: value for item in self.items for name, value in item.facts.items()}

    @property
    def agreement(self) -> Record:
        """Figures of repeated runs, by dtype and accumulator."""
        return merge_records((item.agreement for item in self.items), Agreement)

    @property
    def lossy(self) -> Record:
        """Cases beyond the range of their accumulator, by dtype and accumulator."""
        return merge_records((item.lossy for item in self.items), Lossy)

    def totals(self) -> Totals:
        """Add everything up."""
        items = self.items
        started = min((item.started for item in items if item.started), default=0.0)
        wall = max((item.ended for item in items), default=0.0) - started
        workers = max(1, len({item.worker for item in items}))
        paused = sum(item.compile_seconds + item.compile_waited for item in items) / workers
        cases = sum(item.cases for item in items)
        by_property: dict[str, float] = {}
        stages: dict[str, float] = {}
        for item in items:
            by_property[item.test] = by_property.get(item.test, 0.0) + item.seconds
            for stage, seconds in item.stages.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
        worst = [(item.test, *item.worst) for item in items if item.worst is not None]
        compiles = [item.slowest_compile for item in items if item.slowest_compile is not None]
        return Totals(
            cases=cases,
            judged=sum(item.judged for item in items),
            wall=wall,
            rate=cases / (wall - paused) if wall > paused else 0.0,
            compiles=sum(item.compiles for item in items),
            compile_seconds=sum(item.compile_seconds for item in items),
            slowest_compile=max(compiles, key=lambda pair: pair[1], default=None),
            slowest_property=max(by_property.items(), key=lambda pair: pair[1], default=None),
            stages=stages,
            worst=max(worst, key=lambda entry: _rank(entry[2]), default=None),
        )

    def as_dict(self) -> dict[str, Any]:
        """The machine-readable summary. Ratios that are no finite numbers are strings: JSON has none."""
        summary: dict[str, Any] = plain(
            {
                "format": FORMAT,
                **self.header,
                "counts": dict(self.counts),
                "totals": {**dataclasses.asdict(self.totals()), "rate_is": RATE},
                "classes": self.classes,
                "facts": self.facts,
                "determinism": self.agreement,
                "lossy": self.lossy,
                "items": [item.as_dict() for item in self.items],
                "skipped": dict(self.skipped),
            }
        )
        return summary

    def as_json(self) -> str:
        """`as_dict` as text."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"


def merge(items: Iterable[ItemStats]) -> list[ItemStats]:
    """Sort items by property, in the order in which properties first appear, and by variant."""
    order: dict[str, int] = {}
    listed = list(items)
    for item in sorted(listed, key=lambda item: item.test):
        order.setdefault(item.test, len(order))
    return sorted(listed, key=lambda item: (order[item.test], item.variant))


def fold(items: Sequence[ItemStats]) -> list[ItemStats]:
    """Add up the variants of a property that has too many of them for a table; those that failed stay by themselves."""
    counts = Counter(item.test for item in items)
    folded: list[ItemStats] = []
    sums: dict[str, int] = {}
    for item in items:
        if counts[item.test] <= MOST_VARIANTS or item.outcome in MARKS:
            folded.append(item)
        elif item.test in sums:
            folded[sums[item.test]] = _sum(folded[sums[item.test]], item)
        else:
            sums[item.test] = len(folded)
            folded.append(replace(item, variant=f"{counts[item.test]} variants"))
    return folded


def _sum(one: ItemStats, other: ItemStats) -> ItemStats:
    worst = dict(one.ratio)
    for output, ratio in other.ratio.items():
        worst[output] = max(worst.get(output, 0.0), ratio, key=_rank)
    return replace(
        one,
        cases=one.cases + other.cases,
        seconds=one.seconds + other.seconds,
        compiles=one.compiles + other.compiles,
        compile_seconds=one.compile_seconds + other.compile_seconds,
        compile_waited=one.compile_waited + other.compile_waited,
        collisions=max(one.collisions, other.collisions),
        ratio=worst,
    )


def render(summary: Summary, *, width: int = 120, color: bool = False) -> str:
    """Lay the summary out as text: a table of the items, then the totals.

    Args:
        summary: what to show.
        width: columns available.
        color: whether the reader is a terminal.
    """
    from rich.console import Console  # noqa: PLC0415 - only the process that prints needs it
    from rich.text import Text  # noqa: PLC0415

    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    )
    rows = [(item, _cells(item)) for item in fold(merge(summary.items))]
    widths = [
        max(len(row[column]) for row in (COLUMNS, *(cells for _, cells in rows))) for column in range(len(COLUMNS))
    ]
    previous = None
    for item, cells in rows:
        if previous is None:
            console.print(Text(_line(COLUMNS, widths), style="dim"), soft_wrap=True)
        if item.test != previous:
            console.print(Text(_short(item.test), style="bold"), soft_wrap=True)
        console.print(Text(_line(cells, widths), style="red" if item.outcome == "failed" else ""), soft_wrap=True)
        previous = item.test
    for line in table(summary.agreement):
        console.print(Text(line), soft_wrap=True)
    for line in closing_lines(summary):
        for part in textwrap.wrap(line, width, subsequent_indent=" " * 12, break_on_hyphens=False):
            console.print(Text(part), soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def closing_lines(summary: Summary) -> list[str]:
    """The totals, one fact a line."""
    totals = summary.totals()
    lines = [
        f"cases       {totals.cases} ({totals.judged} comparisons with the reference) in {totals.wall:.1f} s,"
        f" {totals.rate:.1f} cases/s without compiling",
        f"            rate = {RATE}",
    ]
    discarded = sum(item.discarded for item in summary.items)
    if discarded:
        lines.append(f"discarded   {discarded} recipes that a property refused; they are in none of the figures")
    if totals.worst is not None:
        property_, output, ratio = totals.worst
        lines.append(f"worst       {_ratio(ratio)} of the bound: {output} in {_short(property_)}")
    slowest = totals.slowest_compile
    named = f", slowest {slowest[0]} {slowest[1]:.1f} s" if slowest is not None else ""
    lines.append(f"compiles    {totals.compiles} in {totals.compile_seconds:.1f} s{named}")
    classes = summary.classes
    if classes:
        empty = [name for name in summary.required if not classes[name]]
        wanted = len(summary.required)
        lines.append(f"classes     {wanted - len(empty)} of {wanted} input classes reached")
        if empty:
            lines.append(f"            empty: {_grouped(empty)}")
    if totals.slowest_property is not None:
        name, seconds = totals.slowest_property
        lines.append(f"slowest     {_short(name)}, {seconds:.1f} s over all its variants")
    if totals.stages:
        whole = sum(totals.stages.values()) or 1.0
        parts = ", ".join(f"{stage} {seconds / whole:.0%}" for stage, seconds in totals.stages.items())
        lines.append(f"time        {parts}")
    lines += lossy_lines(summary.lossy)
    lines += [f"device      {name}: {value}" for name, value in summary.facts.items()]
    lines += [f"skipped     {count}: {reason}" for reason, count in Counter(summary.skipped.values()).items()]
    lines.append(f"seed        {summary.header.get('seed', 'unknown')}")
    return lines


def _cells(item: ItemStats) -> list[str]:
    worst = item.worst
    compiled = f"{item.compiles} ({item.compile_seconds:.1f} s)" if item.compiles else "0"
    return [
        f"  {item.variant or '-'}",
        str(item.cases),
        f"{item.cases / item.running:.1f}" if item.running else "-",
        "-" if worst is None else _ratio(worst[1]),
        "" if worst is None else worst[0],
        str(item.collisions) if item.collisions else "-",
        compiled,
        f"{item.seconds:.1f}",
        MARKS.get(item.outcome, ""),
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if column in LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded)


def _short(property_: str) -> str:
    """A node id without its folder and the words that every one has."""
    file, _, function = property_.rpartition("::")
    return f"{file.rpartition('/')[2].removesuffix('.py').removeprefix('test_')}: {function.removeprefix('test_')}"


def _grouped(classes: Sequence[str]) -> str:
    """Name the kind of several classes once: "heads: 3, 4; empty"."""
    kinds: dict[str, list[str]] = {}
    for name in classes:
        kind, _, value = name.partition(": ")
        kinds.setdefault(kind, []).append(value)
    return "; ".join(f"{kind}: {', '.join(values)}" if any(values) else kind for kind, values in kinds.items())


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 1000 else f"{ratio:.3g}"


def _rank(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


def plain(value: Any) -> Any:
    """Return a value as JSON has it: keys are strings, tuples lists, and numbers that are not finite words."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
