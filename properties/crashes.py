"""Workers that ended: which case ended them, and whether it does so again when it is alone."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from . import failures, gather, journal
from .report import ItemStats
from .session import Run, run_of

# A suspect is confirmed once, and while the others go on; a crash loop must not fill the machine.
AT_ONCE = 2
START_SECONDS = 60.0


@dataclass(kw_only=True)
class Suspect:
    """One case that ended its worker, run once more in a process of its own.

    Attributes:
        report: of xdist, whose text is completed.
        command: runs the case.
        folder: where.
        user: where the user is, from where a subject is imported too.
        journals: folder of the journals.
        limit: seconds that it may take.
        process: once it was started.
        started: by the monotonic clock.
    """

    report: Any
    command: list[str]
    folder: Path
    user: Path
    journals: Path
    limit: float
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def start(self) -> None:
        """Run it, with nothing of this session's workers in its environment."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["MSDA_FROM"] = str(self.user.resolve())
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=environment, stdout=quiet, stderr=quiet)
        self.started = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether it has ended by itself or has used its time."""
        if self.process is None:
            return False
        return self.process.poll() is not None or time.monotonic() >= self.started + self.limit

    def outcome(self, until: float = math.inf) -> str:
        """Wait for the end and say what it means.

        Args:
            until: wait no longer, by the monotonic clock.
        """
        assert self.process is not None
        try:
            status = self.process.wait(max(0.1, min(self.started + self.limit, until) - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            if time.monotonic() >= until:
                return "no more: the time of this run was up before it had ended"
            return "alone, in a fresh process, it did not end either"
        # Neither an exit status nor a signal tells the watchdog from a failed test; a journal that is left does.
        left = journal.left_behind(self.journals / f"{self.process.pid}-main.json")
        if left is not None:
            return f"alone, in a fresh process, it ends the process again: {left.reason(time.time())}"
        if status == pytest.ExitCode.OK:
            return "alone, in a fresh process, it passes: the fault may lie in what ran before it in that worker"
        if status == pytest.ExitCode.TESTS_FAILED:
            return "alone, in a fresh process, it fails again"
        return f"alone, in a fresh process, it could not be run (exit status {status})"


@dataclass(kw_only=True)
class Crashes:
    """What the controller knows of the workers that ended.

    Attributes:
        once: a test that ended a worker before is not confirmed again: it is run over and over.
        until: nobody waits longer for what is still being confirmed, by the monotonic clock.
        heard: called with the report of each suspect once it tells what came of it.
        suspects: to be confirmed.
    """

    once: bool = False
    until: float = math.inf
    heard: Callable[[Any], None] = lambda _: None
    suspects: list[Suspect] = field(default_factory=list)
    _tests: set[str] = field(default_factory=set)
    # A thread may look after the suspects while the session goes on.
    _settling: threading.RLock = field(default_factory=threading.RLock)

    def note(self, test: str, report: Any) -> None:
        """Complete the report of a test whose worker ended, and start to confirm its case."""
        node = report.node
        config, run = node.config, run_of(node.config)
        path = failures.journal_path(config, node.workerinput["testrunuid"], node.gateway.id)
        entry = journal.left_behind(path)
        if entry is None or entry.case.property != test:
            return
        reason = entry.reason(time.time())
        if self.once and test in self._tests:
            report.longrepr = f"{report.longrepr}\n  {reason}"
            return
        self._tests.add(test)
        kept = failures.keep(config, run, test, entry.case.recipe, reason)
        report.longrepr = "\n".join([str(report.longrepr), f"  {reason}", *kept.lines])
        name, bracket, variant = test.partition("[")
        stats = ItemStats(test=name, variant=variant[:-1] if bracket else "", failure=kept.record)
        report.user_properties.append((gather.RECORD, stats.as_dict()))
        if kept.path is not None:
            self._confirm(config, run, test, report, kept.path)

    def _confirm(self, config: pytest.Config, run: Run, test: str, report: Any, case: Path) -> None:
        command = [sys.executable, "-m", "pytest", test, "-n", "0", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "properties.plugin", "--msda-case", str(case), "--msda-device", run.device.type]
        command += ["--msda-subject", run.subject, "--msda-timeout", f"{run.timeout:g}"]
        command += ["--msda-home", str(failures.home(config))]
        limit = START_SECONDS + (1.5 * run.timeout if run.timeout else 600.0)
        suspect = Suspect(
            report=report,
            command=command,
            folder=config.rootpath,
            user=failures.user_folder(config),
            journals=failures.journal_folder(config),
            limit=limit,
        )
        with self._settling:
            self.suspects.append(suspect)
            self._start()

    def _start(self) -> None:
        running = sum(one.process is not None and not one.over for one in self.suspects)
        for one in self.suspects:
            if one.process is None and running < AT_ONCE:
                one.start()
                running += 1

    def settle(self) -> None:
        """Tell what came of the suspects that are over by now, and start others."""
        with self._settling:
            for one in [one for one in self.suspects if one.over]:
                self._tell(one)
            self._start()

    def confirm(self) -> None:
        """Wait for all that are suspected and add to their reports what came of it."""
        with self._settling:
            while self.suspects:
                one = self.suspects[0]
                if one.process is None:
                    one.start()
                self._tell(one)
                self._start()

    def _tell(self, one: Suspect) -> None:
        self.suspects.remove(one)
        one.report.longrepr = f"{one.report.longrepr}\n  confirmed {one.outcome(self.until)}"
        self.heard(one.report)


def rescue(config: pytest.Config, run: Run) -> list[str]:
    """Keep the cases of journals whose processes are gone, and say how to replay them.

    A run whose workers ended looks after them itself; these are left by a run that was ended as a whole.
    """
    told = []
    for path, entry in journal.orphans(failures.journal_folder(config)):
        case = entry.case
        kept = failures.keep(config, run, case.property, case.recipe, entry.reason(time.time()), recorded=case)
        path.unlink(missing_ok=True)
        if kept.replay:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.noted))
            told.append(f"a process ended at {when} while it ran {case.property}; replay with {kept.replay}")
    return told
