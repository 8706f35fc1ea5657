"""The journal: the case that a process is about to run, on disk before it runs, so that a crash leaves it behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import casefile
from .watchdog import Watchdog

# Part of the time that may go into waiting for the disk. What is written survives the process in any case; to survive
# a power cut it must have reached the disk, and a slow one is then told only as often as this allows.
SYNCED_PART = 0.01


class DeviceLost(BaseException):
    """The GPU no longer works in this process. No Exception, so that Hypothesis does not go on shrinking without it."""


@dataclass(kw_only=True)
class Journal:
    """Notes of one process. It holds one entry, the present one; a process that ends well leaves none.

    Attributes:
        path: file of this process.
        origin: what a case file says besides the recipe; see `CaseFile`.
        is_lost: whether the device no longer works in this process, asked after a failure.
        leave: called with the recipe and the reason when the device is lost; may end the process.
        watchdog: ends the process when a case takes too long.
        written: seconds spent on notes.
        synced: seconds of these spent on waiting for the disk.
    """

    path: Path
    origin: dict[str, Any]
    is_lost: Callable[[], bool]
    leave: Callable[[Any, str], None]
    watchdog: Watchdog = field(default_factory=lambda: Watchdog(seconds=0.0))
    written: float = 0.0
    synced: float = 0.0
    _file: int | None = None
    _started: float = field(default_factory=time.perf_counter)

    def begin(self, recipe: Any) -> None:
        """Note a case before it runs."""
        self.watchdog.alive()
        self._write(recipe, failure=RUNNING)

    def failed(self, recipe: Any, error: Exception) -> None:
        """Stop when a failure took the device with it: every later case would fail, and hide this one.

        Raises:
            DeviceLost: the device is lost, and `leave` has returned.
        """
        if self.is_lost():
            reason = f"{type(error).__name__}: {error}"
            self._write(recipe, failure=reason)
            self.leave(recipe, reason)
            raise DeviceLost(reason) from None

    def probe(self) -> None:
        """Stop when the device was lost unnoticed.

        Raises:
            DeviceLost: as `failed`.
        """
        if self.is_lost():
            reason = "the GPU no longer works after this test"
            self.leave(None, reason)
            raise DeviceLost(reason)

    def end(self) -> None:
        """Forget the entry: the test is over."""
        self.watchdog.rest()
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self.path.unlink(missing_ok=True)

    def _write(self, recipe: Any, *, failure: str) -> None:
        if not hasattr(recipe, "to_dict"):
            return
        began = time.perf_counter()
        plain = casefile.CaseFile(recipe=recipe, **self.origin, failure=failure).to_dict()
        entry = {"process": os.getpid(), "limit": self.watchdog.seconds, "noted": time.time(), "case": plain}
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        # In place: a rename would be one more entry for the disk. A reader takes the first line.
        os.pwrite(self._file, json.dumps(entry).encode() + b"\n", 0)
        noted = time.perf_counter()
        if self.synced <= SYNCED_PART * (noted - self._started):
            os.fsync(self._file)
            self.synced += time.perf_counter() - noted
        self.written += time.perf_counter() - began


RUNNING = "the process ended while it ran this case"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a journal held when its process was gone.

    Attributes:
        case: what ran.
        process: number of the process.
        noted: seconds since the epoch when the case began.
        limit: seconds that the watchdog gave it, 0 for no limit.
    """

    case: casefile.CaseFile
    process: int
    noted: float
    limit: float

    def reason(self, now: float) -> str:
        """Say what happened, as far as the clock can tell."""
        if self.limit and now - self.noted >= self.limit and self.case.failure == RUNNING:
            return f"the case ran for more than {self.limit:g} s and its process was ended"
        return self.case.failure


def read(path: Path) -> Entry | None:
    """Read a journal, if it holds an entry that can be read."""
    try:
        plain = json.loads(path.read_text().partition("\n")[0])
        return Entry(
            case=casefile.from_dict(plain["case"]),
            process=int(plain["process"]),
            noted=float(plain["noted"]),
            limit=float(plain["limit"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def left_behind(path: Path) -> Entry | None:
    """Take the entry of a process that is gone, if it left one."""
    entry = read(path)
    if entry is not None:
        path.unlink(missing_ok=True)
    return entry


def orphans(folder: Path) -> list[tuple[Path, Entry]]:
    """Journals of processes that no longer run: their machine, or whoever was to look after them, went down too."""
    found = []
    for path in sorted(folder.glob("*.json")):
        entry = read(path)
        if entry is not None and not _is_running(entry.process):
            found.append((path, entry))
    return found


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def cuda_is_lost() -> bool:
    """Whether CUDA still works in this process: an illegal access makes every later call fail."""
    import torch  # noqa: PLC0415 - only where a GPU is in use

    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False
