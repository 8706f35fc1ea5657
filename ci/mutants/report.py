"""What the reader sees: progress, one line for each mutant, the table, the score; and the JSON file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .mutant import Control, Mutant
from .results import Row, Score

FORMAT = 1
STYLES = {"killed": "green", "survived": "bold red", "equivalent": "cyan", "stillborn": "yellow", "not run": "yellow"}
WIDTH = 150


def console() -> Console:
    """Return where the report goes; without a terminal, wide enough for the table."""
    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=WIDTH)


class Watch:
    """Progress of a run: a bar on a terminal, a line for each finished mutant elsewhere.

    Attributes:
        console: where it goes.
        total: rows to come.
        title: what they are.
    """

    def __init__(self, to: Console, total: int, title: str) -> None:
        self.console = to
        self.total = total
        self.title = title
        self._finished = 0
        self._fresh = 0
        self._started = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Watch:
        if self.console.is_terminal and self.total:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
            self._bar.add_task(self.title, total=self.total)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def finished(self, row: Row) -> None:
        """Take note of one row."""
        self._finished += 1
        self._fresh += not (row.cached or row.not_run)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
            if row.standing not in ("killed",) and row.family != "control":
                self.console.print(line(row), style=STYLES[row.standing])
            return
        digits = len(str(self.total))
        self.console.print(
            f"[{self._finished:{digits}}/{self.total}] {line(row)}{self._left()}",
            style=STYLES[row.standing],
            soft_wrap=True,
        )

    def _left(self) -> str:
        if not self._fresh or self._finished == self.total:
            return ""
        seconds = (time.monotonic() - self._started) / self._fresh * (self.total - self._finished)
        return f"; about {_time(seconds)} left"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def line(row: Row) -> str:
    """Tell what became of one row in a line."""
    if row.family == "control":
        judged = sum(attempt.examples for attempt in row.attempts)
        if row.not_run:
            return f"not run     {row.name}: {row.not_run}"
        if row.standing == "killed":
            kill = row.kills[0]
            return (
                f"FALSE ALARM {row.name}: {kill.property}[{kill.variant}] after {kill.examples} cases: {kill.headline}"
            )
        if row.standing == "stillborn":
            return f"broken      {row.name}: {row.attempts[0].headline}"
        return f"no alarm    {row.name}: {judged} cases"
    text = f"{row.standing:<11} {row.name}"
    if row.not_run:
        return f"{text}: {row.not_run}"
    if row.standing == "killed":
        examples = f"{row.examples:g} example{'s' if row.examples != 1 else ''}"
        return f"{text}: {', '.join(row.kinds)} by {', '.join(row.properties)}, {examples}"
    if row.standing == "stillborn":
        return f"{text}: {row.attempts[0].headline}"
    return f"{text}: {sum(attempt.examples for attempt in row.attempts)} cases"


def table(rows: Sequence[Row]) -> Table:
    """Lay out mutants, one row each."""
    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    made.add_column("mutant", max_width=46)
    made.add_column("")
    made.add_column("killed by", max_width=44)
    made.add_column("of", max_width=14)
    made.add_column("class", max_width=16)
    made.add_column("examples", justify="right")
    made.add_column("seeds", justify="right")
    made.add_column("smallest case")
    family = ""
    for row in rows:
        if row.family != family:
            family = row.family
            made.add_row(f"{family}:", style="bold")
        examples = "" if row.examples is None else f"{row.examples:g}"
        seeds = f"{len(row.kills)}/{len(row.attempts)}" if row.attempts else ""
        made.add_row(
            f"  {row.name}",
            row.standing,
            ", ".join(name.removeprefix("test_") for name in row.properties),
            ", ".join(name.removeprefix("grad_") for name in row.outputs),
            ", ".join(row.kinds),
            examples,
            seeds,
            "" if row.size is None else str(row.size),
            style=None if row.standing == "killed" else STYLES[row.standing],
        )
    return made


def tell(to: Console, rows: Sequence[Row]) -> None:
    """Print the table of some mutants, their score, and everything that was not killed with the reason."""
    to.print(table(rows))
    to.print()
    score = Score.of(rows)
    for row in rows:
        if row.standing == "killed":
            continue
        stillborn = row.attempts[0].headline if row.standing == "stillborn" else ""
        reason = row.not_run or row.equivalent or row.explanation or stillborn
        cases = sum(attempt.examples for attempt in row.attempts)
        what = f"{row.standing}: {row.name}" + (f" ({cases} cases)" if cases else "")
        to.print("\n    ".join(filter(None, [what, reason, *row.edit.splitlines()])), style=STYLES[row.standing])
    for name in score.contradicted:
        to.print(f"killed in spite of its proof: {name}; the proof is wrong, or a property is", style="bold red")
    to.print(summary(score), style="bold")


def summary(score: Score) -> str:
    """Tell a score in two lines."""
    rest = [f"{score.counts[name]} {name}" for name in ("equivalent", "stillborn", "not run") if score.counts[name]]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(score.by_kind.items(), key=lambda pair: -pair[1]))
    median = "" if score.median_examples is None else f"; median {score.median_examples:g} examples to the kill"
    return (
        f"killed {score.counts['killed']} of {score.killable} ({100 * score.rate:.1f} %)"
        f"{''.join(f', {part}' for part in rest)}{median}; {score.seconds:.0f} s of CPU\n  {kinds}"
    )


def as_json(header: Mapping[str, Any], mutants: Sequence[Row], controls: Sequence[Row], *, status: int) -> str:
    """Return the machine-readable result.

    Args:
        header: device, versions, seeds and what was asked for.
        mutants: rows of mutants.
        controls: rows of controls.
        status: exit status.
    """
    score = Score.of(mutants)
    content = {
        "format": FORMAT,
        "header": dict(header),
        "status": status,
        "score": {
            **{name.replace(" ", "_"): count for name, count in score.counts.items()},
            "rate": score.rate,
            "by_kind": dict(score.by_kind),
            "median_examples": score.median_examples,
            "seconds": score.seconds,
            "contradicted": list(score.contradicted),
        },
        "mutants": [row.as_dict() for row in mutants],
        "controls": [row.as_dict() for row in controls],
    }
    return json.dumps(content, indent=1)


def write_json(path: Path, text: str) -> None:
    """Write the result to a file.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def listing(mutants: Sequence[Mutant], controls: Sequence[Control]) -> str:
    """Name everything, by family."""
    lines: list[str] = []
    family = ""
    for mutant in mutants:
        if mutant.family != family:
            family = mutant.family
            lines.append(f"{family}:")
        mark = "  (equivalent)" if mutant.equivalent else "  (needs a GPU)" if mutant.needs_gpu else ""
        lines.append(f"  {mutant.name}{mark}")
    lines.append("controls:")
    lines += [f"  {control.name}{'  (needs a GPU)' if control.needs_gpu else ''}" for control in controls]
    return "\n".join([*lines, f"{len(mutants)} mutants, {len(controls)} controls"])
