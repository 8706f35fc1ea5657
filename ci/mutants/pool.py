"""The worker processes: jobs go out, attempts come in; a worker that dies or overruns is replaced.

Without a GPU every job gets a process of its own, forked from a server that has imported everything and run nothing:
what one mutant writes out of bounds cannot reach the next. A process that uses a GPU cannot be forked so, and takes
seconds to start; it lives until a mutant ends it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from properties import budget
from properties.devices import Device

from .results import Attempt, settled
from .worker import Job, Place, serve

# Without a word from a worker: one case takes a second or two, the slowest of the corpus ten, a first case on a GPU
# compiles for some more. Without a GPU the worker's own time counts: it may share its core with many.
HANG_SECONDS = {"cpu": 60.0, "cuda": 120.0}
# What does not even use its core is stuck as well.
WALL_FACTOR = 20.0
START_SECONDS = 300.0
POLL_SECONDS = 0.5
PRELOAD = ("ci.mutants.preload",)
ROOT = Path(__file__).resolve().parent.parent.parent

Done = Callable[[int, tuple[Attempt, ...]], None]


class WorkerFailed(RuntimeError):  # noqa: N818 - reads as a sentence
    """The harness itself failed in a worker, or none could be started; that says nothing about a mutant."""


@dataclass(kw_only=True, eq=False)
class _Worker:
    """One process and what it is doing."""

    process: Any
    connection: Connection
    number: int
    heard: float = field(default_factory=time.monotonic)
    worked: float = 0.0
    ready: bool = False
    job: int | None = None
    seed: int | None = None
    cases: int = 0
    log: Path


class Pool:
    """Runs jobs in worker processes.

    Attributes:
        device: where.
        workers: how many at once.
        hang_seconds: silence after which a worker is ended.
    """

    def __init__(self, device: Device, workers: int, *, hang_seconds: float | None = None) -> None:
        self.device = device
        self.workers = workers
        self.hang_seconds = HANG_SECONDS[device.type] if hang_seconds is None else hang_seconds
        self._forks = device.type == "cpu"
        self._context: BaseContext = multiprocessing.get_context("forkserver" if self._forks else "spawn")
        if self._forks:
            multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        """Run all jobs.

        Args:
            jobs: in the order in which they are begun.
            done: called with the number of each job and its attempts, as soon as it is finished.

        Raises:
            WorkerFailed: a worker could not start, or the harness raised in it.
        """
        with TemporaryDirectory(prefix="msda-mutants-") as folder:
            _Run(self, jobs, done, Path(folder)).run()

    def start(self, number: int, folder: Path) -> _Worker:
        """Start one worker."""
        here, there = self._context.Pipe()
        gpu = self.device.gpu_of(number) if self.device.type == "cuda" else None
        memory = budget.host_share(self.workers) if self._forks else self.device.share(gpu, self.workers)
        log = folder / f"worker-{number}.log"
        place = Place(device=self.device.type, gpu=gpu.id if gpu else "", memory=memory, log=log, root=ROOT)
        process = self._context.Process(target=serve, args=(there, place), daemon=True)  # type: ignore[attr-defined]
        process.start()
        there.close()
        return _Worker(process=process, connection=here, number=number, log=log)

    @property
    def one_job_each(self) -> bool:
        """Whether a worker is given one job alone."""
        return self._forks


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process so far, None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class _Run:
    """One call of `Pool.run`."""

    def __init__(self, pool: Pool, jobs: Sequence[Job], done: Done, folder: Path) -> None:
        self.pool = pool
        self.jobs = jobs
        self.done = done
        self.folder = folder
        self.waiting = deque(range(len(jobs)))
        self.attempts: dict[int, list[Attempt]] = {number: [] for number in self.waiting}
        self.open = len(jobs)
        self.workers: list[_Worker] = []

    def run(self) -> None:
        try:
            while self.open:
                self._fill()
                self._listen()
        finally:
            for worker in self.workers:
                self._end(worker)

    def _fill(self) -> None:
        numbers = set(range(self.pool.workers)) - {worker.number for worker in self.workers}
        # Jobs that a starting worker will take are not waiting for another one.
        idle = sum(worker.job is None for worker in self.workers)
        for number in sorted(numbers)[: max(0, len(self.waiting) - idle)]:
            self.workers.append(self.pool.start(number, self.folder))

    def _listen(self) -> None:
        by_connection = {worker.connection: worker for worker in self.workers}
        for connection in connections.wait(list(by_connection), timeout=POLL_SECONDS):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                while worker in self.workers and worker.connection.poll():
                    self._hear(worker, worker.connection.recv())
            except (EOFError, OSError):
                if worker in self.workers:
                    self._lost(worker, "crash")
        now = time.monotonic()
        for worker in list(self.workers):
            silence = now - worker.heard
            if not worker.ready:
                overruns = silence > START_SECONDS
            else:
                overruns = (
                    worker.job is not None and silence > self.pool.hang_seconds and self._works_on(worker, silence)
                )
            if overruns:
                self._lost(worker, "timeout")

    def _works_on(self, worker: _Worker, silence: float) -> bool:
        """Whether a silent worker has had the time that it is given."""
        used = cpu_seconds(worker.process.pid) if self.pool.device.type == "cpu" else None
        if used is None:
            return True
        return used - worker.worked > self.pool.hang_seconds or silence > WALL_FACTOR * self.pool.hang_seconds

    def _hear(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        worker.heard = time.monotonic()
        worker.worked = cpu_seconds(worker.process.pid) or 0.0
        word = message[0]
        if word == "ready":
            worker.ready = True
            self._give(worker)
        elif word == "seed":
            worker.seed = message[1]
            worker.cases = 0
        elif word == "beat":
            worker.cases = message[1] or worker.cases
        elif word == "attempt":
            assert worker.job is not None
            self.attempts[worker.job].append(message[1])
            worker.seed = None
        elif word == "done":
            assert worker.job is not None
            self._finish(worker.job)
            worker.job = None
            if self.pool.one_job_each:
                self._retire(worker)
            else:
                self._give(worker)
        elif word == "failed":
            raise WorkerFailed(f"a worker failed{self._about(worker)}:\n{message[1]}")

    def _give(self, worker: _Worker) -> None:
        if not self.waiting:
            self._retire(worker)
            return
        number = self.waiting.popleft()
        job = self.jobs[number]
        worker.job = number
        worker.connection.send(replace(job, before=tuple(self.attempts[number])))

    def _lost(self, worker: _Worker, kind: str) -> None:
        """Take note of a worker that died or was silent for too long."""
        job, seed = worker.job, worker.seed
        about = self._about(worker)
        ready = worker.ready
        self._end(worker)
        self.workers.remove(worker)
        if job is None:
            if not ready:
                text = worker.log.read_text(errors="replace")[-2000:] if worker.log.exists() else ""
                raise WorkerFailed(f"a worker could not start ({kind}){about}\n{text}")
            return
        if seed is not None:
            headline = f"no word for {self.pool.hang_seconds:.0f} s" if kind == "timeout" else self._exit(worker)
            self.attempts[job].append(
                Attempt(seed=seed, outcome="killed", kind=kind, headline=headline, examples=worker.cases)
            )
        if settled(self.attempts[job], len(self.jobs[job].seeds)):
            self._finish(job)
        else:
            self.waiting.appendleft(job)

    def _finish(self, number: int) -> None:
        self.open -= 1
        self.done(number, tuple(self.attempts[number]))

    def _retire(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        self._end(worker)

    def _exit(self, worker: _Worker) -> str:
        code = worker.process.exitcode
        return f"the process ended by signal {-code}" if code and code < 0 else f"the process ended with status {code}"

    def _about(self, worker: _Worker) -> str:
        return "" if worker.job is None else f" on {self.jobs[worker.job].subject.name!r}"

    @staticmethod
    def _end(worker: _Worker) -> None:
        # It has nothing to put in order, and one that is at work would finish its job first.
        worker.process.kill()
        worker.process.join(10.0)
        worker.connection.close()
