"""What was found, each fault once: property, dtype cell, output and class are its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .turns import CORPUS, Record, split

Key = tuple[str, str, str, str]
# A failure of which nothing but its text is known.
UNKNOWN = "logic fault"


@dataclass(kw_only=True)
class Fault:
    """One fault.

    Attributes:
        test: node id without the variant.
        variant: dtype cell, mostly; for a case of the corpus the cell of that case.
        output: that was wrong.
        kind: class of the failure.
        nodeid: of the test that found it.
        count: cases that showed it, without those run to make it smaller.
        first_line: of the story.
        story: as the terminal shows it.
        recipe: the smallest case in words.
        case: its file, "" without one.
        replay: command line that runs it again.
        seconds: from the start of the run until it was seen first.
        cases: of this property and variant before it.
        shards: that have found it, None for a run that is no shard.
        whole: whether nothing smaller is to be expected.
    """

    test: str
    variant: str
    output: str
    kind: str
    nodeid: str = ""
    count: int = 1
    first_line: str = ""
    story: tuple[str, ...] = ()
    recipe: str = ""
    case: str = ""
    replay: str = ""
    seconds: float = 0.0
    cases: int = 0
    shards: list[int] | None = None
    whole: bool = True

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.test, self.variant, self.output, self.kind

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, as `nightly.json` has them."""
        plain = {name: getattr(self, name) for name in FIELDS}
        return {"property": self.test, "class": self.kind} | plain | {"story": list(self.story)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Fault:
        """Read what `as_dict` wrote."""
        known = {name: plain[name] for name in FIELDS if name in plain}
        named = {"test": str(plain["property"]), "kind": str(plain["class"]), "story": tuple(plain.get("story", ()))}
        return cls(**known | named)


FIELDS = (
    "variant",
    "nodeid",
    "output",
    "count",
    "first_line",
    "story",
    "recipe",
    "case",
    "replay",
    "seconds",
    "cases",
    "shards",
    "whole",
)


@dataclass(kw_only=True)
class Faults:
    """All faults of a run.

    Attributes:
        found: by key, in the order in which they were found.
    """

    found: dict[Key, Fault] = field(default_factory=dict)
    # By node id: how a fault may look before it is made smaller, and which fault that is.
    _names: dict[str, dict[tuple[str, str], Key]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.found.values())

    def __len__(self) -> int:
        return len(self.found)

    def hear(self, record: Record, *, cases: int = 0) -> Fault | None:
        """Take note of a turn; return its fault when that is a new one.

        Args:
            record: of the turn.
            cases: of its property and variant in earlier turns.
        """
        names = self._names.setdefault(record.nodeid, {})
        for output, kind, times in record.seen:
            key = names.get((output, kind))
            if key is not None:
                self.found[key].count += times
        if record.outcome not in ("failed", "crashed"):
            return None
        fault = _fault(record, cases)
        known = self.found.get(fault.key)
        if known is None:
            self.found[fault.key] = known = fault
        else:
            known.count += 1
            if not known.whole and fault.whole and fault.case:
                known.case, known.recipe, known.replay = fault.case, fault.recipe, fault.replay
                known.story, known.first_line, known.whole = fault.story, fault.first_line, True
        # The gradients of a wrong kernel are wrong together: what the smallest case shows beside its first output is
        # the same fault.
        for name in (*record.raised, *record.met, (fault.output, fault.kind)):
            names.setdefault((name[0], name[1]), fault.key)
        return known if known is fault else None

    def known(self) -> dict[str, list[tuple[str, str]]]:
        """Return output and class of what is known, by node id."""
        return {nodeid: sorted(names) for nodeid, names in self._names.items() if names}

    def shapes(self) -> list[tuple[str, str]]:
        """Return output and class of all faults, whatever the property: their kind has been made small once."""
        return sorted({(fault.output, fault.kind) for fault in self})


def _fault(record: Record, cases: int) -> Fault:
    failure = dict(record.stats.get("failure", {})) if record.stats else {}
    test, variant = split(record.nodeid)
    if CORPUS in record.nodeid:
        # A hundred files are one property here.
        variant = cell_of(record) or variant
    crashed = record.outcome == "crashed"
    output, kind = record.raised[0] if record.raised else ("", str(failure.get("class", UNKNOWN)))
    replay = next((line.split(None, 1)[1] for line in record.story if line.startswith("  replay ")), "")
    return Fault(
        nodeid=record.nodeid,
        test=test,
        variant=variant,
        output="" if crashed else output,
        kind="crash" if crashed else kind,
        first_line=str(failure.get("failure") or next(iter(record.story), record.reason)),
        story=record.story,
        recipe=str(failure.get("recipe", "")),
        case=relative(failure.get("case")),
        replay=replay,
        seconds=round(record.at, 1),
        cases=cases + int(record.stats.get("cases", 0) if record.stats else 0),
        whole=record.whole,
    )


def cell_of(record: Record) -> str | None:
    """Return the dtype cell that all cases of a turn had, None when they had several or none."""
    labels = record.stats.get("classes", {}) if record.stats else {}
    cells = [label.removeprefix("cell: ") for label in labels if label.startswith("cell: ")]
    return cells[0] if len(cells) == 1 else None


def grouped(faults: Iterable[Fault]) -> list[list[Fault]]:
    """Put together what may well be one fault of the subject: the same output and class in any property and dtype.

    The fault with the shortest case comes first in its group, the group with the most faults first of all.
    """
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.output, fault.kind), []).append(fault)
    ordered = [sorted(group, key=lambda one: (len(one.recipe) or 10**6, one.key)) for group in groups.values()]
    return sorted(ordered, key=lambda group: -len(group))


def fault_line(fault: Fault) -> str:
    """Name a fault in a line."""
    where = f"{fault.test}[{fault.variant}]" if fault.variant else fault.test
    return f"{fault.kind} in {fault.output or 'the process'}: {where}"


def relative(case: Any) -> str:
    """Return a case file as the report names it."""
    return f"failures/{Path(case).name}" if case else ""


def merged(parts: Sequence[tuple[int | None, Sequence[Fault]]]) -> Faults:
    """Make one of what several shards have found.

    Args:
        parts: number of each shard, None for a run that is none, and its faults.
    """
    total = Faults()
    for shard, faults in parts:
        for fault in faults:
            shards = fault.shards or ([] if shard is None else [shard])
            known = total.found.get(fault.key)
            if known is None:
                known = total.found[fault.key] = fault
                fault.shards = []
            else:
                known.count += fault.count
                known.seconds = min(known.seconds, fault.seconds)
                known.cases = min(known.cases, fault.cases)
            known.shards = sorted({*(known.shards or ()), *shards})
    return total
