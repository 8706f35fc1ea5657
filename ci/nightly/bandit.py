"""Who gets the time: more of it for properties and dtype cells that still show something new. Knows nothing of pytest.

Every arm, one property on one variant, has a weight and a clock of its own that runs the slower the larger its weight
is; whose clock is furthest behind has the next turn. So the time is shared by weight, however long a case takes. With N
arms the weight of arm a is

    FLOOR + (1 - FLOOR) * N * rate(a) / (sum of all rates),    at most MOST

where the rate is BASE plus what its recent turns gained in a second: new combinations of input class, output, ratio and
collisions, and RISE for each doubling of its largest error over bound. FLOOR is the part of an equal share that every
arm keeps. An arm with a fault that is known already keeps no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

FLOOR = 0.25
MOST = 8.0
# Of what a turn gained, how much counts when the next turn is over: the last four turns or so decide.
MEMORY = 0.7
RISE = 32.0
# Before its first turns an arm is taken to gain this in so many seconds: the unknown is worth a look.
PRIOR_GAIN, PRIOR_SECONDS = 4.0, 1.0
# What every arm may gain in a second, seen or not: where nothing is new any more, all are the same.
BASE = 1.0
# A turn costs its worker a moment even when it draws nothing.
LEAST_SECONDS = 0.2


@dataclass(kw_only=True, eq=False)
class Arm:
    """One property on one variant.

    Attributes:
        key: its name.
        turns: that are over.
        cases: of these turns.
        seconds: of these turns.
        new: combinations that it was the first to show.
        gain: recent gains, older ones counting less.
        spent: recent seconds, likewise.
        faulty: whether it has a known fault.
        clock: its time, in seconds over weight.
    """

    key: str
    turns: int = 0
    cases: int = 0
    seconds: float = 0.0
    new: int = 0
    gain: float = PRIOR_GAIN
    spent: float = PRIOR_SECONDS
    faulty: bool = False
    clock: float = 0.0

    @property
    def rate(self) -> float:
        """Recent gain in a second."""
        return BASE + self.gain / self.spent

    @property
    def seconds_per_case(self) -> float | None:
        """Seconds that a case takes, None before there was one."""
        return self.seconds / self.cases if self.cases else None


class Bandit:
    """Shares out the time among arms.

    Attributes:
        arms: that are given turns, by name.
        dropped: that were.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.arms = {key: Arm(key=key) for key in keys}
        self.dropped: dict[str, Arm] = {}
        self._charged: dict[str, list[float]] = {}

    def weight(self, arm: Arm) -> float:
        """Return what the arm's share is proportional to; 1 is an equal share."""
        if arm.faulty:
            return FLOOR
        total = sum(other.rate for other in self.arms.values())
        relative = len(self.arms) * arm.rate / total if total > 0 else 1.0
        return min(MOST, FLOOR + (1.0 - FLOOR) * relative)

    def shares(self) -> dict[str, float]:
        """Return the part of the time that each arm would get from now on."""
        weights = {key: self.weight(arm) for key, arm in self.arms.items()}
        total = sum(weights.values()) or 1.0
        return {key: weight / total for key, weight in weights.items()}

    def choose(self, *, fits: Callable[[Arm], bool] = lambda _: True, busy: Collection[str] = ()) -> Arm | None:
        """Return the arm whose turn it is, None when none fits.

        Args:
            fits: whether an arm can be given a turn in the time that is left.
            busy: arms that are at work; one of them is taken only when no other one fits.
        """
        fitting = [arm for arm in self.arms.values() if fits(arm)]
        return min(fitting, key=lambda arm: (arm.key in busy, arm.clock), default=None)

    def charge(self, key: str, seconds: float) -> None:
        """Put the time of a turn that begins on the arm's account, so that it is not chosen at once again."""
        amount = max(seconds, LEAST_SECONDS) / self.weight(self.arms[key])
        self._charged.setdefault(key, []).append(amount)
        self.arms[key].clock += amount

    def release(self, key: str) -> None:
        """Take back what the oldest open turn was charged: it is over, or was never run."""
        charged = self._charged.get(key)
        if charged and key in self.arms:
            self.arms[key].clock -= charged.pop(0)

    def record(self, key: str, *, seconds: float, cases: int, new: int, rise: float) -> None:
        """Take note of a turn that is over.

        Args:
            key: of the arm.
            seconds: that it took.
            cases: that it drew.
            new: combinations that it was the first to show.
            rise: doublings of its largest error over bound.
        """
        arm = self.arms[key]
        arm.turns += 1
        arm.cases += cases
        arm.seconds += seconds
        arm.new += new
        arm.gain = MEMORY * arm.gain + new + RISE * rise
        arm.spent = MEMORY * arm.spent + max(seconds, LEAST_SECONDS)
        arm.clock += max(seconds, LEAST_SECONDS) / self.weight(arm)

    def drop(self, key: str) -> None:
        """Give an arm no more turns: it draws nothing, or only ever the same."""
        arm = self.arms.pop(key, None)
        if arm is not None:
            self.dropped[key] = arm
