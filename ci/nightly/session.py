"""The controller of one session: makes the plan, writes down every turn, and sees to it that the session ends."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import filelock
import pytest

from properties import crashes, gather
from properties.database import item_key, lost_databases
from properties.plugin import CRASHES, store_of
from properties.report import ItemStats
from properties.session import run_of

from .plan import Plan
from .schedule import TurnScheduling
from .state import Folder, SessionFile, read_json, write_json
from .turns import CORPUS, HEARD, PAIRS, Assignment, Record, records

POLL_SECONDS = 1.0
# How often another runner's finds are looked for: some hundred round trips.
SHARED_SECONDS = 30.0
LOCK_SECONDS = 30.0
# What xdist puts before the story of a failure: worker, platform, interpreter.
WORKER_LINE = re.compile(r"\[gw\d+\] ")


class Session:
    """What the controller of one session knows."""

    def __init__(self, config: pytest.Config, folder: Folder) -> None:
        self._config = config
        self._folder = folder
        self._told = SessionFile.read(folder.session)
        self._run = run_of(config)
        # The session before this one may still be about to end.
        self._lock = filelock.FileLock(folder.state / "session.lock")
        self._lock.acquire(timeout=LOCK_SECONDS)
        self._log = folder.turns.open("a")
        self._scheduling: TurnScheduling | None = None
        self._failed: dict[Any, Any] = {}
        self._suspects: list[tuple[Record, Any]] = []
        # By test; those of earlier sessions of the run are kept.
        self._confirmed: dict[str, list[str]] = read_json(folder.confirmed) or {}
        self._kept: dict[str, set[bytes]] = {}
        self._looked = time.monotonic()
        self._crashes = crashes.Crashes(
            once=True, until=self._told.began + self._told.budget - self._told.before, heard=self._hear_confirmed
        )
        config.stash[CRASHES] = self._crashes
        write_json(folder.header, self._header())
        threading.Thread(target=self._watch, daemon=True).start()

    def _header(self) -> dict[str, Any]:
        run = self._run
        return {
            "subject": run.subject,
            "device": {"type": run.device.type, "gpus": [gpu.name for gpu in run.device.gpus]},
            "device_name": str(run.device),
            "versions": gather.versions(),
            "seed": run.seed,
            "workers": len(self._config.getoption("tx", None) or ()),
            "profile": run.profile.name,
        }

    def _watch(self) -> None:
        """End with the supervisor, and take the workers along: two sessions must not work in one folder.

        Until then, note what is confirmed of crashes as soon as it is: the session may be ended before it ends itself.
        """
        while os.getppid() == self._told.parent:
            self._crashes.settle()
            time.sleep(POLL_SECONDS)
        os.killpg(0, signal.SIGKILL)

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run."""
        return self._told.before + time.monotonic() - self._told.began

    def scheduler(self, log: Any) -> TurnScheduling:
        """Return the scheduler of this session."""
        number = self._told.number
        self._scheduling = TurnScheduling(
            self._config,
            log,
            make_plan=self._make_plan,
            dealt=lambda worker: self._folder.dealt(number, worker),
            tick=self._tick,
        )
        return self._scheduling

    def _make_plan(self, nodeids: Sequence[str], workers: int) -> Plan:
        plan = Plan(
            nodeids=nodeids,
            shard=self._told.shard,
            budget=self._told.budget,
            workers=workers,
            left=lambda: self._told.deadline - time.monotonic(),
        )
        for record in records(self._folder.turns):
            if record.nodeid in nodeids:
                plan.hear(record)
        plan.replay(self._fresh_examples(nodeids))
        self._tell(plan)
        return plan

    def _fresh_examples(self, nodeids: Iterable[str]) -> list[str]:
        """Return the tests of which the example database holds something that was not there before."""
        store, found = store_of(self._config), []
        for nodeid in nodeids:
            if CORPUS in nodeid:
                continue
            kept = set(store.fetch(item_key(nodeid, self._run.subject, self._run.device.type)))
            if kept - self._kept.get(nodeid, set()):
                found.append(nodeid)
            self._kept[nodeid] = kept
        return found

    def _tick(self) -> None:
        """Look for what other runners have found, now and then."""
        plan = self._plan
        if self._told.shared and plan is not None and time.monotonic() - self._looked > SHARED_SECONDS:
            plan.replay(self._fresh_examples(plan.nodeids))
            self._looked = time.monotonic()

    @property
    def _plan(self) -> Plan | None:
        return None if self._scheduling is None else self._scheduling.plan

    def _tell(self, plan: Plan) -> None:
        write_json(self._folder.known, {"known": plan.faults.known(), "shapes": plan.faults.shapes()})

    def hear(self, node: Any, report: pytest.TestReport) -> None:
        """Take note of one report of a test; the last one of a turn has its record.

        Args:
            node: the worker.
            report: of its setup, call or teardown.
        """
        if report.when in ("setup", "call", "teardown") and (report.failed or report.skipped):
            self._failed.setdefault(node, report)
        carried = dict(report.user_properties)
        # All reports are kept until the end of the session, and there are thousands of turns.
        report.user_properties.clear()
        if report.when == "teardown" and HEARD in carried and self._scheduling is not None:
            assignment = self._scheduling.heard(node)
            told = self._failed.pop(node, None)
            self._note(self._record(assignment, told, carried), assignment)
            self._forget()

    def _record(self, assignment: Assignment, told: Any, carried: dict[str, Any]) -> Record:
        heard = carried[HEARD]
        outcome, reason, story = "passed", "", ()
        if told is not None and told.skipped:
            outcome, reason = "skipped", str(told.longrepr[2]).removeprefix("Skipped: ")
        elif told is not None:
            # Beside the call there is only what the harness does.
            outcome = "failed" if told.when == "call" else "error"
            lines = told.longreprtext.splitlines()
            story = tuple(line for line in lines if line and not WORKER_LINE.match(line))
            reason = next(iter(story), "")
        pairs = {name: tuple(tuple(one) for one in heard[name]) for name in PAIRS}
        return Record(
            nodeid=assignment.nodeid,
            stage=assignment.stage,
            at=self.elapsed,
            seconds=heard["seconds"],
            outcome=outcome,
            reason=reason,
            stats=carried.get(gather.RECORD, {}),
            new=tuple(heard["new"]),
            cut=heard["cut"],
            whole=heard["whole"],
            story=story,
            **pairs,
        )

    def _note(self, record: Record, assignment: Assignment) -> None:
        plan = self._plan
        assert plan is not None
        self._log.write(record.to_json())
        self._log.flush()
        known = len(plan.faults.known().get(record.nodeid, ()))
        plan.hear(record, assignment)
        if len(plan.faults.known().get(record.nodeid, ())) != known:
            self._tell(plan)

    def _forget(self) -> None:
        """Drop the reports that pytest keeps for its own summary."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        for reports in reporter.stats.values() if reporter is not None else ():
            reports.clear()

    def crashed(self, nodeid: str, report: Any) -> None:
        """Take note of a turn that ended its worker.

        Args:
            nodeid: of the test.
            report: of xdist, with the case that the journal held.
        """
        scheduling = self._scheduling
        assert scheduling is not None
        assert scheduling.lost is not None
        assignment = scheduling.lost.assignment
        carried = dict(report.user_properties)
        stats = carried.get(gather.RECORD) or ItemStats(test=nodeid.partition("[")[0]).as_dict()
        story = str(report.longrepr).splitlines()
        record = Record(
            nodeid=nodeid,
            stage=assignment.stage,
            at=self.elapsed,
            seconds=scheduling.lost.seconds,
            outcome="crashed",
            reason=story[0],
            stats=stats,
            raised=(("", "crash"),),
            story=tuple(story),
        )
        self._note(record, assignment)
        self._suspects.append((record, report))

    def _hear_confirmed(self, confirmed: Any) -> None:
        for record, report in self._suspects:
            if report is confirmed:
                self._confirmed[record.nodeid] = str(report.longrepr).splitlines()
                write_json(self._folder.confirmed, self._confirmed)

    def finish(self) -> None:
        """Write why the session ended early, if it did."""
        scheduling = self._scheduling
        hopeless = None if scheduling is None else scheduling.hopeless
        lost = lost_databases(store_of(self._config))
        write_json(self._folder.state / "end.json", {"hopeless": hopeless, "notes": lost})
        self._log.close()
