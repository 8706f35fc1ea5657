"""What a person sees while it runs: a table on a terminal, a line now and then in a log."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .clock import Clock, shown
from .faults import Fault, Faults, fault_line, grouped
from .state import Folder, RunState, read_json
from .turns import Record

LINE_SECONDS = 15.0
LIVE_SECONDS = 0.5
# Cases of so many seconds tell how fast a worker is.
RATE_SECONDS = 20.0
SILENT_SECONDS = 60.0


class Tail:
    """Reads what is appended to a file, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[bytes]:
        """Return the lines that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.splitlines()


@dataclass(kw_only=True)
class Seen:
    """What is known of one worker.

    Attributes:
        cases: judged in this session.
        worst: largest error over bound, of those within it.
        output: that had it.
        doing: property of the last case.
        heard: when its last case was read.
        recent: moments and counts of cases, for the rate.
    """

    cases: int = 0
    worst: float = 0.0
    output: str = ""
    doing: str = ""
    heard: float = field(default_factory=time.monotonic)
    recent: list[tuple[float, int]] = field(default_factory=list)

    def rate(self, now: float) -> float:
        """Cases a second of late."""
        self.recent = [(at, count) for at, count in self.recent if now - at <= RATE_SECONDS]
        at, before = self.recent[0] if self.recent else (now, 0)
        return (self.cases - before) / (now - at) if now - at >= 1.0 else 0.0


class Progress:
    """Follows a session by what its workers write."""

    def __init__(self, folder: Folder, clock: Clock, console: Console | None = None) -> None:
        self._folder = folder
        self._clock = clock
        self._console = console or Console()
        self._workers: dict[str, Seen] = {}
        self._tails: dict[Path, Tail] = {}
        self._turns = Tail(folder.turns)
        self._faults = Faults()
        self._live: Live | None = None
        self._looked = 0.0
        self._last = time.monotonic()
        self._header = False

    def begin(self, run: RunState) -> None:
        """Say what is run."""
        lines = [f"subject: {run.subject}", f"seed: {run.seed}", f"budget: {shown(run.budget)}"]
        lines += [f"shard: {run.shard[0]} of {run.shard[1]}"] if run.shard else []
        lines += ["quick: the corpus and the properties with the reference alone"] if run.quick else []
        lines += [f"only: {run.only}"] if run.only else []
        lines += [f"database: {address}" for address in run.databases]
        if run.sessions > 1:
            lines.append(f"resumed: {shown(run.elapsed)} of {shown(run.budget)} were spent before")
        for line in lines:
            self._print(f"nightly {line}")
        # Cases and turns of earlier sessions are not this session's progress, but their faults are known.
        for path in self._folder.all_cases():
            self._tails[path] = Tail(path)
            self._tails[path].lines()
        self._hear()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=1 / LIVE_SECONDS, get_renderable=self._table)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def show(self) -> None:
        """Bring what is shown up to date, if it is time."""
        now = time.monotonic()
        if now - self._looked >= LIVE_SECONDS:
            self._looked = now
            self._read(now)
        if self._live is None and now - self._last >= LINE_SECONDS:
            self._last = now
            for line in self.lines(now):
                self._print(line)

    def _read(self, now: float) -> None:
        header = None if self._header else read_json(self._folder.header)
        if header is not None:
            self._header = True
            versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
            self._print(f"nightly device: {header['device_name']}; {header['workers']} workers; {versions}")
        for path in self._folder.all_cases():
            worker = path.stem.rpartition("-")[2]
            seen = self._workers.setdefault(worker, Seen())
            seen.recent.append((now, seen.cases))
            for line in self._tails.setdefault(path, Tail(path)).lines():
                seen.heard = now
                _take(seen, line)
        self._hear()

    def _hear(self) -> None:
        for line in self._turns.lines():
            try:
                fault = self._faults.hear(Record.from_json(line.decode()))
            except ValueError:
                continue
            if fault is not None and self._header:
                where = f"{fault.test}[{fault.variant}]"
                self._print(f"nightly found {fault.kind}: {where}: {fault.first_line}")

    def lines(self, now: float) -> list[str]:
        """Return one line for each worker, and one for all."""
        rows = [
            f"nightly {worker}: {seen.cases} cases, {seen.rate(now):.1f}/s, worst {seen.worst:.3f} {seen.output}"
            for worker, seen in self._living(now)
        ]
        cases, rate = (
            sum(one.cases for one in self._workers.values()),
            sum(one.rate(now) for one in self._workers.values()),
        )
        total = f"nightly all: {cases} cases, {rate:.1f}/s, {len(self._faults)} faults, {shown(self._left)} left"
        return [*rows, total]

    def _living(self, now: float) -> list[tuple[str, Seen]]:
        """Workers that have not been replaced, as far as their silence tells."""
        return [(name, seen) for name, seen in sorted(self._workers.items()) if now - seen.heard <= SILENT_SECONDS]

    @property
    def _left(self) -> float:
        return self._clock.budget - self._clock.elapsed

    def _table(self) -> Table:
        now = time.monotonic()
        table = Table("worker", "cases", "cases/s", "error/bound", "of", "at", title="nightly", expand=False)
        for worker, seen in self._living(now):
            row = (worker, str(seen.cases), f"{seen.rate(now):.1f}", f"{seen.worst:.3f}", seen.output, seen.doing)
            # As text: a variant in brackets would be taken for markup.
            table.add_row(*map(Text, row))
        total = sum(one.cases for one in self._workers.values())
        rate = sum(one.rate(now) for one in self._workers.values())
        style = "bold red" if len(self._faults) else "bold"
        closing = (f"{len(self._faults)} faults", f"{shown(self._left)} left")
        table.add_row("all", str(total), f"{rate:.1f}", "", *closing, style=style)
        return table

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self, result: Mapping[str, Any]) -> None:
        """Say how it ended."""
        for line in closing_lines(result, elapsed=self._clock.elapsed):
            self._print(line)
        self._print(f"nightly report: {self._folder.root}")


def closing_lines(result: Mapping[str, Any], *, elapsed: float) -> list[str]:
    """Say in some lines how a run ended.

    Args:
        result: as `nightly.json` has it.
        elapsed: seconds that it took.
    """
    totals = result["totals"]
    worst = totals["worst"]
    told = "" if worst is None else f", worst {float(worst[2]):.3f} of the bound"
    lines = [
        f"nightly {result['verdict']}: {totals['cases']} cases, {totals['judged']} judged in {shown(elapsed)}, "
        f"{totals['rate']:.1f} cases/s without compiling{told}; {len(result['faults'])} faults"
    ]
    for group in grouped(map(Fault.from_dict, result["faults"])):
        smallest = group[0]
        properties = len({fault.test for fault in group})
        lines.append(
            f"  {smallest.kind} in {smallest.output or 'the process'}: {len(group)} in {properties} properties, "
            f"{sum(fault.count for fault in group)} cases; the smallest:"
        )
        text = (f"{smallest.test}[{smallest.variant}]", smallest.first_line, smallest.recipe, smallest.replay)
        lines += [f"    {line}" for line in text if line]
    # The faults are told; what else there is comes before or after them.
    names = {fault_line(fault) for fault in map(Fault.from_dict, result["faults"])}
    lines += [f"  {reason}" for reason in result["reasons"] if reason not in names]
    return lines + [f"  note: {note}" for note in result["notes"]]


def _take(seen: Seen, line: bytes) -> None:
    try:
        case = json.loads(line)
    except ValueError:
        return
    seen.cases += 1
    seen.doing = str(case["p"]).rpartition("::")[2].removeprefix("test_") + f"[{case['v']}]"
    for output, ratio in case["r"].items():
        if isinstance(ratio, (int, float)) and seen.worst < ratio <= 1.0:
            seen.worst, seen.output = float(ratio), output
