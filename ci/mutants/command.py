"""`python -m ci mutants`: the fault-detection score of the properties, measured.

Exit status 0: every mutant that can run here and is not proven equivalent is killed, and no control alarms. 1: one
survives, or one alarms. 2: could not be run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from properties import devices, gather
from properties.failures import started_in

from . import mechanical, report, schedule
from .cache import FOLDER, Cache, digest_of_sources
from .controls import CONTROLS
from .mutant import Control, Mutant
from .pool import Pool, WorkerFailed
from .results import Attempt, Row, Score, settled
from .worker import Job
from .zoo import MUTANTS, matching

SEEDS = 3
MINIMISE_SECONDS = 3.0
CONTROL_CASES = {"cpu": 60, "cuda": 600}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--list", action="store_true", help="print all names and do nothing")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="these mutants, or controls, alone; a glob, may be repeated",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    parser.add_argument("--seeds", type=_positive, metavar="N", help=f"hunts per mutant: {SEEDS}, 1 with --mechanical")
    parser.add_argument("--workers", type=_positive, metavar="N", help="processes; default: by cores, or GPU memory")
    parser.add_argument("--controls", action="store_true", help="run the right operators alone")
    parser.add_argument(
        "--cases",
        type=_positive,
        metavar="N",
        help="per control: {cpu} on the CPU, {cuda} on a GPU".format(**CONTROL_CASES),
    )
    parser.add_argument("--mechanical", type=_positive, metavar="N", help="mutate the kernels by rule: a sample of N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of that sample, and of the first hunt: 0")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON to this file")
    parser.add_argument("--fresh", action="store_true", help=f"do not read what is known already in {FOLDER.name}")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} given, expected 1 or more")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one call of the command is to do.

    Attributes:
        mutants: wrong operators.
        controls: right ones.
        seeds: of the hunts of a mutant.
        cases: of a control.
        edits: what a mutant changes, by name, where its name does not say it.
        rounds: of the schedule, for every mutant.
    """

    mutants: Sequence[Mutant]
    controls: Sequence[Control]
    seeds: tuple[int, ...]
    cases: int
    edits: dict[str, str]
    rounds: int


def run(
    options: argparse.Namespace,
    *,
    zoo: Sequence[Mutant] = MUTANTS,
    controls: Sequence[Control] = CONTROLS,
    rounds: int = schedule.ROUNDS,
    hang_seconds: float | None = None,
    known: Path = FOLDER,
) -> int:
    """Measure, and return the exit status.

    Args:
        options: of the command line.
        zoo: mutants.
        controls: right operators.
        rounds: of the schedule, for every mutant.
        hang_seconds: silence after which a worker is ended.
        known: folder of the attempts that are known already.
    """
    to = report.console()
    try:
        if options.list:
            sys.stdout.write(report.listing(zoo, controls) + "\n")
            return 0
        device = devices.choose(options.device)
        if device.type == "cpu":
            devices.prepare_interpreter()
        plan = make_plan(options, device.type, zoo=zoo, controls=controls, rounds=rounds)
        workers = options.workers or device.workers(devices.cores())
        pool = Pool(device, workers, hang_seconds=hang_seconds)
        header = {
            "device": device.type,
            "device_name": str(device),
            "versions": gather.versions(),
            "seeds": list(plan.seeds),
            "workers": workers,
            "mechanical": options.mechanical,
            "sample_seed": options.seed,
            "cases_per_control": plan.cases,
        }
        context = {key: header[key] for key in ("device", "device_name", "versions")}
        cache = Cache(
            {**context, "sources": digest_of_sources()},
            folder=known,
            enabled=not options.fresh,
        )
        to.print(
            f"{device}; {workers} worker{'s' if workers > 1 else ''}; seeds {', '.join(map(str, plan.seeds))}",
            soft_wrap=True,
        )
        mutants = measure(plan, pool, cache, to)
        judged = measure_controls(plan, pool, cache, to)
    except (OSError, ValueError, WorkerFailed) as error:
        sys.stderr.write(f"mutants: error: {error}\n")
        return 2
    status = status_of(mutants, judged)
    if mutants:
        report.tell(to, mutants)
    if judged:
        alarms = sum(row.standing == "killed" for row in judged)
        ran = [row for row in judged if not row.not_run]
        cases = sum(attempt.examples for row in ran for attempt in row.attempts)
        seconds = sum(row.seconds for row in ran)
        to.print(
            f"controls: {len(ran)} of {len(judged)} ran, {cases} cases, {alarms} false alarms; {seconds:.0f} s of CPU",
            style="bold",
        )
    if options.json:
        try:
            target = started_in(Path.cwd()) / options.json
            report.write_json(target, report.as_json(header, mutants, judged, status=status))
        except OSError as error:
            sys.stderr.write(f"mutants: error: json: {error}\n")
            return 2
    return status


