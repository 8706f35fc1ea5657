"""What a person sees: progress, a table for each architecture, the problems and a last line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .rows import Row

WIDTH = 150
LINE_SECONDS = 10.0
NONE = "-"
COLUMNS = {
    "registers": "registers",
    "spills": "spills",
    "instructions": "instructions",
    "loads_16_byte": "16-byte loads",
    "vector_reductions": "vector reductions",
    "cas_loops": "cas",
    "fences": "fences",
    "seconds": "seconds",
}


def console() -> Console:
    """Return where all of it goes; without a terminal, wide enough for the tables."""
    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=WIDTH)


class Watch:
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, to: Console, total: int) -> None:
        self._console = to
        self._total = total
        self._finished = 0
        self._started = self._told = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
            self._bar.add_task("compiling", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def finished(self, rows: Sequence[Row]) -> None:
        """Take note of rows, and tell at once what is wrong with them."""
        self._finished += len(rows)
        for row in rows:
            for problem in row.problems:
                self._console.print(f"codegen problem: {row.title}: {problem}", style="red", soft_wrap=True)
        now = time.monotonic()
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], len(rows))
        elif now - self._told >= LINE_SECONDS:
            self._told = now
            self._console.print(f"codegen {self._finished} of {self._total} compiled, {now - self._started:.0f} s")


def tables(to: Console, rows: Sequence[Row]) -> None:
    """Print one table for each architecture."""
    for arch in dict.fromkeys(row.arch for row in rows):
        table = Table(title=f"{arch}", title_justify="left")
        table.add_column("kernel", no_wrap=True)
        table.add_column("dtype", no_wrap=True)
        for title in COLUMNS.values():
            table.add_column(title, justify="right")
        for row in rows:
            if row.arch == arch:
                cells = (_cell(row, name) for name in COLUMNS)
                style = "red" if row.problems else ""
                table.add_row(*map(Text, (row.kernel, row.dtype, *cells)), style=style)
        to.print(table)


def _cell(row: Row, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return NONE
    if name == "seconds":
        return f"{value:.2f}"
    if name == "registers" and row.scalar_registers:
        return f"{value} + {row.scalar_registers} scalar"
    return str(value)


def closing(rows: Sequence[Row], *, seconds: float) -> str:
    """Say in a line how it ended."""
    wrong = sum(bool(row.problems) for row in rows)
    found = sum(len(row.problems) for row in rows)
    architectures = ", ".join(dict.fromkeys(row.arch for row in rows))
    verdict = f"{found} problems in {wrong} of them" if found else "all as expected"
    return f"codegen: {len(rows)} kernels for {architectures} in {seconds:.0f} s: {verdict}"
