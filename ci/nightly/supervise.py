"""One session of a run: pytest in a process of its own, watched, and ended when its time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .clock import Clock
from .state import Folder, RunState, SessionFile

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.25
# The run is written down so often; a run that is killed goes on as if it had ended that much earlier.
BEAT_SECONDS = 1.0
# The watchdog gives a case this part of the budget, within these limits.
TIMEOUT_PART = 0.1
LEAST_TIMEOUT, MOST_TIMEOUT = 90.0, 180.0
# What an outer pytest has told its own processes.
OUTER = ("PYTEST_",)
# xdist gives up after some workers that ended; a subject that crashes may end hundreds.
RESTARTS = "1000000"


@dataclass(kw_only=True)
class Ended:
    """How a session ended.

    Attributes:
        status: exit status of pytest, negative for a signal.
        late: whether it was ended for being late.
        signal: that ended the run from outside, 0 for none.
    """

    status: int
    late: bool = False
    signal: int = 0


@dataclass(kw_only=True)
class Supervisor:
    """Starts and watches sessions.

    Attributes:
        folder: of the run.
        run: what is run.
        clock: of this session.
        workers: as for `pytest -n`.
        selected: arguments of pytest that select the tests.
        watch: called some times a second.
    """

    folder: Folder
    run: RunState
    clock: Clock
    workers: str
    selected: list[str]
    watch: Callable[[], None]
    _signal: int = field(default=0, init=False)

    def command(self) -> list[str]:
        """Return the command line of pytest."""
        timeout = min(MOST_TIMEOUT, max(LEAST_TIMEOUT, TIMEOUT_PART * self.run.budget))
        root = self.folder.root
        command = [sys.executable, "-m", "pytest", *self.selected, "-p", "properties.plugin", "-p", "ci.nightly.plugin"]
        command += ["-n", self.workers, "--max-worker-restart", RESTARTS, "-q", "--tb=short", "--color=no"]
        command += ["-p", "no:cacheprovider", "--msda-nightly", str(root), "--msda-home", str(root)]
        command += ["--msda-profile", "nightly", "--msda-seed", str(self.run.seed), "--msda-target"]
        command += ["--msda-subject", self.run.subject, "--msda-device", self.run.device]
        command += ["--msda-timeout", f"{timeout:g}"]
        return [*command, *(word for address in self.run.databases for word in ("--msda-database", address))]

    def go(self, *, shared: bool) -> Ended:
        """Run one session to its end.

        Args:
            shared: whether other runners may write to the example database.
        """
        told = SessionFile(
            number=self.run.sessions,
            parent=os.getpid(),
            budget=self.run.budget,
            before=self.clock.before,
            began=self.clock.began,
            deadline=self.clock.deadline,
            shard=self.run.shard,
            shared=shared,
        )
        told.write(self.folder)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with self.folder.log(told.number).open("wb") as log, self._signals():
            # In a group of its own: workers are ended with it, and a Ctrl-C comes here alone.
            process = subprocess.Popen(
                self.command(), env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                return self._until_end(process)
            finally:
                end_group(process)

    def _until_end(self, process: subprocess.Popen[bytes]) -> Ended:
        beat = 0.0
        while True:
            # Only this far between two looks at the clock.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return Ended(status=process.wait(POLL_SECONDS), signal=self._signal)
            now = time.monotonic()
            if now - beat >= BEAT_SECONDS:
                beat = now
                self.beat()
            self.watch()
            if self._signal or now >= self.clock.last_call:
                end_group(process)
                return Ended(status=process.wait(), late=not self._signal, signal=self._signal)

    def beat(self) -> None:
        """Write down how long the run has taken."""
        self.run.elapsed = self.clock.elapsed
        self.folder.write_run(self.run)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, frame: object) -> None:
            del frame
            self._signal = number

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
