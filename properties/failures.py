"""What a failing case leaves behind: a case file, the lines that tell how to run it again, a journal for crashes."""

from __future__ import annotations

import os
import shlex
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

SHIPPED = "msda:multi_scale_deformable_attention"
FAILURES = Path(".msda") / "failures"


def user_folder(config: pytest.Config) -> Path:
    """Where the user is: `ci/run` changes to the repository and tells where it was called from."""
    return Path(os.environ.get("MSDA_FROM") or config.invocation_params.dir)


def keep(
    config: pytest.Config,
    run: Run,
    nodeid: str,
    recipe: Any,
    failure: str,
    *,
    error: BaseException | None = None,
    subject: str | None = None,
) -> list[str]:
    """Write a failing recipe to a case file and return how to run it again.

    Args:
        config: of this process.
        run: what is run.
        nodeid: the property.
        recipe: what failed.
        failure: its story.
        error: what was raised; without one the process ended while it ran the case.
        subject: what failed, when it was not the subject of this run.
    """
    kind = kind_of(error) if error is not None else "crash"
    told = [f"  class     {kind}: {MEANING[kind]}"]
    if config.getoption("msda_case") or not hasattr(recipe, "to_dict"):
        return told
    case = casefile.CaseFile(
        recipe=recipe,
        property=nodeid,
        subject=subject or run.subject,
        device=run.device.type,
        gpu=str(run.device),
        failure=(failure.splitlines() or [""])[0],
        kind=kind,
        evidence=tuple(map(casefile.evidence_to_dict, getattr(error, "evidence", ()))),
        versions=versions(),
        seed=run.seed,
    )
    path = case.write(config.rootpath / FAILURES)
    command = case.command(path, root=config.rootpath, folder=user_folder(config))
    return [
        *told,
        f"  subject   {run.subject} on {run.device}",
        f"  property  {nodeid}",
        f"  recipe    {recipe.describe()}",
        f"  case      {os.path.relpath(path, user_folder(config))}",
        f"  replay    {shlex.join(command)}",
    ]


def journal_of(item: pytest.Item, run: Run) -> Journal:
    """Return the journal of one test: a lost GPU ends a worker, and with a single process the run."""
    config, nodeid = item.config, item.nodeid
    session = config.workerinput["testrunuid"] if hasattr(config, "workerinput") else f"{os.getpid()}"

    def leave(recipe: Any, reason: str) -> None:
        if run.worker != "main":
            # xdist reports the test, replaces this worker and goes on; see `pytest_handlecrashitem`.
            os._exit(3)
        item.session.shouldfail = "the GPU no longer works in this process; use xdist to go on after such a failure"
        raise DeviceLost("\n".join([reason, *keep(config, run, nodeid, recipe, reason)]))

    return Journal(
        path=journal_path(config, session, run.worker),
        origin={"property": nodeid, "subject": run.subject, "device": run.device.type},
        is_lost=cuda_is_lost,
        watchdog=Watchdog(seconds=run.timeout),
        leave=leave,
    )


def journal_folder(config: pytest.Config) -> Path:
    """Where the journals are."""
    return config.rootpath / ".msda" / "journal"


def journal_path(config: pytest.Config, session: str, worker: str) -> Path:
    """File of one process' journal."""
    return journal_folder(config) / f"{session}-{worker}.json"
