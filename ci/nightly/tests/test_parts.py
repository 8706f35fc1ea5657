"""The smaller parts: durations, the lines of single cases, floors, the state of a run, what is shown while it runs."""

from __future__ import annotations

import io
import json
import math
import time
from pathlib import Path

import pytest
from rich.console import Console

from ci.nightly import floors, selection
from ci.nightly.cases import CaseFile, Combinations, bucket, case_line, head_of
from ci.nightly.clock import Clock, seconds_of, shown
from ci.nightly.command import shard_of
from ci.nightly.progress import Progress, Tail
from ci.nightly.result import gather_cases
from ci.nightly.state import Folder, RunState
from ci.nightly.tests.test_faults import failed
from properties.classes import REQUIRED
from properties.subject import from_callable
from properties.verdict import Worst

# ---------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("90", 90), ("30m", 1800), ("8h", 28800), ("1h30m", 5400), ("1.5m", 90)]
)
def test_budgets_are_read(text: str, seconds: float):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5s", "-3m", "30 min", "m"])
def test_other_budgets_are_refused_by_name_and_value(text: str):
    with pytest.raises(ValueError, match=r"budget: .* given, expected"):
        seconds_of(text)


def test_durations_are_shown_as_clocks_show_them():
    assert [shown(seconds) for seconds in (0, 65, 3725, -3)] == ["0:00", "1:05", "1:02:05", "0:00"]


@pytest.mark.parametrize("budget", [100.0, 120.0, 600.0, 1800.0, 28800.0])
def test_drawing_ends_within_the_last_twentieth_and_nothing_goes_on_beyond_it(budget: float):
    clock = Clock(budget=budget, began=1000.0)
    assert 0.95 * budget <= clock.deadline - 1000.0 < budget
    assert budget < clock.last_call - 1000.0 < 1.05 * budget


def test_earlier_sessions_have_used_their_time():
    clock = Clock(budget=100.0, before=70.0, began=time.monotonic())
    assert clock.elapsed == pytest.approx(70.0, abs=1.0)
    assert clock.end == pytest.approx(clock.began + 30.0)


# ---------------------------------------------------------------- cases


def test_a_line_is_json_whatever_the_numbers():
    ratio = {"out": 0.12345678, "grad_value": math.nan, "run to run": math.inf}
    worst = {
        "out": Worst(expected=-2.0, bound=1e-7, likely=2e-8),
        "grad_value": Worst(expected=math.inf, bound=math.inf, likely=math.inf),
    }
    line = case_line(head_of("t.py::test", 'odd "name"', "gw0"), 12.34, ratio, worst, 7)
    assert line.endswith("}\n")
    assert json.loads(line) == {
        "p": "t.py::test",
        "v": 'odd "name"',
        "w": "gw0",
        "t": 12.3,
        "r": {"out": 0.1235, "grad_value": "nan", "run to run": "inf"},
        "e": {"out": 1.235e-8},
        "m": {"out": 2.0, "grad_value": "inf"},
        "b": {"out": 1e-7, "grad_value": "inf"},
        "q": {"out": 2e-8},
        "c": 7,
    }
    assert set(json.loads(case_line("{", 0.0, {}, {}, 0))) == {"t", "r", "c"}


def test_a_line_costs_less_than_a_hundredth_of_a_case(tmp_path: Path):
    outputs = ("out", "grad_value", "grad_sampling_locations", "grad_attention_weights")
    ratio = dict.fromkeys(outputs, 0.37)
    worst = dict.fromkeys(outputs, Worst(expected=1.25, bound=3e-7, likely=1e-7))
    file, seen, head = CaseFile(tmp_path / "cases.jsonl"), Combinations(), head_of("p.py::test", "float32", "gw0")
    classes = [f"class: {number}" for number in range(30)]
    seen.begin("test")
    started = time.process_time()
    for number in range(2000):
        file.write(case_line(head, 1.0, ratio, worst, number))
        seen.note(classes, ratio, number)
    # A judged case takes a worker on an H200 28 ms.
    assert (time.process_time() - started) / 2000 < 0.01 * 0.028
    file.close()
    assert len((tmp_path / "cases.jsonl").read_text().splitlines()) == 2000


def test_orders_of_magnitude():
    assert [bucket(ratio) for ratio in (0.0, 1e-9, 0.06, 0.3, 0.9, 1.0, 1.1, math.inf, math.nan)] == [
        -7,
        -6,
        -3,
        -1,
        -1,
        0,
        1,
        1,
        1,
    ]


def test_combinations_are_new_once_for_each_test():
    seen = Combinations()
    seen.begin("a")
    for ratio, collisions in ((0.3, 2), (0.31, 3), (0.1, 2), (0.1, 9)):
        seen.note(["K: 1", "L: 2"], {"out": ratio, "grad_value": 0.01}, collisions)
    assert len(seen.end()) == 6
    seen.begin("a")
    seen.note(["K: 1"], {"out": 0.3}, 2)
    assert seen.end() == ()
    seen.begin("b")
    seen.note(["K: 1"], {"out": 0.3}, 2)
    assert len(seen.end()) == 1


def test_lines_of_all_workers_are_put_together_and_torn_ones_left_out(tmp_path: Path):
    folder = Folder(tmp_path)
    folder.state.mkdir()
    texts = {"gw0": '{"a":1}\n{"b":2}\n{"torn', "gw1": "", "gw2": '{"torn at once', "gw3": '{"c":3}\n'}
    for worker, text in texts.items():
        folder.cases(1, worker).write_text(text)
    gather_cases(folder)
    assert (tmp_path / "cases.jsonl").read_text() == '{"a":1}\n{"b":2}\n{"c":3}\n'


