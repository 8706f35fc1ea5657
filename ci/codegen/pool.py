"""Runs jobs in worker processes, as many at once as there are cores."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
# Kernels that a worker is given at once: a disassembler started for each of them would take a third of the time.
JOB_SIZE = 8


class CouldNotRun(RuntimeError):  # noqa: N818 - reads as a sentence
    """Nothing is known about the kernels: no worker starts, or this Triton lacks an architecture."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is given at once.

    Attributes:
        architecture: name.
        names: of specialisations.
    """

    architecture: str
    names: tuple[str, ...]


Done = Callable[[Job, Sequence[Mapping[str, Any]]], None]


def jobs(names: Mapping[str, Sequence[str]], *, workers: int) -> list[Job]:
    """Divide the names of each architecture among jobs, of which there are some for every worker if possible."""
    size = max(1, min(JOB_SIZE, sum(map(len, names.values())) // workers))
    return [
        Job(architecture=architecture, names=tuple(some[i : i + size]))
        for architecture, some in names.items()
        for i in range(0, len(some), size)
    ]


def environment(cache: Path) -> dict[str, str]:
    """The environment of a worker: this one, but for what would change what is compiled.

    Args:
        cache: folder of Triton's cache.
    """
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return kept | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": path}


def run(todo: Sequence[Job], done: Done, *, workers: int, cache: Path) -> None:
    """Run all jobs.

    Args:
        todo: jobs, in the order in which they are begun.
        done: called in this thread with each job and the results of its names.
        workers: processes.
        cache: folder of Triton's cache.

    Raises:
        CouldNotRun: a worker does not start, or cannot compile for an architecture.
    """
    waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    for job in todo:
        waiting.put(job)
    answers: queue.SimpleQueue[tuple[Job, Any]] = queue.SimpleQueue()
    started = min(workers, len(todo))
    living: list[_Worker] = []
    try:
        for _ in range(started):
            waiting.put(None)
            living.append(_Worker(waiting, answers, environment(cache)))
        for _ in todo:
            job, answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            if "unavailable" in answer:
                raise CouldNotRun(answer["unavailable"])
            done(job, answer["results"])
    finally:
        for worker in living:
            worker.end()


class _Worker:
    """A process and the thread that talks to it."""

    def __init__(self, waiting: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any], env: dict[str, str]) -> None:
        self._waiting = waiting
        self._answers = answers
        self._environment = env
        self._process: subprocess.Popen[str] | None = None
        self._ended = False
        self._log = TemporaryFile("w+")  # noqa: SIM115 - as long as the worker
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._ended = True
        if self._process is not None:
            self._process.kill()
        self._thread.join()
        if self._process is not None:
            self._process.communicate()
        self._log.close()

    def _work(self) -> None:
        while not self._ended and (job := self._waiting.get()) is not None:
            try:
                self._answers.put((job, self._ask(job)))
            except (CouldNotRun, OSError, ValueError) as error:
                self._answers.put((job, error))
                return

    def _ask(self, job: Job) -> dict[str, Any]:
        answer = self._try(job)
        if answer is not None or self._ended:
            return answer or {"results": []}
        if len(job.names) == 1:
            return {"results": [{"failed": f"does not compile: the compiler ended its process: {self._last_words()}"}]}
        # The compiler took the process with it. Over which of the kernels was it?
        results = []
        for name in job.names:
            one = self._ask(Job(architecture=job.architecture, names=(name,)))
            if "results" not in one:
                return one
            results += one["results"]
        return {"results": results}

    def _try(self, job: Job) -> dict[str, Any] | None:
        """The answer to a job, None from a process that ends over it."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"architecture": job.architecture, "names": job.names}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        process.communicate()
        self._process = None
        return None

    def _start(self) -> subprocess.Popen[str]:
        self._log.seek(0)
        self._log.truncate()
        process = subprocess.Popen(
            [sys.executable, "-m", "ci.codegen.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._environment,
        )
        self._process = process
        assert process.stdout is not None
        if not process.stdout.readline() and not self._ended:
            raise CouldNotRun(f"worker: it does not start: {self._last_words()}")
        return process

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1].strip() if lines else "it printed nothing"