def make_plan(
    options: argparse.Namespace,
    device: str,
    *,
    zoo: Sequence[Mutant] = MUTANTS,
    controls: Sequence[Control] = CONTROLS,
    rounds: int = schedule.ROUNDS,
) -> Plan:
    """Decide what to run.

    Args:
        options: of the command line.
        device: "cuda" or "cpu".
        zoo: mutants.
        controls: right operators.
        rounds: of the schedule.

    Raises:
        ValueError: the options do not go together, or name nothing.
    """
    other = next((name for name in ("controls", "only") if getattr(options, name)), None)
    if options.mechanical and other:
        raise ValueError(f"--mechanical and --{other} given, expected one of them")
    mutants: Sequence[Mutant] = [] if options.controls else matching(options.only, zoo)
    if options.controls:
        controls = matching(options.only, controls)
    edits: dict[str, str] = {}
    if options.mechanical:
        sample = mechanical.sample(options.mechanical, seed=options.seed)
        mutants = [one.mutant for one in sample]
        edits = {one.mutant.name: one.diff for one in sample}
    seeds = options.seeds or (1 if options.mechanical else SEEDS)
    return Plan(
        mutants=mutants,
        controls=controls if options.controls or not (options.mechanical or options.only) else [],
        seeds=tuple(range(options.seed, options.seed + seeds)),
        cases=options.cases or CONTROL_CASES[device],
        edits=edits,
        rounds=rounds,
    )


def measure(plan: Plan, pool: Pool, cache: Cache, to: Console) -> list[Row]:
    """Hunt all mutants of a plan and return their rows in its order."""

    def jobs_of(mutant: Mutant) -> list[Job]:
        # A proof is not put to the vote: it is run, and shown.
        seeds = plan.seeds[:1] if mutant.equivalent else plan.seeds
        seconds = 0.0 if plan.edits else MINIMISE_SECONDS
        return [Job(subject=mutant, seeds=seeds, minimise_seconds=seconds, rounds=plan.rounds)]

    def row_of(mutant: Mutant, attempts: tuple[Attempt, ...], **more: Any) -> Row:
        edit = plan.edits.get(mutant.name, "")
        return Row(
            name=mutant.name,
            family=mutant.family,
            attempts=attempts,
            equivalent=mutant.equivalent,
            explanation=mutant.explanation,
            edit=edit,
            **more,
        )

    return _measure(plan.mutants, jobs_of, row_of, pool, cache, to, "mutants")


def measure_controls(plan: Plan, pool: Pool, cache: Cache, to: Console) -> list[Row]:
    """Run all controls of a plan and return their rows in its order."""
    rounds = schedule.rounds_for(plan.cases)

    def jobs_of(control: Control) -> list[Job]:
        # A round is as much as one worker should be given at a time: all of them have something to do until the end.
        seeds = range(plan.seeds[0], plan.seeds[0] + rounds)
        return [Job(subject=control, seeds=(seed,), cases=-(-plan.cases // rounds)) for seed in seeds]

    def row_of(control: Control, attempts: tuple[Attempt, ...], **more: Any) -> Row:
        return Row(name=control.name, family="control", attempts=attempts, **more)

    return _measure(plan.controls, jobs_of, row_of, pool, cache, to, "controls")


def _measure(
    subjects: Sequence[Any],
    jobs_of: Callable[[Any], list[Job]],
    row_of: Callable[..., Row],
    pool: Pool,
    cache: Cache,
    to: Console,
    title: str,
) -> list[Row]:
    rows: dict[int, Row] = {}
    parts: list[dict[int, tuple[Attempt, ...]]] = [{} for _ in subjects]
    waiting: list[tuple[int, int, Job]] = []

    def come_in(place: int, part: int, attempts: tuple[Attempt, ...], *, of: int, **more: Any) -> None:
        parts[place][part] = attempts
        if len(parts[place]) == of:
            whole = tuple(attempt for part in range(of) for attempt in parts[place][part])
            rows[place] = row_of(subjects[place], whole, **more)
            watch.finished(rows[place])

    with report.Watch(to, len(subjects), title) as watch:
        jobs_by_place = [jobs_of(subject) for subject in subjects]
        for place, subject in enumerate(subjects):
            if subject.needs_gpu and pool.device.type == "cpu":
                rows[place] = row_of(subject, (), not_run=subject.needs_gpu)
                watch.finished(rows[place])
                continue
            jobs = jobs_by_place[place]
            known = [_known(job, cache) for job in jobs]
            for part, (job, attempts) in enumerate(zip(jobs, known, strict=True)):
                if attempts is None:
                    waiting.append((place, part, job))
                else:
                    come_in(place, part, attempts, of=len(jobs), cached=None not in known)

        def done(number: int, attempts: tuple[Attempt, ...]) -> None:
            place, part, job = waiting[number]
            for attempt in attempts:
                cache.put(_key(cache, job, attempt.seed), attempt)
            come_in(place, part, attempts, of=len(jobs_by_place[place]))

        if waiting:
            pool.run([job for _, _, job in waiting], done)
    return [rows[place] for place in range(len(subjects))]


def _key(cache: Cache, job: Job, seed: int) -> str:
    minimise = job.minimise_seconds if seed == job.seeds[0] else 0.0
    return cache.key(job.subject, seed=seed, minimise=minimise, cases=job.cases, rounds=job.rounds)


def _known(job: Job, cache: Cache) -> tuple[Attempt, ...] | None:
    attempts: list[Attempt] = []
    for seed in job.seeds:
        if settled(attempts, len(job.seeds)):
            break
        attempt = cache.get(_key(cache, job, seed))
        if attempt is None:
            return None
        attempts.append(attempt)
    return tuple(attempts)


def status_of(mutants: Sequence[Row], controls: Sequence[Row]) -> int:
    """Return 0 when every mutant is killed that should be and no control alarms, else 1."""
    score = Score.of(mutants)
    # A control that does not even compile is none.
    alarms = any(row.standing in ("killed", "stillborn") for row in controls)
    hand_written_stillborn = any(row.standing == "stillborn" and row.family != "mechanical" for row in mutants)
    return int(bool(score.counts["survived"]) or bool(score.contradicted) or alarms or hand_written_stillborn)
