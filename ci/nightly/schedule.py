"""The scheduler of xdist: hands out turns to the workers until the plan has no more.

A worker of xdist runs whatever index it is sent, as often as it is sent; and it begins a test only once it knows the
next one. So every worker has one turn waiting, and is told to end when there is none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.workermanage import WorkerController, parse_tx_spec_config

from .plan import Plan
from .turns import Assignment

# The present turn and the next one.
QUEUED = 2
# So many workers in a row that end before their first turn mean that none will ever begin one.
HOPELESS = 3


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A turn whose worker ended, and the seconds that it had run."""

    assignment: Assignment
    seconds: float


class TurnScheduling:
    """What xdist asks of a scheduler.

    Attributes:
        config: of the controller.
        log: of xdist.
        collection: node ids, the same in every worker.
        plan: decides on turns, once they are known.
        hopeless: why the session ends early, None while it goes on.
        lost: the last turn whose worker ended.
    """

    def __init__(
        self,
        config: pytest.Config,
        log: Producer,
        *,
        make_plan: Callable[[Sequence[str], int], Plan],
        dealt: Callable[[str], Path],
        tick: Callable[[], None],
    ) -> None:
        self.config = config
        self.log = log
        self.collection: list[str] | None = None
        self.plan: Plan | None = None
        self.hopeless: str | None = None
        self._make_plan = make_plan
        self._dealt = dealt
        self._tick = tick
        self._wanted = len(parse_tx_spec_config(config))
        self._collected: dict[WorkerController, list[str]] = {}
        self._pending: dict[WorkerController, deque[Assignment]] = {}
        self._ended: set[WorkerController] = set()
        self._lost_in_a_row = 0
        self._heard: set[WorkerController] = set()
        self._since: dict[WorkerController, float] = {}
        self.lost: Lost | None = None

    @property
    def nodes(self) -> list[WorkerController]:
        """All workers."""
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker has collected the tests."""
        return self.collection is not None or len(self._collected) >= self._wanted

    @property
    def tests_finished(self) -> bool:
        """Whether no worker has more than its last turn."""
        if self.hopeless is not None:
            return True
        if self.plan is None or not self._pending:
            return False
        return all(node in self._ended for node in self._pending)

    @property
    def has_pending(self) -> bool:
        """Whether any turn is still to be run."""
        return any(self._pending.values())

    def add_node(self, node: WorkerController) -> None:
        """Take on a worker."""
        self._pending[node] = deque()

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Take note of the tests that a worker has collected."""
        if self.collection is not None and list(collection) != self.collection:
            self.hopeless = f"{node.gateway.id} collected other tests than the workers before it"
            return
        self._collected[node] = list(collection)

    def schedule(self) -> None:
        """Give turns to workers that have none, the first time and whenever a worker was replaced."""
        if self.plan is None:
            collections = list(self._collected.values())
            if any(one != collections[0] for one in collections):
                self.hopeless = "the workers collected different tests"
                return
            self.collection = collections[0]
            self.plan = self._make_plan(self.collection, self._wanted)
        # In turn, so that the first worker does not get all of the corpus.
        for _ in range(QUEUED):
            for node in list(self._pending):
                if node in self._collected and len(self._pending[node]) < QUEUED:
                    self._give(node)

    def _give(self, node: WorkerController) -> None:
        if node in self._ended:
            return
        assert self.plan is not None
        assignment = self.plan.next()
        if assignment is None:
            # It then runs the turn that it has waiting, and ends.
            self._ended.add(node)
            node.shutdown()
            return
        self._pending[node].append(assignment)
        self._since.setdefault(node, time.monotonic())
        # Before the worker can look for it.
        with self._dealt(node.gateway.id).open("a") as file:
            file.write(assignment.to_json())
        node.send_runtest_some([assignment.index])

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float | None = None) -> None:
        """Take note that a worker is done with its turn, and give it another one."""
        del item_index, duration
        assert self.plan is not None
        if node not in self._heard:
            # Its worker had no time left for it.
            self.plan.give_back(self._pending[node].popleft())
        self._heard.discard(node)
        self._tick()
        self._give(node)

    def heard(self, node: WorkerController) -> Assignment:
        """Take note that the record of a worker's turn has come, and return the turn."""
        self._lost_in_a_row = 0
        self._since[node] = time.monotonic()
        self._heard.add(node)
        return self._pending[node].popleft()

    def remove_node(self, node: WorkerController) -> str | None:
        """Take note that a worker ended; return the test that it was at, None when it had ended its work."""
        pending = self._pending.pop(node)
        since = self._since.pop(node, time.monotonic())
        self._heard.discard(node)
        self._collected.pop(node, None)
        self._ended.discard(node)
        if not pending:
            self._lost()
            return None
        assert self.plan is not None
        self.lost = Lost(assignment=pending.popleft(), seconds=time.monotonic() - since)
        for assignment in reversed(pending):
            self.plan.give_back(assignment)
        return self.lost.assignment.nodeid

    def _lost(self) -> None:
        if self.plan is not None and self.plan.left() <= 0:
            return
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= HOPELESS * self._wanted:
            self.hopeless = f"{self._lost_in_a_row} workers ended before their first test"

    def mark_test_pending(self, item: str) -> None:
        """Part of the interface of xdist; no test is ever put back by name."""
        raise NotImplementedError(item)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        """Part of the interface of xdist; no test is ever asked back."""
        raise NotImplementedError(f"{node.gateway.id}: {list(indices)}")

    def __repr__(self) -> str:
        counts: dict[str, Any] = {node.gateway.id: len(pending) for node, pending in self._pending.items()}
        return f"TurnScheduling({counts})"
