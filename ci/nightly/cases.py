"""One line for each judged case: what it costs is paid by every case, so the text is put together by hand."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from zlib import crc32

if TYPE_CHECKING:
    from properties.verdict import Worst


# Lines reach the file after so many seconds at the latest; somebody is watching.
FLUSH_SECONDS = 1.0
# Ratios below 4^-6 are all the same: exact, or nearly so.
LEAST_BUCKET = -6


def number(value: float) -> str:
    """Write a number with four digits; JSON has no infinities and no NaN, so they are words."""
    return f"{value:.4g}" if math.isfinite(value) else f'"{value}"'


def case_line(head: str, at: float, ratio: Mapping[str, float], worst: Mapping[str, Worst], collisions: int) -> str:
    """Return the line of one case.

    Args:
        head: the fields that all cases of a turn share, as `head_of` writes them.
        at: seconds since the start of the run.
        ratio: largest error over bound, by output.
        worst: of the elements with these ratios, by output.
        collisions: largest number of samples that met in one pixel.
    """
    parts = [f'{head}"t":{at:.1f},"r":{{{_object(ratio)}}}']
    if worst:
        # What has no bound has no ratio to tell its error by.
        error = {name: ratio[name] * one.bound for name, one in worst.items() if math.isfinite(ratio[name])}
        parts.append(f'"e":{{{_object(error)}}}')
        parts.append(f'"m":{{{_object({name: abs(one.expected) for name, one in worst.items()})}}}')
        parts.append(f'"b":{{{_object({name: one.bound for name, one in worst.items()})}}}')
        # Mostly it is the bound.
        less = {name: one.likely for name, one in worst.items() if one.likely < one.bound}
        parts += [f'"q":{{{_object(less)}}}'] if less else []
    return ",".join(parts) + f',"c":{collisions}}}\n'


def _object(values: Mapping[str, float]) -> str:
    return ",".join(f'"{name}":{number(value)}' for name, value in values.items())


def head_of(test: str, variant: str, worker: str) -> str:
    """Return the beginning of every line of a turn."""
    fields = json.dumps({"p": test, "v": variant, "w": worker}, separators=(",", ":"))
    return fields.removesuffix("}") + ","


class CaseFile:
    """Lines of one worker."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a")
        self._flushed = time.monotonic()

    def write(self, line: str) -> None:
        """Write a line, sooner or later."""
        self._file.write(line)
        now = time.monotonic()
        if now - self._flushed > FLUSH_SECONDS:
            self.flush()
            self._flushed = now

    def close(self) -> None:
        """Write all lines; there are no others."""
        self._file.close()

    def flush(self) -> None:
        """Write all lines."""
        self._file.flush()


class Combinations:
    """Which combinations of input class, output, ratio and collisions a worker has seen of each test, as numbers."""

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}
        self._fresh: list[int] = []
        self._mine: set[int] = set()

    def begin(self, nodeid: str) -> None:
        """Turn to a test."""
        self._mine = self._seen.setdefault(nodeid, set())
        self._fresh = []

    def note(self, classes: Sequence[str], ratio: Mapping[str, float], collisions: int) -> None:
        """Take note of a case."""
        output, worst = max(ratio.items(), key=lambda pair: pair[1], default=("", 0.0))
        start = crc32(f"{output} {bucket(worst)} {collisions.bit_length() // 2} ".encode())
        for name in classes:
            code = crc32(name.encode(), start)
            if code not in self._mine:
                self._mine.add(code)
                self._fresh.append(code)

    def end(self) -> tuple[int, ...]:
        """Return what was new since `begin`."""
        return tuple(self._fresh)


def bucket(ratio: float) -> int:
    """Return a ratio's order of magnitude: floor of its logarithm to base 4, 1 for all that is beyond the bound."""
    if not ratio <= 1.0:
        return 1
    return max(LEAST_BUCKET, (math.frexp(ratio)[1] - 1) // 2) if ratio > 0.0 else LEAST_BUCKET - 1
