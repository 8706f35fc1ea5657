"""What a run keeps in its folder, so that it can be killed at any moment and go on from there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
# A run is the same run when these are: it goes on with the same draws and is held to the same floors.
IDENTITY = ("subject", "device", "quick", "only", "shard")


@dataclass(kw_only=True)
class RunState:
    """One run, over all of its sessions.

    Attributes:
        subject: "package.module:callable".
        device: as asked for.
        quick: whether the dear properties are left out.
        only: expression that selects tests, "" for all.
        shard: number and count, None for all.
        seed: of all draws.
        budget: seconds.
        started: ISO 8601, UTC.
        elapsed: seconds that its sessions took, up to the last sign of life.
        sessions: how many were started.
        finished: whether it came to its end.
        databases: where examples are kept.
        format: of this file.
    """

    subject: str
    device: str
    quick: bool
    only: str
    shard: tuple[int, int] | None
    seed: int
    budget: float
    started: str
    elapsed: float = 0.0
    sessions: int = 0
    finished: bool = False
    databases: tuple[str, ...] = ()
    format: int = FORMAT

    def difference(self, other: RunState) -> str | None:
        """Say in what another run is another one, None when it is the same."""
        for name in IDENTITY:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {mine!r} there, {theirs!r} now"
        return None


@dataclass(frozen=True, kw_only=True)
class SessionFile:
    """What the processes of one session are told.

    Attributes:
        number: of the session, from 1 on.
        parent: number of the process that supervises it.
        budget: seconds of the run.
        before: seconds that earlier sessions took.
        began: start of this one, by the monotonic clock.
        deadline: no case begins later, by the monotonic clock.
        shard: number and count, None for all.
        shared: whether another runner may write to the example database.
    """

    number: int
    parent: int
    budget: float
    before: float
    began: float
    deadline: float
    shard: tuple[int, int] | None
    shared: bool

    def write(self, folder: Folder) -> Path:
        """Write it where the processes look for it."""
        write_json(folder.session, asdict(self))
        return folder.session

    @classmethod
    def read(cls, path: Path) -> SessionFile:
        """Read it."""
        plain = json.loads(path.read_text())
        return cls(**plain | {"shard": _pair(plain["shard"])})


def _pair(plain: Sequence[int] | None) -> tuple[int, int] | None:
    return None if plain is None else (int(plain[0]), int(plain[1]))


@dataclass(frozen=True)
class Folder:
    """Where things are in the folder of a report."""

    root: Path
    state: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", self.root / "state")

    @property
    def run(self) -> Path:
        """The run itself."""
        return self.state / "run.json"

    @property
    def session(self) -> Path:
        """What the processes of the present session are told."""
        return self.state / "session.json"

    @property
    def header(self) -> Path:
        """What the session has found out about device and versions."""
        return self.state / "header.json"

    @property
    def turns(self) -> Path:
        """The records of all turns, one a line."""
        return self.state / "turns.jsonl"

    @property
    def known(self) -> Path:
        """Known faults, for the workers."""
        return self.state / "known.json"

    @property
    def confirmed(self) -> Path:
        """What became of cases that ended their process when they were run again alone, by test."""
        return self.state / "confirmed.json"

    @property
    def pareto(self) -> Path:
        """What Hypothesis keeps of the cases it steered by."""
        return self.state / "pareto"

    @property
    def lock(self) -> Path:
        """Held while somebody works here."""
        return self.state / "lock"

    def log(self, session: int) -> Path:
        """Output of pytest."""
        return self.state / f"session-{session}.log"

    def dealt(self, session: int, worker: str) -> Path:
        """Turns that a worker was given."""
        return self.state / f"dealt-{session}-{worker}.jsonl"

    def cases(self, session: int, worker: str) -> Path:
        """Cases that a worker has judged."""
        return self.state / f"cases-{session:03d}-{worker}.jsonl"

    def all_cases(self) -> list[Path]:
        """Cases of all workers and sessions."""
        return sorted(self.state.glob("cases-*.jsonl"))

    def read_run(self) -> RunState | None:
        """Return the run that was begun here, None when there is none.

        Raises:
            ValueError: it is damaged or of a newer version.
        """
        if not self.run.exists():
            return None
        try:
            plain = json.loads(self.run.read_text())
            if plain["format"] != FORMAT:
                raise ValueError(f"its format is {plain['format']}, expected {FORMAT}")
            return RunState(**plain | {"shard": _pair(plain["shard"]), "databases": tuple(plain["databases"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"report: the run in {str(self.root)!r} cannot go on: {error}") from None

    def write_run(self, run: RunState) -> None:
        """Write the run, at once or not at all."""
        write_json(self.run, asdict(run))

    def clear(self) -> None:
        """Make room for another run."""
        shutil.rmtree(self.state, ignore_errors=True)
        for name in ("failures", "interrupted", "journal"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in ("nightly.json", "cases.jsonl", "report.html", "summary.md", "junit.xml"):
            (self.root / name).unlink(missing_ok=True)


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """Replace a file by JSON, at once or not at all: whoever reads it may do so at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(plain))
    fresh.replace(path)


def read_json(path: Path) -> Any:
    """Return what a file holds, None when it is not there."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
