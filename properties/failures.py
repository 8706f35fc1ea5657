"""What a failing case leaves behind: a case file, the lines that tell how to run it again, a journal for crashes."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import casefile
from .gather import versions
from .journal import DeviceLost, Journal, cuda_is_lost
from .kinds import MEANING, kind_of
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .session import Run

HOME = Path(".msda")
FAILURES = HOME / "failures"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What was kept of a failing case.

    Attributes:
        lines: end of the story: class, subject, property, recipe, case file, replay line.
        path: the case file, None when none was written.
        replay: the command that runs it again, "" without a file.
        record: the failure in plain JSON values, for the summary of the run.
    """

    lines: list[str]
    path: Path | None = None
    replay: str = ""
    record: dict[str, Any] = field(default_factory=dict)


def started_in(folder: Path) -> Path:
    """Where the user is: `ci/run` changes to the repository and tells where it was called from.

    Args:
        folder: where this process was started.
    """
    return Path(os.environ.get("MSDA_FROM") or folder)


def user_folder(config: pytest.Config) -> Path:
    """Where the user is who started this session."""
    return started_in(config.invocation_params.dir)


def home(config: pytest.Config) -> Path:
    """Where failing cases and journals are."""
    return user_folder(config) / (config.getoption("msda_home", None) or config.rootpath / HOME)


def keep(
    config: pytest.Config,
    run: Run,
    nodeid: str,
    recipe: Any,
    failure: str,
    *,
    error: BaseException | None = None,
    recorded: casefile.CaseFile | None = None,
) -> Kept:
    """Write a failing recipe to a case file and return how to run it again.

    Args:
        config: of this process.
        run: what is run.
        nodeid: the property.
        recipe: what failed.
        failure: its story.
        error: what was raised; without one the process ended while it ran the case.
        recorded: what the journal of an earlier run says of its subject and device; they need not be this run's.
    """
    kind = kind_of(error) if error is not None else "crash"
    told = [f"  class     {kind}: {MEANING[kind]}"]
    evidence = tuple(map(casefile.evidence_to_dict, getattr(error, "evidence", ())))
    headline = (failure.splitlines() or [""])[0]
    record: dict[str, Any] = {"class": kind, "failure": headline, "evidence": list(evidence)}
    if config.getoption("msda_case") or not hasattr(recipe, "to_dict"):
        return Kept(lines=told, record=record)
    case = casefile.CaseFile(
        recipe=recipe,
        property=nodeid,
        subject=recorded.subject if recorded else run.subject,
        device=recorded.device if recorded else run.device.type,
        gpu="" if recorded else str(run.device),
        failure=headline,
        kind=kind,
        evidence=evidence,
        versions={} if recorded else versions(),
        seed=None if recorded else run.seed,
    )
    path = case.write(home(config) / FAILURES.name)
    replay = shlex.join(case.command(path, root=config.rootpath, folder=user_folder(config)))
    lines = [
        *told,
        f"  subject   {case.subject} on {case.gpu or case.device}",
        f"  property  {nodeid}",
        f"  recipe    {recipe.describe()}",
        f"  case      {os.path.relpath(path, user_folder(config))}",
        f"  replay    {replay}",
    ]
    record |= {"recipe": recipe.describe(), "case": str(path)}
    return Kept(lines=lines, path=path, replay=replay, record=record)


def journal_of(item: pytest.Item, run: Run) -> Journal:
    """Return the journal of one test: a lost GPU ends a worker, and with a single process the run."""
    config, nodeid = item.config, item.nodeid
    session = config.workerinput["testrunuid"] if hasattr(config, "workerinput") else f"{os.getpid()}"

    def leave(recipe: Any, reason: str) -> None:
        if run.worker != "main":
            # xdist reports the test, replaces this worker and goes on; see `pytest_handlecrashitem`.
            os._exit(3)
        item.session.shouldfail = "the GPU no longer works in this process; use xdist to go on after such a failure"
        raise DeviceLost("\n".join([reason, *keep(config, run, nodeid, recipe, reason).lines]))

    return Journal(
        path=journal_path(config, session, run.worker),
        origin={"property": nodeid, "subject": run.subject, "device": run.device.type},
        is_lost=cuda_is_lost,
        watchdog=Watchdog(seconds=run.timeout),
        leave=leave,
    )


def journal_folder(config: pytest.Config) -> Path:
    """Where the journals are."""
    return home(config) / "journal"


def journal_path(config: pytest.Config, session: str, worker: str) -> Path:
    """File of one process' journal."""
    return journal_folder(config) / f"{session}-{worker}.json"
