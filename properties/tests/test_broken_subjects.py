"""A subject that is broken in whatever way: the run ends by itself and blames the right test, once, with its case."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from properties.tests.broken import BREAKS, GPU_BREAKS, write_subject

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 8.0
BROKEN = "test_real.py::test_forward_within_bound[float32]"
# What the story must say, by the way in which the subject is broken.
TOLD = {
    "raises": ["no kernel image is available", "class     refused wrongly"],
    "wrong numbers": ["outside its error bound", "class     "],
    "aborts": [
        "the process ended while it ran this case",
        "class     crash",
        "confirmed alone, in a fresh process, it ends",
    ],
    "hangs": ["the case ran for more than 8 s", "class     crash", "confirmed alone, in a fresh process, it ends"],
    "allocates": ["class     memory"],
    "writes to its operands": ["an operand was written to", "class     memory"],
    "fails at its 50th call": ["it did not fail every time", "class     "],
    "writes out of bounds": ["class     crash", "confirmed alone, in a fresh process, it"],
    "never returns": ["the case ran for more than 8 s", "class     crash", "confirmed alone, in a fresh process, it"],
}


@dataclass
class Outcome:
    """What a run printed, and its summary."""

    text: str
    summary: dict
    seconds: float


def run(folder: Path, device: str, *arguments: str, status: int) -> Outcome:
    outer = ("PYTEST_", "CI", "TRITON_INTERPRET", "HYPOTHESIS", "COLUMNS", "MSDA_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    named = {"device": device, "subject": "subject:operator", "examples": "1000", "seed": "1"}
    named |= {"timeout": f"{TIMEOUT:g}", "json": "summary.json"}
    options = [word for name, value in named.items() for word in (f"--msda-{name}", value)]
    options += ["-n", "2", "-rfE"]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "properties.plugin", *options, *arguments],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    text = done.stdout + done.stderr
    assert done.returncode == status, text
    return Outcome(text, json.loads((folder / "summary.json").read_text()), time.monotonic() - started)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_real.py").write_text("from properties.test_forward import test_forward_within_bound\n")
    (tmp_path / "test_innocent.py").write_text(
        "import pytest\n@pytest.mark.parametrize('number', range(6))\ndef test_innocent(number):\n    pass\n"
    )
    return tmp_path


def test_the_operator_is_correct_unless_it_is_broken(folder: Path, msda_device: str):
    write_subject(folder, None)
    outcome = run(folder, msda_device, status=0)
    assert outcome.summary["counts"]["failed"] == 0
    assert outcome.summary["counts"]["passed"] == 8


@pytest.mark.parametrize("name", [*BREAKS, *GPU_BREAKS])
def test_a_broken_subject_fails_its_own_test_once(folder: Path, msda_device: str, name: str):
    if name in GPU_BREAKS and msda_device != "cuda":
        pytest.skip("needs a GPU")
    write_subject(folder, name)
    outcome = run(folder, msda_device, status=1)
    failed = re.findall(r"^FAILED (\S+)", outcome.text, re.MULTILINE)
    assert failed == [BROKEN], outcome.text
    # Six innocent tests, and the same property on the dtype that is not broken.
    assert outcome.summary["counts"]["passed"] == 7, outcome.text
    for words in TOLD[name]:
        assert words in outcome.text, (words, outcome.text)
    cases = list((folder / ".msda" / "failures").glob("*.json"))
    assert len(cases) == 1, outcome.text
    case = json.loads(cases[0].read_text())
    assert case["property"] == BROKEN
    assert case["recipe"]["cell"] == "float32"
    shown = outcome.text[outcome.text.index("= FAILURES") : outcome.text.index("= properties")]
    assert shown.count("  replay    ") == 1
    assert not list((folder / ".msda" / "journal").glob("*.json"))


def test_a_run_that_was_killed_offers_its_case_to_the_next_one(folder: Path, msda_device: str):
    write_subject(folder, "aborts")
    # Without workers the whole run goes down.
    options = ["-p", "properties.plugin", "--msda-device", msda_device, "--msda-subject", "subject:operator", "-n", "0"]
    command = [sys.executable, "-m", "pytest", *options, "test_real.py"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MSDA_"))}
    environment = {**clean, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode < 0
    assert len(list((folder / ".msda" / "journal").glob("*.json"))) == 1
    write_subject(folder, None)
    offered = run(folder, msda_device, "test_real.py", status=0)
    assert re.search(
        r"msda journal: a process ended at .* while it ran test_real\.py::.*; replay with .*replay", offered.text
    )
    assert not list((folder / ".msda" / "journal").glob("*.json"))
    assert "msda journal" not in run(folder, msda_device, "test_real.py", status=0).text


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("visible", "used"), [(None, {0, 1}), ("1", {1}), ("1,0", {0, 1})])
def test_workers_use_the_gpus_that_are_visible(folder: Path, msda_device: str, visible: str | None, used: set[int]):
    write_subject(folder, None)
    (folder / "test_where.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.parametrize('number', range(16))\n"
        "def test_where(harness, number):\n"
        "    assert torch.cuda.device_count() == 1\n"
        "    uuid = str(torch.cuda.get_device_properties(0).uuid)\n"
        "    open(f'where-{number}-{uuid}', 'w').close()\n"
    )
    uuids = {index: str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())}
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    try:
        run(folder, msda_device, "test_where.py", "-n", "4", status=0)
    finally:
        if visible is not None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
    seen = {path.name.split("-", 2)[2] for path in folder.glob("where-*")}
    assert seen == {uuids[index] for index in used}


FAILING = """
import weakref
import pytest
import torch
from hypothesis import strategies as st

alive = []

@pytest.mark.parametrize("number", range(100))
def test_fails(harness, number):
    def check(drawn):
        tensor = torch.zeros(1 << 18, device=harness.device)
        alive.append(weakref.ref(tensor))
        raise AssertionError(f"wrong for {drawn}")
    harness.for_all(st.integers(0, 3), check)

def test_nothing_is_kept():
    # The last failure may still be looked at: pytest keeps it for its debugger.
    kept = [number for number, tensor in enumerate(alive) if tensor() is not None]
    assert len(alive) >= 200
    assert len(kept) <= 4, kept
"""


def test_failures_release_their_tensors(folder: Path, msda_device: str):
    write_subject(folder, None)
    (folder / "test_failing.py").write_text(FAILING)
    outcome = run(folder, msda_device, "test_failing.py", "-n", "0", status=1)
    assert outcome.summary["counts"]["failed"] == 100
    assert outcome.summary["counts"]["passed"] == 1, outcome.text
