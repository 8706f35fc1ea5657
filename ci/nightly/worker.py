"""The worker's side of a turn: what it was told becomes a `Turn` of the harness, and what came of it a record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import Phase
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from properties.database import PARETO, ItemDatabase
from properties.profiles import item_seed
from properties.session import Run
from properties.turn import Turn

from .cases import CaseFile, Combinations, case_line, head_of
from .floors import reachable
from .state import Folder, SessionFile, read_json, write_json
from .turns import Assignment, split

# `target` climbs from the best cases of earlier turns, which `reuse` brings back.
FUZZ = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
REPLAY = (Phase.reuse, Phase.shrink)
# Seconds for Hypothesis to shrink a fault and then for its numbers. The same output and class in other properties and
# dtypes gets fewer, or one wrong kernel would take the night.
FIRST, AGAIN = (30.0, 20.0), (4.0, 2.0)
# A turn may take longer than it should by this factor before it is cut.
PATIENCE = 1.3


class TurnDatabase(ExampleDatabase):
    """What a turn sees of the example database.

    A turn that fuzzes does not try again what is kept: it begins with the best of the cases that it steered by, which
    are nobody else's business. A kept example that fails as it should is not deleted for passing as known.
    """

    def __init__(
        self, kept: ExampleDatabase, own: ExampleDatabase, *, replays: bool, spared: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._kept = kept
        self._own = own
        self._replays = replays
        self._spared = spared

    def _of(self, key: bytes) -> ExampleDatabase:
        return self._own if key.endswith(PARETO) else self._kept

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Yield what the turn should begin with."""
        if self._replays or key.endswith(PARETO):
            yield from self._of(key).fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example."""
        self._of(key).save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example, unless its fault is known."""
        if not self._spared():
            self._of(key).delete(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Keep an example elsewhere."""
        self._of(src).move(src, dest, value)


class Worker:
    """Takes turns, one after the other."""

    def __init__(self, folder: Folder, run: Run) -> None:
        self._folder = folder
        self._run = run
        self._worker = worker = run.worker
        self._compiles = run.compiles.mark()
        self._session = SessionFile.read(folder.session)
        # Whoever comes first makes the file.
        self._dealt = folder.dealt(self._session.number, worker).open("a+")
        self._dealt.seek(0)
        self._cases = CaseFile(folder.cases(self._session.number, worker))
        self._combinations = Combinations()
        self._assignment: Assignment | None = None
        self._turn: Turn | None = None
        self._began = 0.0
        self._known: tuple[float, dict[str, Any]] = (0.0, {})
        self.raised: list[tuple[str, str]] = []

    def begin(self, nodeid: str) -> None:
        """Read what the next turn is.

        Raises:
            RuntimeError: it is of another test than the one that xdist runs.
        """
        line = self._dealt.readline()
        self._assignment = Assignment(**json.loads(line)) if line else None
        if self._assignment is None or self._assignment.nodeid != nodeid:
            raise RuntimeError(f"turn: {nodeid} is run, expected {line.strip() or 'nothing'}")
        self._began = time.monotonic()
        self._turn = None
        self.raised = []
        self._combinations.begin(nodeid)

    @property
    def late(self) -> bool:
        """Whether there is no time for this turn."""
        return self._began >= self._session.deadline

    def turn(self, examples_of: ItemDatabase) -> Turn:
        """Return how the harness is to draw.

        Args:
            examples_of: what is kept of this test.
        """
        assignment = self._assignment
        assert assignment is not None
        known = self._known_faults()
        shapes = {tuple(one) for one in known.get("shapes", ())}
        # What a file of the corpus holds is small as it is.
        again = (0.0, 0.0) if assignment.stage == "corpus" else AGAIN
        turn = Turn(
            seed=item_seed(self._run.seed, f"{assignment.stage} {assignment.nodeid}", assignment.number),
            examples=assignment.examples,
            until=min(self._began + PATIENCE * assignment.seconds, self._session.deadline),
            deadline=self._session.deadline,
            phases=REPLAY if assignment.stage == "replay" else FUZZ,
            known=frozenset(tuple(one) for one in known.get("known", {}).get(assignment.nodeid, ())),
            effort=lambda fault: again if fault in shapes else FIRST,
        )
        own = ItemDatabase(DirectoryBasedExampleDatabase(self._folder.pareto), assignment.nodeid)
        replays = assignment.stage == "replay"
        turn.database = TurnDatabase(examples_of, own, replays=replays, spared=lambda: turn.spared)
        head = head_of(*split(assignment.nodeid), self._worker)
        write, start = self._cases.write, self._session.before - self._session.began
        turn.on_judged = lambda ratio, worst, collisions: write(
            case_line(head, start + time.monotonic(), ratio, worst, collisions)
        )
        turn.on_case = self._combinations.note
        self._turn = turn
        return turn

    def _tell_classes(self) -> None:
        """Write down which input classes can be drawn: torch and the subject are loaded here, and nowhere above."""
        path = self._folder.state / "classes.json"
        if self._run.loaded is None or path.exists():
            return
        from properties.classes import REQUIRED  # noqa: PLC0415 - imports torch

        write_json(path, {"reachable": reachable(REQUIRED, self._run.loaded)})

    def _known_faults(self) -> dict[str, Any]:
        path: Path = self._folder.known
        changed = path.stat().st_mtime if path.exists() else 0.0
        if changed != self._known[0]:
            self._known = (changed, read_json(path) or {})
        return self._known[1]

    def close(self) -> None:
        """Take no more turns."""
        self._cases.close()
        self._dealt.close()

    def end(self) -> dict[str, Any]:
        """Return what the record of this turn says beside the harness' figures."""
        self._cases.flush()
        self._tell_classes()
        turn = self._turn
        compiled = self._run.compiles.since(self._compiles).kernels
        self._compiles = self._run.compiles.mark()
        return {
            "seconds": time.monotonic() - self._began,
            "new": list(self._combinations.end()),
            "raised": [list(one) for one in self.raised],
            "seen": [] if turn is None else [[*fault, count] for fault, count in turn.seen.items()],
            "met": [] if turn is None else [list(one) for one in sorted(turn.met)],
            "cut": turn is not None and turn.cut,
            "whole": turn is None or turn.whole,
            "compiles": [[kernel.name, round(kernel.seconds, 3)] for kernel in compiled],
        }
