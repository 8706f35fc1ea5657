"""The zoo applies to the source; killed, survived, stillborn, crashed and stuck mutants are told apart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from ci.mutants import command, mechanical, schedule, worker
from ci.mutants.cache import Cache
from ci.mutants.controls import CONTROLS
from ci.mutants.hunter import Tally
from ci.mutants.mutant import Control, Edit, Family, Mutant, edited_sources, identifier, one_edit
from ci.mutants.pool import Pool
from ci.mutants.results import Attempt, Outcome, Row, Score, Size, settled
from ci.mutants.zoo import MUTANTS, matching, named
from properties.devices import Device
from properties.variants import variants

LAUNCH = "    start(getattr(kernels, kernel), plan.programs"


def told(name: str, after: str, *, before: str = LAUNCH, file: str = "launch.py") -> Mutant:
    """A mutant of one edit of the launch."""
    return one_edit(name, "argument handling", before, after, file=file)


ABORTS = told("aborts", f"    __import__('os').abort()\n{LAUNCH}")
STUCK = told("is stuck", f"    while True:\n        pass\n{LAUNCH}")
NO_IMPORT = told("cannot be imported", "kernels.", before="import contextlib\n")
NO_COMPILE = told("does not compile", "x = nobody", before="x = position.to(COMPUTE) * extent - 0.5", file="kernels.py")
SAME = told("changes nothing", f"    # nothing\n{LAUNCH}")
ALL: list[Mutant | Control] = [*MUTANTS, *CONTROLS]
KILLED = named("half-pixel constant missing")


def run(arguments: list[str], tmp_path: Path, device: str, **how) -> tuple[int, dict]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    target = tmp_path / "result.json"
    options = parser.parse_args([*arguments, "--device", device, "--workers", "1", "--json", str(target)])
    status = command.run(options, known=tmp_path / "known", **{"controls": (), "rounds": 0, **how})
    return status, json.loads(target.read_text()) if target.exists() else {}


# ---------------------------------------------------------------- the zoo


def sources_of(subject: Mutant | Control) -> dict[str, str]:
    variant = subject.variant if isinstance(subject, Mutant) else ()
    return edited_sources((*subject.edits, *variant), subject.name)


@pytest.mark.parametrize("subject", ALL, ids=[subject.name for subject in ALL])
def test_every_edit_applies_and_is_python(subject: Mutant | Control):
    for file, source in sources_of(subject).items():
        compile(source, file, "exec")


def test_names_are_unique_as_written_and_as_modules():
    for subjects in (MUTANTS, CONTROLS):
        names = [subject.name for subject in subjects]
        assert len({identifier(name) for name in names}) == len(names)


def test_there_are_enough_of_all_families():
    assert len(MUTANTS) >= 80
    assert len(CONTROLS) >= 15
    assert {mutant.family for mutant in MUTANTS} == set(get_args(Family)) - {"mechanical"}


def test_an_edit_that_does_not_apply_says_so():
    with pytest.raises(
        ValueError, match=r"mutant 'gone': 'no such text' stands 0 times in msda/kernels.py, expected at"
    ):
        Edit(before="no such text", after="").apply("source", "gone")
    with pytest.raises(ValueError, match="is replaced by itself"):
        Edit(before="source", after="source").apply("source", "same")


def test_edits_of_one_file_add_up():
    edits = (Edit(before="import triton\n", after="import triton  # once\n"), Edit(before="# once", after="# twice"))
    assert "import triton  # twice\n" in edited_sources(edits, "both")["kernels.py"]


def test_globs_choose_mutants():
    assert [mutant.name for mutant in matching(["half-pixel*"], MUTANTS)] == ["half-pixel constant missing"]
    assert matching([], MUTANTS) == MUTANTS
    with pytest.raises(ValueError, match=r"only: 'nothing\*' matches none"):
        matching(["nothing*"], MUTANTS)


# ---------------------------------------------------------------- the schedule


def test_every_turn_names_a_property_that_takes_a_harness():
    for turn in (*schedule.TURNS, schedule.CORPUS):
        function = turn.load()
        assert "harness" in function.__annotations__, turn
        # Whatever it is parametrised with is found.
        ((_, first), *_) = variants(function)
        assert first.keys() == function.__annotations__.keys() - {"harness", "return"}, turn


def test_every_property_has_a_turn():
    modules = sorted((Path(command.__file__).parents[2] / "properties").glob("test_*.py"))
    scheduled = {(turn.module, turn.function) for turn in (*schedule.TURNS, schedule.CORPUS)}
    for path in modules:
        for line in path.read_text().splitlines():
            if line.startswith("def test_") and "harness: Harness" in line:
                name = line.removeprefix("def ").partition("(")[0]
                assert (path.stem, name) in scheduled, f"{path.stem}.{name} has no turn in ci/mutants/schedule.py"


def test_rounds_go_through_the_cells_of_a_property():
    function = schedule.TURNS[0].load()
    chosen = [schedule.variant_of(function, 0, number, lambda *_: None) for number in range(len(schedule.CELLS))]
    assert [one["cell"].name for one in chosen if one] == list(schedule.CELLS)
    assert schedule.variant_of(function, 0, 0, lambda *_: "refused") is None


@pytest.mark.parametrize("taken", [1.0, 0.7])
@pytest.mark.parametrize("cases", [1, 60, 600, 10_000])
def test_controls_get_the_cases_asked_for(cases: int, taken: float):
    one_round = sum(turn.examples for turn in schedule.TURNS)
    special = sum(turn.examples for turn in schedule.TURNS if not turn.general)
    tally, given_to_special, seen = Tally(), 0, []
    for turn, examples in schedule.shares(lambda: tally.judged, cases):
        seen.append(turn)
        # Some properties take fewer than they are given, the most general one never does.
        tally.judged += examples if turn is schedule.TURNS[0] else int(examples * taken)
        given_to_special += 0 if turn.general else examples
    assert sorted(seen, key=schedule.TURNS.index) == list(schedule.TURNS)
    assert cases <= tally.judged < cases + one_round + len(schedule.TURNS)
    assert given_to_special == special


@pytest.mark.parametrize(("cases", "rounds"), [(1, 1), (60, 1), (600, 5), (10_000, 10)])
def test_controls_go_through_the_cells(cases: int, rounds: int, tmp_path):
    options = argparse.Namespace(controls=True, only=[], mechanical=None, seeds=2, seed=5, cases=cases)
    plan = command.make_plan(options, "cpu")
    given = []

    class Alarm(Pool):
        def __init__(self) -> None:
            self.device = Device(type="cuda")

        def run(self, jobs, done):
            given.extend(jobs)
            for number, job in enumerate(jobs):
                outcome: Outcome = "killed" if number == 0 else "survived"
                done(number, (Attempt(seed=job.seeds[0], outcome=outcome, examples=job.cases),))

    rows = command.measure_controls(plan, Alarm(), Cache({}, folder=tmp_path), Console(quiet=True))
    assert [(row.name, len(row.attempts)) for row in rows] == [(one.name, rounds) for one in CONTROLS]
    assert [job.seeds for job in given[:rounds]] == [(5 + number,) for number in range(rounds)]
    assert all(cases <= sum(attempt.examples for attempt in row.attempts) < cases + rounds for row in rows)
    # One round of ten is enough for an alarm.
    assert [row.standing for row in rows] == ["killed"] + ["survived"] * (len(CONTROLS) - 1)
    assert rows[0].examples == given[0].cases


# ---------------------------------------------------------------- what the figures mean


def killed(seed: int, examples: int, **more) -> Attempt:
    return Attempt(seed=seed, outcome="killed", property="test_it", kind="logic fault", examples=examples, **more)


def survived(seed: int) -> Attempt:
    return Attempt(seed=seed, outcome="survived", examples=100)


def row(*attempts: Attempt, **more) -> Row:
    return Row(name="one", family="indexing", attempts=attempts, **more)


def test_a_mutant_is_killed_by_most_of_its_seeds():
    assert row(killed(0, 3), killed(1, 9), survived(2)).standing == "killed"
    assert row(killed(0, 3), killed(1, 9), survived(2)).examples == 9
    assert row(killed(0, 3), survived(1), survived(2)).standing == "survived"
    assert row(survived(0), equivalent="because").standing == "equivalent"
    assert row(killed(0, 1), equivalent="because").standing == "killed"
    assert row(not_run="no GPU").standing == "not run"


def test_seeds_that_change_nothing_are_not_run():
    assert not settled([], 3)
    assert not settled([survived(0)], 3)
    assert settled([survived(0), survived(1)], 3)
    assert not settled([killed(0, 1), survived(1)], 3)
    assert settled([Attempt(seed=0, outcome="stillborn")], 3)


def test_the_score_counts_what_is_alive_and_no_equivalent():
    rows = [row(killed(0, 1)), row(killed(0, 4)), row(survived(0)), row(survived(0), equivalent="proof")]
    rows += [row(Attempt(seed=0, outcome="stillborn")), row(not_run="no GPU"), row(killed(0, 1), equivalent="proof")]
    score = Score.of(rows)
    assert score.counts == {"killed": 3, "survived": 1, "equivalent": 1, "stillborn": 1, "not run": 1}
    assert score.rate == 0.75
    assert score.median_examples == 1
    assert score.contradicted == ("one",)
    assert command.status_of(rows, []) == 1
    assert command.status_of(rows[:2], []) == 0
    assert command.status_of(rows[:2], [row(killed(0, 1))]) == 1


def test_attempts_survive_a_file():
    attempt = killed(0, 3, size=Size(samples=1, channels=2, pixels=3, recipe="small"))
    assert Attempt.from_dict(json.loads(json.dumps(attempt.as_dict()))) == attempt


# ---------------------------------------------------------------- mechanical mutants


def test_a_sample_is_reproducible_and_random():
    assert mechanical.sample(40, seed=7) == mechanical.sample(40, seed=7)
    assert mechanical.sample(40, seed=7) != mechanical.sample(40, seed=8)


def test_every_proof_is_about_a_change_that_a_rule_makes():
    proven = {change.mutant.equivalent for change in mechanical.changes()} - {""}
    assert proven == set(mechanical.proofs().values())
    explained = {change.mutant.explanation for change in mechanical.changes()} - {""}
    assert explained == set(mechanical.explanations().values())
    assert not proven & explained


def test_every_mechanical_change_is_one_edit_of_python():
    changes = mechanical.changes()
    assert len({change.mutant.name for change in changes}) == len(changes)
    rules = {"comparison", "operator", "constant", "arguments swapped", "statement deleted", "mask removed"}
    assert rules <= {change.rule for change in changes}
    for change in mechanical.sample(60, seed=0):
        ((file, source),) = change.mutant.sources.items()
        compile(source, file, "exec")
        assert change.diff.startswith(f"{file}:")


def test_a_change_is_made_where_it_was_found():
    change = next(
        one for one in mechanical.changes() if "kernels.py:47 comparison: x > -1.0 to (x >= -1.0)" in one.mutant.name
    )
    assert "return used & ((x >= -1.0)) & (x < extent), x" in change.mutant.sources["kernels.py"]


# ---------------------------------------------------------------- end to end


def test_a_mutant_dies_and_a_control_lives(tmp_path, msda_device: str):
    status, result = run(
        ["--seeds", "1", "--cases", "1"], tmp_path, msda_device, zoo=(KILLED,), controls=CONTROLS[-1:], rounds=1
    )
    assert status == 0
    (mutant,), (control,) = result["mutants"], result["controls"]
    assert mutant["standing"] == "killed"
    assert mutant["properties"] == ["test_gradients_within_bound"]
    assert mutant["examples"] == 1
    assert mutant["size"]["samples"] == 1
    assert control["standing"] == "survived"
    assert control["attempts"][0]["examples"] > 1
    assert result["format"] == 1
    assert result.keys() == {"format", "header", "status", "score", "mutants", "controls"}
    assert result["score"]["rate"] == 1.0
    assert {"device", "versions", "seeds", "workers"} <= result["header"].keys()


def test_a_survivor_is_shown_and_fails_the_run(tmp_path, msda_device: str, capsys):
    status, result = run(["--seeds", "1"], tmp_path, msda_device, zoo=(SAME,))
    assert status == 1
    assert result["mutants"][0]["standing"] == "survived"
    assert "survived: changes nothing" in capsys.readouterr().out


def test_what_ends_a_worker_is_a_class_of_its_own(tmp_path, msda_device: str):
    hang_seconds = 2.0 if msda_device == "cpu" else 20.0
    zoo = (ABORTS, STUCK, NO_IMPORT, NO_COMPILE, SAME)
    status, result = run(["--seeds", "1"], tmp_path, msda_device, zoo=zoo, hang_seconds=hang_seconds)
    assert status == 1
    rows = {one["name"]: one for one in result["mutants"]}
    assert rows["aborts"]["kinds"] == ["crash"]
    assert "signal 6" in rows["aborts"]["attempts"][0]["headline"]
    assert rows["is stuck"]["kinds"] == ["timeout"]
    assert rows["cannot be imported"]["standing"] == rows["does not compile"]["standing"] == "stillborn"
    # Somebody took over.
    assert rows["changes nothing"]["standing"] == "survived"


def test_a_device_lost_in_the_first_call_is_a_crash(monkeypatch):
    monkeypatch.setattr(worker, "_alive", lambda _: False)
    job = worker.Job(subject=SAME, seeds=(3, 4))
    (said, seed), (_, attempt), last = worker._messages(job, "cpu", lambda _: None)
    assert (said, seed, last) == ("seed", 3, worker.LOST)
    assert (attempt.seed, attempt.outcome, attempt.kind) == (3, "killed", "crash")


def test_what_is_known_is_not_run_again(tmp_path, msda_device: str, monkeypatch):
    run(["--seeds", "1"], tmp_path, msda_device, zoo=(SAME,))
    monkeypatch.setattr(Pool, "run", lambda *_: pytest.fail("a worker was asked"))
    status, result = run(["--seeds", "1"], tmp_path, msda_device, zoo=(SAME,))
    assert status == 1
    assert result["mutants"][0]["cached"]


def test_a_key_depends_on_edit_seed_and_context(tmp_path):
    cache = Cache({"device": "cpu"}, folder=tmp_path)
    keys = {cache.key(SAME, seed=0), cache.key(SAME, seed=1), cache.key(KILLED, seed=0)}
    keys.add(Cache({"device": "cuda"}, folder=tmp_path).key(SAME, seed=0))
    assert len(keys) == 4
    cache.put("one", killed(0, 1))
    cache.put("slow", Attempt(seed=0, outcome="killed", kind="timeout"))
    assert cache.get("one") == killed(0, 1)
    assert cache.get("slow") is None
    (tmp_path / "one.json").write_text("{")
    assert cache.get("one") is None


def test_options_that_do_not_go_together_are_refused(tmp_path, msda_device: str, capsys):
    status, _ = run(["--controls", "--mechanical", "3"], tmp_path, msda_device)
    assert status == 2
    assert "--mechanical and --controls given, expected one of them" in capsys.readouterr().err


def test_what_needs_a_gpu_is_said_to(tmp_path, msda_device: str):
    if msda_device != "cpu":
        pytest.skip("here it runs")
    status, result = run([], tmp_path, msda_device, zoo=(named("autotuned without reset_to_zero"),))
    assert status == 0
    assert result["mutants"][0]["standing"] == "not run"
    assert "does not tune" in result["mutants"][0]["not_run"]


def test_the_list_names_all(capsys):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--list"])) == 0
    printed = capsys.readouterr().out
    assert all(subject.name in printed for subject in ALL)
