"""A worker process: takes mutants and controls from a pipe, hunts them, and tells what it found.

Importing this module imports no torch: the process must be able to choose its GPU first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .mutant import Control, Mutant
from .results import Attempt, settled

if TYPE_CHECKING:
    from properties.subject import Subject

# Called with the number of the case that begins, None for a candidate of the minimiser.
Beat = Callable[[int | None], None]
# Candidates are told at most once in so many seconds.
BEAT_SECONDS = 1.0
DONE = ("done",)
# The device no longer answers, and will not answer anything else in this process.
LOST = ("lost",)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is asked to do.

    Attributes:
        subject: whom to hunt.
        seeds: one hunt for each, in this order, until the others can change nothing.
        minimise_seconds: time to make the failing case of the first seed smaller.
        cases: of a control, for each seed.
        rounds: of the schedule, for a mutant.
        before: attempts of a worker that did not come to the end.
    """

    subject: Mutant | Control
    seeds: tuple[int, ...]
    minimise_seconds: float = 0.0
    cases: int = 0
    rounds: int = 0
    before: tuple[Attempt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a worker runs.

    Attributes:
        device: "cuda" or "cpu".
        gpu: what CUDA_VISIBLE_DEVICES calls its GPU, "" for none in particular.
        memory: MiB that it may take, None for no limit.
        log: file for what it and its mutants print.
        root: folder that the packages are imported from.
    """

    device: str
    gpu: str
    memory: int | None
    log: Path
    root: Path


def serve(connection: Connection, place: Place) -> None:
    """Work until there is no more work: the whole life of a worker.

    It sends ("ready",) once, ("seed", number) before each hunt, ("beat", number of the case or None) while it gets on,
    ("attempt", Attempt) after each hunt, ("done",) after each job; ("lost",) before it gives up a device, and
    ("failed", text) when the harness itself is at fault.

    Args:
        connection: jobs come in, None for the last; messages go out.
        place: where to run.
    """
    _redirect(place.log)
    if place.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = place.gpu
    if str(place.root) not in sys.path:
        sys.path.insert(0, str(place.root))
    try:
        _settle(place)
        connection.send(("ready",))
        while (job := connection.recv()) is not None:
            for message in _messages(job, place.device, _beat(connection)):
                connection.send(message)
                if message == LOST:
                    return
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception:
        with contextlib.suppress(OSError):
            connection.send(("failed", traceback.format_exc()))


def _messages(job: Job, device: str, beat: Beat) -> Iterator[tuple[Any, ...]]:
    """Yield what a worker tells of one job: its seeds and attempts, and how it ended.

    The subject is imported once for all seeds, so that they share its compiled kernels.

    Args:
        job: whom to hunt, and how.
        device: "cuda" or "cpu".
        beat: called before each case, with its number.
    """
    attempts = list(job.before)
    begun = {attempt.seed for attempt in attempts}
    seeds = [seed for seed in job.seeds if seed not in begun]
    # Whoever dies while it is imported dies of the first seed.
    yield "seed", seeds[0]
    with contextlib.ExitStack() as stack:
        try:
            subject = stack.enter_context(_built(job.subject, device))
            problem = stillborn(subject, job.subject, device)
        except Exception as error:
            # Whatever an edit does to the import of its module.
            problem = error
        if problem is not None:
            yield "attempt", _stillborn(seeds[0], problem)
            yield DONE
            return
        if not _alive(device):
            headline = "the device no longer answers after a simple call"
            yield "attempt", Attempt(seed=seeds[0], outcome="killed", kind="crash", headline=headline)
            yield LOST
            return
        for seed in seeds:
            if settled(attempts, len(job.seeds)):
                break
            yield "seed", seed
            attempt = attempt_one(job, subject, seed, device, beat=beat)
            lost = not _alive(device)
            if lost:
                # No candidate of the minimiser can have passed.
                attempt = replace(attempt, outcome="killed", kind="crash", size=None)
            attempts.append(attempt)
            yield "attempt", attempt
            if lost:
                yield LOST
                return
    yield DONE


def attempt_one(job: Job, subject: Subject, seed: int, device: str, *, beat: Beat) -> Attempt:
    """Hunt a mutant or a control with one seed.

    Args:
        job: how.
        subject: the mutant or the control.
        seed: of every draw.
        device: "cuda" or "cpu".
        beat: called before each case, with its number.
    """
    import torch  # noqa: PLC0415

    from properties.probe import informed  # noqa: PLC0415

    from .hunter import Hunt  # noqa: PLC0415 - imports torch and triton

    subject = informed(subject, torch.device(device))
    if isinstance(job.subject, Control):
        return Hunt(subject=subject, device=device, seed=seed, beat=beat).run_cases(job.cases)
    seconds = job.minimise_seconds if seed == job.seeds[0] else 0.0
    hunt = Hunt(subject=subject, device=device, seed=seed, beat=beat, minimise_seconds=seconds)
    return hunt.run(rounds=job.rounds, corpus=job.rounds > 0)


@contextlib.contextmanager
def _built(subject: Mutant | Control, device: str) -> Iterator[Subject]:
    if isinstance(subject, Control):
        from .controls import built  # noqa: PLC0415

        with built(subject, device=device) as control:
            yield control
        return
    from .package import mutated  # noqa: PLC0415

    with mutated(subject, device=device) as mutant:
        yield mutant


def _stillborn(seed: int, error: BaseException) -> Attempt:
    headline = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return Attempt(seed=seed, outcome="stillborn", kind="does not compile", headline=headline[:200])


def stillborn(subject: Subject, source: Mutant | Control, device: str) -> Exception | None:
    """Return how a simple call fails to compile, None when it compiles, whatever else it does.

    Args:
        subject: the mutant or control.
        source: what was edited decides which kernels are asked for.
        device: "cuda" or "cpu".
    """
    import torch  # noqa: PLC0415

    from properties.cells import CELLS  # noqa: PLC0415
    from properties.recipe import Recipe  # noqa: PLC0415

    from .hunter import is_compile_error  # noqa: PLC0415

    inputs = Recipe(cell=CELLS[1], batch=2, queries=3, levels=((2, 3), (1, 1)), points=2, channels=40).build(
        torch.device(device)
    )
    modes = ["not_guaranteed"]
    if any(edit.file.startswith("ordered") for edit in source.edits):
        modes.append("run_to_run")
    for mode in modes:
        try:
            subject.with_determinism(mode).observe(inputs)  # type: ignore[arg-type]  # both are words that it declares
        except Exception as error:
            if is_compile_error(error):
                return error
    return None


def _settle(place: Place) -> None:
    """Import everything, once; create the context of a GPU; limit the memory."""
    import torch  # noqa: PLC0415

    from properties import budget, profiles  # noqa: PLC0415

    profiles.load(profiles.PROFILES["ci"])
    torch.set_num_threads(1)
    if place.device == "cuda":
        torch.zeros(1, device="cuda").item()
        if place.memory is not None:
            budget.cap_gpu(place.memory)
    elif place.memory is not None:
        budget.cap_host(place.memory)


def _alive(device: str) -> bool:
    """Whether the device still answers: after an illegal access it does so no more."""
    if device != "cuda":
        return True
    import torch  # noqa: PLC0415

    try:
        torch.cuda.synchronize()
        return bool((torch.ones(1, device="cuda") + 1.0).item() == 2.0)
    except RuntimeError:
        return False


def _beat(connection: Connection) -> Beat:
    last = time.monotonic()

    def beat(cases: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if cases is not None or now - last >= BEAT_SECONDS:
            last = now
            connection.send(("beat", cases))

    return beat


def _redirect(log: Path) -> None:
    """Send what is printed to a file: a mutant's warnings are no part of the report."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
