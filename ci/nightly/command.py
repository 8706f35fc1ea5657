"""Nightly fuzzing of one subject, for a time.

    python -m ci nightly --budget 30m --report DIR

Replays the corpus, then draws cases for all properties until the time is spent; what fails is made small and told once.
Killed at any moment, the same command line goes on where it was.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from properties.casefile import SHIPPED
from properties.database import REDIS, opened, unreachable
from properties.failures import started_in
from properties.journal import read

from . import selection
from .clock import Clock, seconds_of
from .progress import Progress
from .result import BROKEN, STATUS, nightly
from .state import Folder, RunState, write_json
from .supervise import ROOT, Ended, Supervisor

QUICK_BUDGET = "10m"
BUDGET = "30m"
LOG_LINES = 15
PYTEST_ENDED_WELL = (0, 1)
# No case that is drawn takes so long.
LONG_SECONDS = 20.0


def shard_of(text: str) -> tuple[int, int]:
    """Read "i/n"."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} given, expected I/N with 1 <= I <= N, as 2/3")
    return int(number), int(count)


def _budget(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workers(text: str) -> str:
    if text != "auto" and not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} given, expected auto or 1 or more")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--report", type=Path, required=True, metavar="DIR", help="folder of the report and of the run")
    parser.add_argument(
        "--budget",
        type=_budget,
        metavar="TIME",
        help=f"as 90s, 30m, 8h (default: {BUDGET}; with --quick {QUICK_BUDGET})",
    )
    parser.add_argument("--quick", action="store_true", help="the corpus and the properties with the reference alone")
    parser.add_argument("--only", default="", metavar="EXPR", help="tests that fit, as for pytest -k")
    parser.add_argument("--subject", default=SHIPPED, metavar="MODULE:CALLABLE", help=f"default: {SHIPPED}")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="where it runs")
    parser.add_argument("--workers", type=_workers, default="auto", metavar="N", help="processes (default: auto)")
    parser.add_argument("--seed", type=int, metavar="N", help="of every draw (default: a fresh one, printed)")
    parser.add_argument("--shard", type=shard_of, metavar="I/N", help="the part of the tests that this runner has")
    parser.add_argument(
        "--database",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="folder, redis://HOST:PORT/DB or github://OWNER/REPOSITORY that keeps failing draws; may be given again",
    )
    parser.add_argument("--mutants", type=Path, metavar="FILE", help="result of `mutants --json`, for the report")
    parser.add_argument("--trend", type=Path, nargs="+", default=[], metavar="FILE", help="earlier nightly.json files")


def run(options: argparse.Namespace) -> int:
    """Run it. Exit status 0: clean, 1: something failed, 2: it could not be run."""
    here = started_in(Path.cwd())
    folder = Folder((here / options.report).resolve())
    try:
        folder.state.mkdir(parents=True, exist_ok=True)
        wrong = unreachable(options.database)
        if wrong is not None:
            raise ValueError(wrong)
        opened(options.database, root=ROOT, here=here)
        with filelock.FileLock(folder.lock, timeout=0):
            return _locked(options, folder, here)
    except filelock.Timeout:
        sys.stderr.write(f"nightly: {str(folder.root)!r} is being worked in by another run\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"nightly: {error}\n")
    return STATUS[BROKEN]


def _locked(options: argparse.Namespace, folder: Folder, here: Path) -> int:
    state = begin(options, folder)
    clock = Clock(budget=state.budget, before=state.elapsed, began=options.began)
    progress = Progress(folder, clock)
    progress.begin(state)
    supervisor = Supervisor(
        folder=folder,
        run=state,
        clock=clock,
        workers=options.workers,
        selected=selection.arguments(quick=state.quick, only=state.only),
        watch=progress.show,
    )
    with progress:
        # Killed while it wrote the report: there is nothing left to run.
        ended = Ended(status=0)
        if clock.deadline > time.monotonic():
            shared = any(address.partition("://")[0] in REDIS for address in state.databases)
            ended = supervisor.go(shared=shared)
    broken = why_broken(ended, folder, state)
    notes = interrupted(folder, longer=LONG_SECONDS)
    state.finished = not ended.signal
    supervisor.beat()
    result = nightly(folder, state, commit=commit(), reasons=broken, notes=notes)
    _write(result, folder, options, here)
    # Once more: the report has taken its time too.
    supervisor.beat()
    progress.end(result)
    return STATUS[result["verdict"]]


def begin(options: argparse.Namespace, folder: Folder) -> RunState:
    """Return the run of this folder: the one that was killed, or a new one in the place of one that is over.

    Raises:
        ValueError: the folder has a run of something else that is not over.
    """
    fresh = RunState(
        subject=options.subject,
        device=options.device,
        quick=options.quick,
        only=options.only,
        shard=options.shard,
        seed=secrets.randbelow(2**32) if options.seed is None else options.seed,
        budget=options.budget or seconds_of(QUICK_BUDGET if options.quick else BUDGET),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        databases=tuple(options.database),
    )
    state = folder.read_run()
    if state is None or state.finished:
        folder.clear()
        folder.state.mkdir(parents=True, exist_ok=True)
        state = fresh
    else:
        difference = state.difference(fresh)
        if difference is not None:
            raise ValueError(
                f"report: the run in {str(folder.root)!r} is not over and another one: {difference}; "
                "expected the same options, or another folder"
            )
        state.budget, state.databases = fresh.budget, fresh.databases
        interrupted(folder)
    state.sessions += 1
    folder.write_run(state)
    return state


def interrupted(folder: Folder, *, longer: float = 0.0) -> list[str]:
    """Keep the cases that were running when their processes were ended, and name those that had run for long.

    They are no faults: their time was up. Who wants to know more can replay them.

    Args:
        folder: of the run.
        longer: name those that had run for more seconds.
    """
    told = []
    # All of them are over, those too that the system still has in its books.
    for path in sorted((folder.root / "journal").glob("*.json")):
        entry = read(path)
        if entry is None:
            continue
        ran = time.time() - entry.noted
        kept = entry.case.write(folder.root / "interrupted")
        path.unlink(missing_ok=True)
        if ran > longer:
            told.append(f"interrupted/{kept.name} had run for {ran:.0f} s when the time was up")
    return told


def why_broken(ended: Ended, folder: Folder, state: RunState) -> list[str]:
    """Say why a session did not do its work, in a line or a few; nothing when it did."""
    if ended.signal:
        return [f"ended by signal {ended.signal} after {state.elapsed:.0f} s; the same command line goes on from there"]
    if ended.late or ended.status in PYTEST_ENDED_WELL:
        return []
    text = folder.log(state.sessions).read_text(errors="replace").strip().splitlines()
    return [f"pytest ended with status {ended.status}", *text[-LOG_LINES:]]


def commit() -> str | None:
    """Return the commit of the repository, None where there is none."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _write(result: dict[str, Any], folder: Folder, options: argparse.Namespace, here: Path) -> None:
    from ci import report  # noqa: PLC0415 - draws figures; nothing before the end needs it

    write_json(folder.root / "nightly.json", result)
    mutants = None if options.mutants is None else here / options.mutants
    trend: Sequence[Path] = [here / path for path in options.trend]
    report.render(folder.root, mutants=mutants, trend=trend)
