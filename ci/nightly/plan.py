"""What is run next: the corpus and the example database once, then what the bandit says. Knows nothing of pytest."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .bandit import Arm, Bandit
from .faults import Fault, Faults
from .turns import CORPUS, Assignment, Record, Stage, split

# What a first turn may draw; how dear a case is, it is there to tell.
FIRST_EXAMPLES = 100
LEAST_EXAMPLES, MOST_EXAMPLES = 5, 5000
# All first turns together take this part of the time that is left when fuzzing begins.
FIRST_PART = 0.25
FIRST_SECONDS, LEAST_SECONDS, MOST_SECONDS = 1.0, 2.0, 20.0
# A turn is a share of the budget, so that the log of a whole night stays small.
TURNS_IN_A_ROW = 150
# The first case of a turn is the smallest one there is, the same each time.
LEAST_CASES = 3
REPLAY_SECONDS = 20.0
REPLAY_EXAMPLES = 100
# A worker that ends takes so many seconds to be replaced.
RESTART_SECONDS = 10.0


def dealt(nodeids: Iterable[str], shard: tuple[int, int] | None) -> list[str]:
    """Return the tests of one shard, in the order given: no test is in two, and the shards are of equal size.

    Args:
        nodeids: of all tests.
        shard: its number, from 1 on, and how many there are; None for all of them.
    """
    listed = list(nodeids)
    if shard is None:
        return listed
    number, count = shard
    # By hash: neighbours are the dtype cells of one property, and every second one may be the same dtype each time.
    ordered = sorted(listed, key=lambda nodeid: hashlib.sha256(nodeid.encode()).hexdigest())
    mine = set(ordered[number - 1 :: count])
    return [nodeid for nodeid in listed if nodeid in mine]


def interleaved(nodeids: Sequence[str]) -> list[str]:
    """Order tests so that every property comes once, with another variant each, before one comes twice."""
    groups: dict[str, list[str]] = {}
    for nodeid in nodeids:
        groups.setdefault(split(nodeid)[0], []).append(nodeid)
    rotated = [
        deque(group[number % len(group) :] + group[: number % len(group)])
        for number, group in enumerate(groups.values())
    ]
    ordered = []
    while any(rotated):
        ordered += [group.popleft() for group in rotated if group]
    return ordered


@dataclass(kw_only=True)
class Plan:
    """Decides on turns.

    Attributes:
        nodeids: of all tests, as the workers have collected them.
        shard: number and count of shards, None for one that runs everything.
        budget: seconds of the whole run.
        workers: how many take turns.
        left: returns the seconds that are left for drawing.
        faults: found so far.
        bandit: shares out the time.
        skipped: reason by node id.
        turns: that are over, by node id.
    """

    nodeids: Sequence[str]
    shard: tuple[int, int] | None
    budget: float
    workers: int
    left: Callable[[], float]
    faults: Faults = field(default_factory=Faults)
    skipped: dict[str, str] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._index = {nodeid: index for index, nodeid in enumerate(self.nodeids)}
        mine = dealt(self.nodeids, self.shard)
        self._corpus = deque(nodeid for nodeid in mine if CORPUS in nodeid)
        self._replays: deque[str] = deque()
        self._begun: Counter[str] = Counter()
        self._open: list[Assignment] = []
        self._first: float | None = None
        self._cases: Counter[str] = Counter()
        self._combinations: dict[str, set[int]] = {}
        self._peaks: dict[str, dict[str, float]] = {}
        self.bandit = Bandit(interleaved([nodeid for nodeid in mine if CORPUS not in nodeid]))

    @property
    def slice(self) -> float:
        """Seconds of an ordinary turn."""
        return min(MOST_SECONDS, max(LEAST_SECONDS, self.budget / TURNS_IN_A_ROW))

    def replay(self, nodeids: Iterable[str]) -> None:
        """Try what the example database holds of some tests, whichever shard they are dealt to."""
        waiting = set(self._replays)
        fresh = (one for one in dict.fromkeys(nodeids) if one in self._index and CORPUS not in one)
        self._replays += [one for one in fresh if one not in waiting]

    def next(self) -> Assignment | None:
        """Return the next turn, None when there is no time for one, or nothing to do."""
        if self.left() <= 0:
            return None
        stage: Stage = "corpus"
        if self._corpus:
            nodeid, seconds, examples = self._corpus.popleft(), REPLAY_SECONDS, 1
        elif self._replays:
            stage, nodeid, seconds, examples = "replay", self._replays.popleft(), REPLAY_SECONDS, REPLAY_EXAMPLES
        else:
            arm = self.bandit.choose(fits=self._fits, busy={one.nodeid for one in self._open})
            if arm is None:
                return None
            stage, nodeid, (seconds, examples) = "fuzz", arm.key, self._size(arm)
            self.bandit.charge(nodeid, seconds)
        number = self.turns[nodeid] + self._begun[nodeid]
        self._begun[nodeid] += 1
        assignment = Assignment(
            index=self._index[nodeid], nodeid=nodeid, stage=stage, number=number, seconds=seconds, examples=examples
        )
        self._open.append(assignment)
        return assignment

    def _fits(self, arm: Arm) -> bool:
        # Turns are handed out while another one is running.
        least = LEAST_CASES * (arm.seconds_per_case or 0.0)
        return least <= max(0.0, self.left() - self.slice / 2) or arm.turns == 0

    def _size(self, arm: Arm) -> tuple[float, int]:
        if self._first is None:
            untried = sum(one.turns == 0 for one in self.bandit.arms.values())
            share = FIRST_PART * self.left() * self.workers / max(1, untried)
            self._first = min(self.slice, max(FIRST_SECONDS, share))
        each = arm.seconds_per_case
        if each is None:
            return self._first, FIRST_EXAMPLES
        seconds = max(self.slice, LEAST_CASES * each)
        return seconds, min(MOST_EXAMPLES, max(LEAST_EXAMPLES, math.ceil(seconds / each)))

    def give_back(self, assignment: Assignment) -> None:
        """Take back a turn that its worker did not begin."""
        self._close(assignment)
        if assignment.stage == "corpus":
            self._corpus.appendleft(assignment.nodeid)
        elif assignment.stage == "replay":
            self._replays.appendleft(assignment.nodeid)

    def _close(self, assignment: Assignment) -> None:
        self._open.remove(assignment)
        self._begun[assignment.nodeid] -= 1
        if assignment.stage == "fuzz":
            self.bandit.release(assignment.nodeid)

    def hear(self, record: Record, assignment: Assignment | None = None) -> Fault | None:
        """Take note of a turn that is over, in this session or an earlier one; return its fault when that is new.

        Args:
            record: of the turn.
            assignment: what was asked for, None for an earlier session.
        """
        nodeid = record.nodeid
        if assignment is not None:
            self._close(assignment)
        else:
            for waiting in (self._corpus, self._replays):
                if nodeid in waiting:
                    waiting.remove(nodeid)
        self.turns[nodeid] += 1
        before = self._cases[nodeid]
        cases = int(record.stats.get("cases", 0)) if record.stats else 0
        self._cases[nodeid] += cases
        found = self.faults.hear(record, cases=before)
        if record.outcome == "skipped":
            self.skipped[nodeid] = record.reason
            self.bandit.drop(nodeid)
        if found is not None and record.stage == "replay":
            # The database may hold more of this test; Hypothesis stops at the first that fails.
            self.replay([nodeid])
        if nodeid in self.bandit.arms and record.stage == "fuzz":
            self._learn(record, cases)
        return found

    def _learn(self, record: Record, cases: int) -> None:
        nodeid = record.nodeid
        arm = self.bandit.arms[nodeid]
        known = self._combinations.setdefault(nodeid, set())
        fresh = set(record.new) - known
        known |= fresh
        lost = RESTART_SECONDS if record.outcome == "crashed" else 0.0
        arm.faulty |= record.outcome in ("failed", "crashed")
        self.bandit.record(nodeid, seconds=record.seconds + lost, cases=cases, new=len(fresh), rise=self._rise(record))
        # A test that judges a fixed table draws nothing, and one whose strategy has a single value draws it again.
        if cases <= 1 and not record.cut and record.outcome == "passed":
            self.bandit.drop(nodeid)

    def _rise(self, record: Record) -> float:
        """Doublings of the largest error over bound since earlier turns; none for what is beyond its bound."""
        peaks = self._peaks.setdefault(record.nodeid, {})
        rise = 0.0
        for output, ratio in dict(record.stats.get("ratio", {}) if record.stats else {}).items():
            if not 0.0 < ratio <= 1.0:
                continue
            if output in peaks and ratio > peaks[output]:
                rise += math.log2(ratio / peaks[output])
            peaks[output] = max(ratio, peaks.get(output, 0.0))
        return rise
