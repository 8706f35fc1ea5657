"""Whole runs, each in a process of its own: on time, faults once, killed and gone on, shards, crashes, hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.nightly.plan import dealt
from ci.nightly.turns import Record, records
from properties.tests.broken import write_subject
from properties.tests.redis_server import running_redis

ROOT = Path(__file__).resolve().parents[3]
# Two properties on two dtypes: the subjects here are plain PyTorch and know no others.
FEW = "(forward_within_bound or gradients_within_bound) and (float32 or float64) and not float16"
# Beyond the budget, where other tests want the same cores.
LENIENT_SECONDS = 10.0
CONTRACT = set(
    """
    format kind subject device versions seed workers commit shard merged quick profile started budget_seconds
    elapsed_seconds resumed verdict reasons corpus items totals classes floors determinism lossy facts skipped faults
    crashes compiles bandit
    """.split()  # noqa: SIM905 - thirty names in quotes are harder to read
)


@dataclass
class Ran:
    """A run that is over."""

    status: int
    text: str
    seconds: float
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """Content of `nightly.json`."""
        plain: dict[str, Any] = json.loads((self.folder / "nightly.json").read_text())
        return plain

    @property
    def turns(self) -> list[Record]:
        """All turns, in the order in which they were over."""
        return list(records(self.folder / "state" / "turns.jsonl"))


def environment() -> dict[str, str]:
    outer = ("PYTEST_", "TRITON_INTERPRET", "HYPOTHESIS", "COLUMNS", "MSDA_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    # On a CI machine Hypothesis would draw the same cases every night.
    return clean | {"PYTHONPATH": str(ROOT), "CI": "true"}


def command(folder: Path, report: str, budget: float, *options: str) -> list[str]:
    line = [sys.executable, "-m", "ci", "nightly", "--budget", f"{budget:g}s", "--report", report, "--device", "cpu"]
    line += ["--workers", "2"]
    if "--database" not in options:
        line += ["--database", str(folder / "database")]
    return [*line, *options]


def nightly(folder: Path, report: str, budget: float, *options: str) -> Ran:
    started = time.monotonic()
    done = subprocess.run(
        command(folder, report, budget, *options),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=budget + 120,
        check=False,
    )
    seconds = time.monotonic() - started
    return Ran(status=done.returncode, text=done.stdout + done.stderr, seconds=seconds, folder=folder / report)


def subject(folder: Path, broken: str | None) -> tuple[str, ...]:
    write_subject(folder, broken)
    return "--subject", "subject:operator", "--only", FEW


def test_the_shipped_kernels_are_clean_and_the_run_ends_on_time(tmp_path: Path):
    budget = 90.0
    ran = nightly(tmp_path, "report", budget)
    result = ran.result
    assert ran.status == 0, ran.text
    assert 0.95 * budget - 2.0 <= ran.seconds <= 1.05 * budget + 2.0, ran.text
    assert set(result) >= CONTRACT
    assert (result["verdict"], result["reasons"], result["faults"]) == ("clean", [], [])
    # How many cases fit into the time is the machine's affair; that the corpus comes first and turns follow is ours.
    assert result["corpus"]["cases"] > 0
    assert result["corpus"]["failed"] == 0
    assert result["totals"]["judged"] > 0
    assert ran.turns
    assert f"nightly seed: {result['seed']}" in ran.text
    assert "nightly gw0: " in ran.text
    assert (ran.folder / "report.html").exists()


def test_a_fault_is_found_made_small_told_once_and_replayed(tmp_path: Path):
    ran = nightly(tmp_path, "report", 40.0, *subject(tmp_path, "wrong numbers"))
    result = ran.result
    assert ran.status == 1, ran.text
    assert result["verdict"] == "faults"
    assert ran.seconds <= 40.0 + LENIENT_SECONDS
    keys = [(fault["property"], fault["variant"], fault["output"], fault["class"]) for fault in result["faults"]]
    assert len(keys) == len(set(keys))
    assert {variant for _, variant, _, _ in keys} == {"float32"}
    first = next(fault for fault in result["faults"] if "forward" in fault["property"])
    assert first["output"] == "out"
    assert first["count"] > 20
    assert first["recipe"].startswith("float32 B1 Q1 M1 D1 K1 levels 1x1")
    assert first["story"][0] == first["first_line"]
    assert "the smallest:" in ran.text
    # Fuzzing went on after it, with the properties that hold too.
    assert sum(turn.nodeid.endswith("float64]") for turn in ran.turns) >= 4
    lines = (ran.folder / "cases.jsonl").read_text().splitlines()
    assert len(lines) == result["totals"]["judged"] == sum(item["judged"] for item in result["items"])
    case = json.loads(lines[0])
    assert set(case) == {"p", "v", "w", "t", "r", "e", "m", "b", "c"}
    replayed = subprocess.run(
        [sys.executable, "-m", "ci", "replay", str(ran.folder / first["case"])],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert replayed.returncode == 1, replayed.stdout + replayed.stderr


def test_a_run_that_was_killed_goes_on_and_loses_nothing(tmp_path: Path):
    budget, options = 45.0, subject(tmp_path, "wrong numbers")
    process = subprocess.Popen(
        command(tmp_path, "report", budget, *options),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder = tmp_path / "report"
    deadline = time.monotonic() + 35.0
    while len(list(records(folder / "state" / "turns.jsonl"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = list(records(folder / "state" / "turns.jsonl"))
    spent = json.loads((folder / "state" / "run.json").read_text())
    assert before
    assert 0.0 < spent["elapsed"] < budget
    # Another run must not take the place of this one.
    refused = nightly(tmp_path, "report", budget, *options, "--quick")
    assert refused.status == 2
    assert "is not over and another one: quick False there, True now" in refused.text
    ran = nightly(tmp_path, "report", budget, *options)
    assert ran.status == 1, ran.text
    assert ran.seconds <= budget - spent["elapsed"] + LENIENT_SECONDS
    assert "resumed: " in ran.text
    result = ran.result
    assert (result["resumed"], result["seed"]) == (1, spent["seed"])
    after = ran.turns
    assert after[: len(before)] == before
    assert len(after) > len(before)
    # What it knew it has not told again.
    assert len({fault["case"] for fault in result["faults"]}) == len(result["faults"])
    assert 0.85 * budget <= result["elapsed_seconds"] <= budget + LENIENT_SECONDS
    assert not list((folder / "journal").glob("*.json"))


def test_what_one_shard_finds_the_other_one_replays(tmp_path: Path):
    options = subject(tmp_path, "wrong numbers")
    with running_redis(tmp_path) as address:
        shards = []
        for number in (1, 2):
            own = tmp_path / f"database {number}"
            shared = ("--database", str(own), "--database", address, "--shard", f"{number}/2")
            shards.append(nightly(tmp_path, f"report {number}", 30.0, *options, *shared))
    one, two = shards
    fuzzed = [{turn.nodeid for turn in shard.turns if turn.stage == "fuzz"} for shard in shards]
    assert all(fuzzed)
    assert not fuzzed[0] & fuzzed[1]
    assert sorted(fuzzed[0] | fuzzed[1]) == sorted({*dealt(fuzzed[0] | fuzzed[1], None)})
    found = {turn.nodeid for turn in one.turns if turn.outcome == "failed"}
    replayed = {turn.nodeid for turn in two.turns if turn.stage == "replay" and turn.outcome == "failed"}
    assert found
    assert found == replayed
    assert not found & fuzzed[1]
    merged = subprocess.run(
        [sys.executable, "-m", "ci", "merge", "report 1", "report 2", "--report", "merged"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert merged.returncode == 1, merged.stdout + merged.stderr
    result = json.loads((tmp_path / "merged" / "nightly.json").read_text())
    both = [fault for fault in result["faults"] if fault["shards"] == [1, 2]]
    assert {f"{fault['property']}[{fault['variant']}]" for fault in both} >= found
    assert result["totals"]["cases"] == sum(shard.result["totals"]["cases"] for shard in shards)
    assert all((tmp_path / "merged" / fault["case"]).exists() for fault in result["faults"])


def test_a_subject_that_ends_its_process_does_not_end_the_run(tmp_path: Path):
    ran = nightly(tmp_path, "report", 45.0, *subject(tmp_path, "aborts"))
    result = ran.result
    assert ran.status == 1, ran.text
    assert ran.seconds <= 45.0 + LENIENT_SECONDS
    assert {(fault["class"], fault["variant"]) for fault in result["faults"]} == {("crash", "float32")}
    keys = [fault["property"] for fault in result["faults"]]
    assert len(keys) == len(set(keys)) == 2
    assert all((ran.folder / fault["case"]).exists() for fault in result["faults"])
    confirmed = "confirmed alone, in a fresh process, it ends the process again"
    assert any(confirmed in line for fault in result["faults"] for line in fault["story"])
    assert len(result["crashes"]) >= 2
    assert result["totals"]["cases"] > 20


def test_a_subject_that_hangs_does_not_keep_the_run(tmp_path: Path):
    ran = nightly(tmp_path, "report", 40.0, *subject(tmp_path, "hangs"))
    assert ran.seconds <= 40.0 + LENIENT_SECONDS
    # The watchdog would have waited for longer than there was time.
    assert any("when the time was up" in note for note in ran.result["notes"]), ran.text
    assert list((ran.folder / "interrupted").glob("*float32*.json"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--subject", "nowhere:operator"), "cannot import 'nowhere'"),
        (("--only", "no_such_test"), "pytest ended with status 5"),
        (("--database", "redis://127.0.0.1:1/0"), "does not answer"),
        (("--database", "ftp://x"), "expected a folder"),
    ],
)
def test_what_cannot_be_run_says_so_and_ends_with_2(tmp_path: Path, options: tuple[str, ...], told: str):
    ran = nightly(tmp_path, "report", 60.0, *options)
    assert ran.status == 2
    assert told in ran.text
    assert ran.seconds < 50.0
