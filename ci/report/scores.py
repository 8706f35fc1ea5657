"""The mutants' score, and the figures of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import text
from .load import Run, listed, mapping, number, objects, whole
from .tables import rank

STANDINGS = ("killed", "survived", "equivalent", "stillborn", "not run")


@dataclass(frozen=True, kw_only=True)
class Group:
    """The mutants of one family.

    Attributes:
        name: of the family.
        counts: mutants by standing.
    """

    name: str
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Of all mutants."""
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True)
class Score:
    """The mutants' score.

    Attributes:
        sentence: the score.
        groups: by family.
        survivors: name, family, and edit or number of cases, of each that nobody proved equivalent.
        alarms: controls that alarmed, with what they were accused of.
        controls: how many were run.
        where: device, seeds and versions of the measurement.
    """

    sentence: str
    groups: tuple[Group, ...]
    survivors: tuple[tuple[str, str, str], ...]
    alarms: tuple[tuple[str, str], ...]
    controls: int
    where: str


def score(run: Run) -> Score | None:
    """Read the result of a run of the mutants, None without one."""
    if run.mutants is None:
        return None
    mutants, controls = objects(run.mutants, "mutants"), objects(run.mutants, "controls")
    groups: dict[str, dict[str, int]] = {}
    for row in mutants:
        counts = groups.setdefault(str(row.get("family", "")), dict.fromkeys(STANDINGS, 0))
        standing = str(row.get("standing", ""))
        counts[standing] = counts.get(standing, 0) + 1
    totals = {name: sum(counts.get(name, 0) for counts in groups.values()) for name in STANDINGS}
    killable = totals["killed"] + totals["survived"]
    rest = [f"{count} {name}" for name, count in totals.items() if name not in STANDINGS[:2] and count]
    sentence = (
        f"{totals['killed']} of {killable} mutants killed ({text.percent(totals['killed'], of=killable)})"
        if killable
        else "No mutant was run"
    )
    ran = [row for row in controls if row.get("standing") != "not run"]
    return Score(
        sentence=sentence + "".join(f", {part}" for part in rest) + _median(run.mutants),
        groups=tuple(Group(name=name, counts=counts) for name, counts in groups.items()),
        survivors=tuple(_survivor(row) for row in mutants if row.get("standing") == "survived"),
        alarms=tuple(
            (str(row.get("name", "")), ", ".join(map(str, listed(row, "properties"))) or str(row.get("standing")))
            for row in ran
            if row.get("standing") in ("killed", "stillborn")
        ),
        controls=len(ran),
        where=_where(mapping(run.mutants, "header")),
    )


def _median(mutants: Mapping[str, Any]) -> str:
    median = number(mapping(mutants, "score").get("median_examples"))
    return "" if median is None else f"; median {text.plural(int(median), 'case')} to the kill"


def _survivor(row: Mapping[str, Any]) -> tuple[str, str, str]:
    cases = sum(whole(attempt.get("examples")) for attempt in objects(row, "attempts"))
    edit = text.one_line(row.get("edit") or "")
    return str(row.get("name", "")), str(row.get("family", "")), edit or f"not seen in {text.plural(cases, 'case')}"


def _where(header: Mapping[str, Any]) -> str:
    versions = [f"{name} {version}" for name, version in mapping(header, "versions").items()]
    parts = [str(header.get("device_name") or header.get("device") or ""), *versions]
    seeds = listed(header, "seeds")
    parts += [f"seeds {', '.join(map(str, seeds))}"] if seeds else []
    return text.one_line(", ".join(filter(None, parts)))


@dataclass(frozen=True, kw_only=True)
class Night:
    """One run of the trend.

    Attributes:
        started: to the minute.
        commit: abbreviated, "" when it is not known.
        cases: judged.
        rate: cases a second.
        worst: largest error over bound, None where nothing was measured.
        faults: faults and crashes.
        verdict: of the run.
    """

    started: str
    commit: str
    cases: int
    rate: float
    worst: float | None
    faults: int
    verdict: str


def trend(run: Run) -> list[Night]:
    """The earlier runs and this one, oldest first; nothing without earlier ones."""
    if not run.earlier:
        return []
    return [_night(one) for one in sorted((*run.earlier, run.nightly), key=lambda one: str(one.get("started", "")))]


def _night(nightly: Mapping[str, Any]) -> Night:
    totals = mapping(nightly, "totals")
    worst = listed(totals, "worst")
    ratios = [number(value) for item in objects(nightly, "items") for value in mapping(item, "ratio").values()]
    known = [value for value in (number(worst[2]) if len(worst) == 3 else None, *ratios) if value is not None]
    return Night(
        started=text.moment(nightly.get("started")),
        commit=str(nightly.get("commit") or "")[:9],
        cases=whole(totals.get("cases")),
        rate=number(totals.get("rate")) or 0.0,
        worst=max(known, key=rank, default=None),
        faults=len(objects(nightly, "faults")) + len(objects(nightly, "crashes")),
        verdict=text.one_line(nightly.get("verdict") or text.NONE),
    )
