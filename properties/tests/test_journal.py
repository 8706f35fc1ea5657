"""The journal: what a process notes before it runs a case, what is left when it is gone, and what that costs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from properties import journal
from properties.casefile import CaseFile
from properties.cells import cell_named
from properties.journal import RUNNING, DeviceLost, Entry, Journal
from properties.recipe import Recipe
from properties.watchdog import Watchdog

RECIPE = Recipe(cell=cell_named("float32"), levels=((3, 5), (1, 2)), queries=7)
ORIGIN: dict[str, Any] = {"property": "test_x.py::test_x[float32]", "subject": "a:b", "device": "cpu"}


def new(path: Path, *, lost: bool = False, left: list | None = None) -> Journal:
    def leave(recipe, reason):
        (left if left is not None else []).append((recipe, reason))

    return Journal(path=path, origin=ORIGIN, is_lost=lambda: lost, leave=leave)


def entry_in(path: Path) -> Entry:
    entry = journal.read(path)
    assert entry is not None
    return entry


def test_the_present_case_is_on_disk_and_gone_afterwards(tmp_path):
    notes = new(tmp_path / "folder" / "one.json")
    notes.begin(Recipe(cell=cell_named("float64"), queries=1000))
    notes.begin(RECIPE)
    entry = entry_in(notes.path)
    assert entry.case == CaseFile(recipe=RECIPE, failure=RUNNING, **ORIGIN)
    assert entry.process == os.getpid()
    assert abs(entry.noted - time.time()) < 60
    notes.end()
    assert not notes.path.exists()
    notes.begin(RECIPE)
    assert entry_in(notes.path).case.recipe == RECIPE
    assert journal.left_behind(notes.path) is not None
    assert journal.left_behind(notes.path) is None
    notes.end()


def test_a_lost_device_stops_everything(tmp_path):
    left: list = []
    notes = new(tmp_path / "one.json", lost=True, left=left)
    notes.begin(RECIPE)
    with pytest.raises(DeviceLost, match="RuntimeError: illegal"):
        notes.failed(RECIPE, RuntimeError("illegal"))
    assert left == [(RECIPE, "RuntimeError: illegal")]
    assert entry_in(notes.path).case.failure == "RuntimeError: illegal"
    with pytest.raises(DeviceLost, match="after this test"):
        notes.probe()
    new(tmp_path / "two.json").probe()


def test_only_journals_of_processes_that_are_gone_are_orphans(tmp_path):
    new(tmp_path / "alive.json").begin(RECIPE)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    entry = json.loads((tmp_path / "alive.json").read_text())
    (tmp_path / "gone.json").write_text(json.dumps(entry | {"process": gone.pid}) + "\nrest of a longer entry")
    (tmp_path / "torn.json").write_text('{"process": 1, "case"')
    assert [path.name for path, _ in journal.orphans(tmp_path)] == ["gone.json"]


def test_the_clock_tells_a_hang_from_a_crash(tmp_path):
    notes = Journal(
        path=tmp_path / "one.json", origin=ORIGIN, is_lost=bool, leave=print, watchdog=Watchdog(seconds=1000.0)
    )
    notes.begin(RECIPE)
    entry = entry_in(notes.path)
    notes.end()
    assert entry.reason(entry.noted + 1001.0) == "the case ran for more than 1000 s and its process was ended"
    assert entry.reason(entry.noted + 5.0) == RUNNING


def test_the_watchdog_ends_a_process_that_hangs():
    text = (
        "from properties.watchdog import Watchdog\n"
        "dog = Watchdog(seconds=0.3)\n"
        "dog.alive(); dog.rest(); dog.alive()\n"
        "while True: pass\n"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert time.monotonic() - started < 30


def test_a_note_costs_less_than_a_hundredth_of_a_case(tmp_path, monkeypatch):
    slow = []

    def wait(file: int) -> None:
        slow.append(file)
        time.sleep(0.02)

    monkeypatch.setattr(os, "fsync", wait)
    notes = new(tmp_path / "one.json")
    began, spent = time.perf_counter(), time.process_time()
    for number in range(300):
        notes.begin(dataclasses.replace(RECIPE, seed=number))
    passed, spent = time.perf_counter() - began, time.process_time() - spent
    notes.end()
    # A disk that takes 20 ms is waited for once, and then again only when a hundredth of the time allows it.
    assert 1 <= len(slow) <= 2 + 0.01 * passed / 0.02
    # A case on a GPU takes 30 ms.
    assert spent / 300 < 0.01 * 30e-3
