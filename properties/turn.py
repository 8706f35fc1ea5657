"""A turn: one run of a property that is run again and again, with other draws each time and no interest in old faults.

Whoever runs properties so answers the hook `pytest_msda_turn`; an ordinary run has no turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis.database import ExampleDatabase

from .kinds import kind_of, kind_of_evidence
from .profiles import PHASES

if TYPE_CHECKING:
    from hypothesis import Phase

    from .verdict import Evidence, Worst

# A headline without the name of an output may have a colon further on.
LONGEST_OUTPUT = 40

Fault = tuple[str, str]
"""What a failure is known by within one property and variant: the output and the class."""


def faults_of(error: BaseException) -> list[Fault]:
    """Return what is wrong in a failing case, the first output first.

    Args:
        error: what a property raised.
    """
    evidence = getattr(error, "evidence", ())
    if evidence:
        declared = getattr(error, "kind", None)
        return list(dict.fromkeys((one.output, declared or kind_of_evidence(one)) for one in evidence))
    headline = (str(error).splitlines() or [""])[0]
    output, colon, _ = headline.partition(":")
    told = isinstance(error, AssertionError) and colon and len(output) <= LONGEST_OUTPUT
    return [(output if told else type(error).__name__, kind_of(error))]


class TimeIsUp(KeyboardInterrupt):
    """Ends a drawing loop between two cases.

    Of all that a test can raise, Hypothesis takes a keyboard interrupt alone for no result of the case: it neither
    counts it as a failure nor keeps it.
    """


@dataclass(kw_only=True, eq=False)
class Turn:
    """How to draw, and what came of it.

    Attributes:
        seed: instead of the session's.
        examples: cases to draw at most.
        until: nothing further is drawn from then on, by the monotonic clock.
        deadline: from then on not even a fault is made smaller.
        phases: of Hypothesis.
        database: of this property and variant, None for none.
        known: faults that are counted when they show again, and neither raised nor made smaller.
        shrink_seconds: for Hypothesis to shrink a fault that is not known.
        minimise_seconds: for its numbers, after that.
        effort: returns both of these for the first fault that is not known.
        on_judged: told ratios, worst elements and collisions of each comparison.
        on_case: told the input classes of each case, and ratios and collisions of its last comparison.
        seen: how often each known fault showed.
        met: faults that were raised in this turn, on the way to the smallest case.
        raised: what is wrong in the smallest case.
        cut: whether the time was up before all cases were drawn.
        whole: whether the fault that was raised is as small as Hypothesis could make it.
        spared: whether the last case passed for its faults being known.
    """

    seed: int
    examples: int
    until: float
    deadline: float
    phases: tuple[Phase, ...] = PHASES
    database: ExampleDatabase | None = None
    known: frozenset[Fault] = frozenset()
    shrink_seconds: float = 60.0
    minimise_seconds: float = 20.0
    effort: Callable[[Fault], tuple[float, float]] | None = None
    on_judged: Callable[[Mapping[str, float], Mapping[str, Worst], int], None] | None = None
    on_case: Callable[[Sequence[str], Mapping[str, float], int], None] | None = None
    seen: Counter[Fault] = field(default_factory=Counter)
    met: set[Fault] = field(default_factory=set)
    raised: list[Fault] = field(default_factory=list)
    cut: bool = False
    whole: bool = True
    spared: bool = False
    _shrunk_by: float | None = None
    _output: str | None = None

    def passes(self, faults: Sequence[Fault]) -> bool:
        """Whether a failing case is to pass, because nothing about it is new.

        Args:
            faults: all that is wrong in it.
        """
        for fault in faults:
            if fault in self.known:
                self.seen[fault] += 1
        self.spared = all(fault in self.known for fault in faults)
        if self.spared:
            return True
        # A smaller case with another fault is another find, for another turn.
        fresh = [fault for fault in faults if fault not in self.known]
        if self._output is None:
            self._output = fresh[0][0]
            if self.effort is not None:
                self.shrink_seconds, self.minimise_seconds = self.effort(fresh[0])
        outputs = {output for output, _ in fresh}
        if self._output not in outputs:
            return True
        self.met.update(fault for fault in fresh if fault[0] == self._output)
        return False

    def knows(self, evidence: Evidence) -> bool:
        """Whether what is wrong with one output is a known fault."""
        return (evidence.output, kind_of_evidence(evidence)) in self.known

    def check_time(self, now: float, *, failing: bool) -> None:
        """End the loop when its time is up.

        Args:
            now: by the monotonic clock.
            failing: whether a fault is being shrunk.

        Raises:
            TimeIsUp: it is.
        """
        self.spared = False
        if failing and self._shrunk_by is None:
            self._shrunk_by = min(now + self.shrink_seconds, self.deadline)
        if now < (self.until if self._shrunk_by is None else self._shrunk_by):
            return
        self.whole = not failing
        self.cut = True
        raise TimeIsUp


@pytest.hookspec(firstresult=True)
def pytest_msda_turn(item: pytest.Item) -> Turn | None:
    """Return how this run of a property is to draw, None for what the options of the session say."""
