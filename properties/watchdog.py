"""The watchdog ends a process whose case takes too long: a kernel that never returns cannot be interrupted.

It is `faulthandler`'s: a thread in C that needs no interpreter lock, so it also ends a process that hangs inside an
extension. It prints where every thread stood, and xdist puts another worker in the place of this one.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from dataclasses import dataclass

# Arming costs a thread each time, which is more than 1 % of a case; a limit that is a tenth longer costs nothing.
SLACK = 0.1


@dataclass(kw_only=True)
class Watchdog:
    """Ends this process when `seconds` pass without a call of `alive`.

    Attributes:
        seconds: 0 for never.
    """

    seconds: float
    _armed: float | None = None

    def alive(self) -> None:
        """Start to count again."""
        now = time.monotonic()
        if self.seconds > 0 and (self._armed is None or now - self._armed > SLACK * self.seconds):
            # The real standard error: pytest may have put another one in its place.
            limit = self.seconds * (1.0 + SLACK)
            faulthandler.dump_traceback_later(limit, exit=True, file=sys.__stderr__ or sys.stderr)
            self._armed = now

    def rest(self) -> None:
        """Stop to count until the next `alive`."""
        if self._armed is not None:
            faulthandler.cancel_dump_traceback_later()
            self._armed = None
