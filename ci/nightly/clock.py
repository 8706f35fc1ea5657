"""The time of a run: how much there is, how much earlier sessions have used, and when to stop drawing."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
# Kept back for the cases in flight, the end of the workers and the report: a share of the budget within these limits.
RESERVE = 0.03
LEAST_RESERVE, MOST_RESERVE = 5.0, 30.0
# A process that has not ended by then, in parts of the budget beyond it, is ended.
OVERTIME = 0.01
LEAST_BUDGET = 10.0


def seconds_of(text: str) -> float:
    """Read a duration: "90s", "30m", "8h", "1h30m", or a number of seconds.

    Raises:
        ValueError: it is none, or less than `LEAST_BUDGET` seconds.
    """
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    hours, minutes, seconds = (float(part or 0) for part in parts.groups()) if parts else (0.0, 0.0, 0.0)
    total = hours * UNITS["h"] + minutes * UNITS["m"] + seconds
    if total < LEAST_BUDGET:
        raise ValueError(f"budget: {text!r} given, expected {LEAST_BUDGET:g}s or more, as 90s, 30m, 8h or 1h30m")
    return total


def shown(seconds: float) -> str:
    """Write a duration for a person: "2:05" or "1:02:05"."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """One session of a run.

    Attributes:
        budget: seconds for the whole run.
        before: seconds that earlier sessions have used.
        began: start of this session by the monotonic clock, which all processes of a machine share.
    """

    budget: float
    before: float = 0.0
    began: float

    @property
    def elapsed(self) -> float:
        """Seconds that the run has taken so far, the time between its sessions left out."""
        return self.before + time.monotonic() - self.began

    @property
    def end(self) -> float:
        """When the budget is spent, by the monotonic clock."""
        return self.began + self.budget - self.before

    @property
    def deadline(self) -> float:
        """When drawing ends, by the monotonic clock."""
        return self.end - min(MOST_RESERVE, max(LEAST_RESERVE, RESERVE * self.budget))

    @property
    def last_call(self) -> float:
        """When processes are ended, by the monotonic clock."""
        return self.end + OVERTIME * self.budget