# ---------------------------------------------------------------- floors


def operator(*operands):
    raise NotImplementedError


def test_every_class_has_a_floor_that_grows_with_the_cases():
    reachable = floors.reachable(REQUIRED, from_callable(operator, name="x:operator"))
    assert set(reachable) == REQUIRED
    assert set(floors.floors(reachable, cases=100).values()) == {0}
    assert set(floors.floors(reachable, cases=3000).values()) == {3}
    assert set(floors.floors(reachable, cases=200_000).values()) == {200}


def test_a_subject_is_not_held_to_what_it_does_not_declare():
    def half(*operands):
        raise NotImplementedError

    declared = {"dtypes": ("float16",), "mixed_dtypes": False, "layouts": "contiguous", "nonfinite": "overflow"}
    half.__dict__.update(declared)
    reachable = floors.reachable(REQUIRED, from_callable(half, name="x:half"))
    assert [name for name in reachable if name.startswith("cell")] == ["cell: float16"]
    assert [name for name in reachable if name.startswith("layout value")] == ["layout value: contiguous"]
    assert not {"location: nan", "location: huge"} & set(reachable)
    assert "location: border" in reachable


def test_a_class_below_its_floor_is_named():
    assert floors.missed({"a": 3, "b": 9}, {"a": 4, "b": 4, "c": 1}) == [
        "class 'a' has 3 cases, its floor is 4",
        "class 'c' has 0 cases, its floor is 1",
    ]


# ---------------------------------------------------------------- the run


def test_a_run_is_read_as_it_was_written(tmp_path: Path):
    folder = Folder(tmp_path)
    run = RunState(subject="a:b", device="cpu", quick=False, only="", shard=(1, 2), seed=7, budget=60.0, started="now")
    assert folder.read_run() is None
    folder.write_run(run)
    assert folder.read_run() == run
    other = RunState(**vars(run) | {"subject": "c:d"})
    assert run.difference(other) == "subject 'a:b' there, 'c:d' now"
    assert run.difference(RunState(**vars(run) | {"seed": 8})) is None
    folder.run.write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"report: the run in .* cannot go on: its format is 99, expected 1"):
        folder.read_run()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "-1/2"])
def test_wrong_shards_are_refused(text: str):
    with pytest.raises(Exception, match=r"given, expected I/N with 1 <= I <= N"):
        shard_of(text)


def test_what_quick_names_exists():
    for name in selection.QUICK:
        file, _, function = name.partition("::")
        text = (selection.PROPERTIES / file).read_text()
        assert f"def {function or 'test_'}" in text


# ---------------------------------------------------------------- progress


def test_a_tail_gives_whole_lines_once(tmp_path: Path):
    path = tmp_path / "file"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_text("one\ntw")
    assert tail.lines() == [b"one"]
    with path.open("a") as file:
        file.write("o\n")
    assert tail.lines() == [b"two"]
    assert tail.lines() == []


def test_lines_name_each_worker_and_the_faults(tmp_path: Path):
    folder, out = Folder(tmp_path), io.StringIO()
    folder.state.mkdir()
    folder.header.write_text(json.dumps({"versions": {"torch": "2"}, "device_name": "GPU", "workers": 2}))
    progress = Progress(folder, Clock(budget=100.0, began=time.monotonic()), Console(file=out, width=80))
    run = RunState(subject="a:b", device="cpu", quick=False, only="", shard=(1, 2), seed=7, budget=100.0, started="")
    progress.begin(run)
    progress.show()
    for worker, ratio in (("gw0", 0.5), ("gw1", 0.25)):
        line = case_line(head_of("p.py::test_x", "float32", worker), 1.0, {"out": ratio}, {}, 0)
        folder.cases(1, worker).write_text(line * 3)
    folder.turns.write_text(failed().to_json())
    progress._read(time.monotonic())
    lines = progress.lines(time.monotonic() + 5.0)
    assert lines[0].startswith("nightly gw0: 3 cases, 0.6/s, worst 0.500 out")
    assert lines[1].startswith("nightly gw1: 3 cases, 0.6/s, worst 0.250 out")
    assert lines[2].startswith("nightly all: 6 cases, 1.2/s, 1 faults, 1:40 left")
    shown_text = out.getvalue()
    assert "nightly seed: 7" in shown_text
    assert "nightly shard: 1 of 2" in shown_text
    assert "nightly found logic fault: properties/test_forward.py::test_forward[float32]: out: wrong" in shown_text


def test_a_terminal_shows_a_table(tmp_path: Path):
    folder, out = Folder(tmp_path), io.StringIO()
    folder.state.mkdir()
    console = Console(file=out, width=120, force_terminal=True)
    with Progress(folder, Clock(budget=100.0, began=time.monotonic()), console) as progress:
        line = case_line(head_of("p.py::test_x", "float32", "gw0"), 1.0, {"out": 0.5}, {}, 0)
        folder.cases(1, "gw0").write_text(line)
        progress._looked = 0.0
        progress.show()
    assert "error/bound" in out.getvalue()
    assert "x[float32]" in out.getvalue()
    assert "0 faults" in out.getvalue()
