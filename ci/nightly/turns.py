"""What the scheduler tells a worker about a turn, and what it hears of it: plain files and plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from properties.report import ItemStats

Stage = Literal["corpus", "replay", "fuzz"]
# Name under which a turn's record travels in the user properties of a report.
HEARD = "msda nightly"
CORPUS = "test_corpus.py::"
PAIRS = ("seen", "raised", "met", "compiles")


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One turn.

    Attributes:
        index: of the test among those that every worker has collected.
        nodeid: of the test.
        stage: what the turn is for.
        number: counts the turns of this test; its draws follow from it.
        seconds: that it should take.
        examples: cases to draw at most.
    """

    index: int
    nodeid: str
    stage: Stage
    number: int
    seconds: float
    examples: int

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One turn that is over.

    Attributes:
        nodeid: of the test.
        stage: what it was for.
        at: seconds since the start of the run when it was over.
        seconds: that it took.
        outcome: "passed", "failed", "skipped", "crashed" or "error" when the harness itself failed.
        reason: why it was skipped, or first line of the error.
        stats: as `ItemStats.as_dict`, empty when the test has no harness.
        new: combinations that its process had not seen of this test, as numbers.
        seen: known faults that showed again: output, class, times.
        raised: what is wrong in the smallest case: output and class of each.
        met: output and class of what failed on the way to it.
        story: as the terminal shows a failure.
        cut: whether its time was up before all cases were drawn.
        whole: whether its fault is as small as Hypothesis could make it.
        compiles: kernel and seconds of each compile.
    """

    nodeid: str
    stage: str
    at: float
    seconds: float
    outcome: str
    reason: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)
    new: tuple[int, ...] = ()
    seen: tuple[tuple[str, str, int], ...] = ()
    raised: tuple[tuple[str, str], ...] = ()
    met: tuple[tuple[str, str], ...] = ()
    story: tuple[str, ...] = ()
    cut: bool = False
    whole: bool = True
    compiles: tuple[tuple[str, float], ...] = ()

    @property
    def item(self) -> ItemStats | None:
        """What the harness counted, None without one."""
        return ItemStats.from_dict(self.stats) if self.stats else None

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read one line.

        Raises:
            ValueError: it is damaged, as the last line of a process that was killed may be.
        """
        try:
            plain = json.loads(line)
            pairs = {name: tuple(tuple(one) for one in plain.get(name, ())) for name in PAIRS}
            rest = {name: tuple(plain.get(name, ())) for name in ("new", "story")}
            return cls(**(plain | pairs | rest))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"record: {line[:80]!r} given, expected the fields of a turn ({error})") from None


def records(path: Path) -> Iterator[Record]:
    """Yield the records of a file, those that are whole."""
    if not path.exists():
        return
    with path.open() as lines:
        for line in lines:
            try:
                yield Record.from_json(line)
            except ValueError:
                continue


def split(nodeid: str) -> tuple[str, str]:
    """Return the test and the variant of a node id."""
    test, bracket, variant = nodeid.partition("[")
    return test, variant[:-1] if bracket else ""
