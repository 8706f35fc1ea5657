"""How well repeated runs agree, and where an accumulator says nothing any more: the figures, and the table of them.

Knows nothing of pytest and torch: records travel between processes as plain dictionaries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class Agreement:
    """Repeated runs of one dtype and accumulator.

    Attributes:
        cases: inputs that were run repeatedly.
        runs: runs of all of them.
        unequal_runs: runs whose grad_value was not that of the first run of their case, bit for bit.
        elements: elements of grad_value that were compared.
        unequal: elements that were not the same in every run.
        spread: largest difference between two runs of one element, of those that are finite.
        ratio: largest difference over the largest admissible one.
        collisions: largest number of samples that met in one pixel.
    """

    cases: int = 0
    runs: int = 0
    unequal_runs: int = 0
    elements: int = 0
    unequal: int = 0
    spread: float = 0.0
    ratio: float = 0.0
    collisions: int = 0

    def add(self, other: Agreement) -> None:
        """Take up the figures of further cases: counts add up, the rest keeps the largest."""
        for name in ("cases", "runs", "unequal_runs", "elements", "unequal"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("spread", "ratio", "collisions"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


@dataclass(kw_only=True)
class Lossy:
    """Cases in which so many contributions met in one element that the bound is as large as the result.

    Attributes:
        cases: how many.
        collisions: largest number of samples that met in one pixel.
    """

    cases: int = 0
    collisions: int = 0

    def add(self, other: Lossy) -> None:
        """Take up further cases."""
        self.cases += other.cases
        self.collisions = max(self.collisions, other.collisions)


Record = dict[str, dict[str, Any]]


def note(record: Record, name: str, figures: Agreement | Lossy) -> None:
    """Add figures to the entry of that name, in the plain form in which a record travels."""
    total = type(figures)(**record.get(name, {}))
    total.add(figures)  # type: ignore[arg-type]
    record[name] = dataclasses.asdict(total)


def merge(records: Iterable[Mapping[str, Mapping[str, Any]]], kind: type[Agreement] | type[Lossy]) -> Record:
    """Add up the records of several items."""
    total: Record = {}
    for record in records:
        for name, figures in record.items():
            note(total, name, kind(**figures))
    return dict(sorted(total.items()))


COLUMNS = ("  grad_value over repeated runs", "cases", "runs", "unequal", "elements", "unequal", "spread", "ratio", "n")


def table(agreement: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lay out merged agreements, one line each; nothing when there is none."""
    if not agreement:
        return []
    rows: list[tuple[str, ...]] = [COLUMNS]
    for name, figures in agreement.items():
        one = Agreement(**figures)
        counts = (one.cases, one.runs, one.unequal_runs, one.elements, one.unequal)
        rows.append((f"  {name}", *map(str, counts), f"{one.spread:.3g}", f"{one.ratio:.3f}", str(one.collisions)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def lossy_lines(lossy: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Name what was accumulated beyond any meaning."""
    return [
        f"lossy       {name}, n = {figures['collisions']}: the bound exceeds the result ({figures['cases']} cases)"
        for name, figures in lossy.items()
    ]
