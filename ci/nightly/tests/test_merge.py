"""Reports of several shards become one: sums, faults told once, floors over all of them, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.nightly import merge
from ci.nightly.floors import FEWEST_CASES
from ci.nightly.result import CLEAN, FAULTS, finished, tally
from ci.nightly.tests.test_faults import failed
from ci.nightly.tests.test_plan import CORPUS, record
from ci.nightly.turns import Record

FORWARD = "properties/test_forward.py::test_forward[float32]"
HALF = "properties/test_forward.py::test_forward[float16]"


def part(number: int, *turns: Record, classes: tuple[str, ...] = ("K: 1",), **fields: Any) -> dict[str, Any]:
    header = {"format": 1, "kind": "nightly", "subject": "a:b", "quick": False, "only": "", "shard": [number, 2]}
    header |= {"merged": None, "started": f"2026-12-0{number}", "workers": 8, "seed": number, "resumed": 0}
    header |= {"device": {"type": "cuda", "gpus": ["H200"]}, "elapsed_seconds": 10.0 * number, "budget_seconds": 20.0}
    rows = [{"test": "t", "variant": "v", "turns": 1, "cases": 2, "seconds": 3.0, "new_classes": 4, "ratio": 0.5}]
    rows[0] |= {"share": 1.0}
    result = finished(header | fields, tally(turns), wall=9.0, reachable=classes, bandit=rows)
    plain: dict[str, Any] = json.loads(json.dumps(result))
    return plain


def test_cases_classes_and_time_add_up():
    one = part(1, record(FORWARD, cases=30, classes={"K: 1": 30}, ratio={"out": 0.5}), record(CORPUS[0], "corpus"))
    two = part(2, record(HALF, cases=20, classes={"K: 1": 10}, ratio={"out": 0.25}), record(CORPUS[1], "corpus"))
    total = merge.merge([one, two])
    assert total["verdict"] == CLEAN
    assert (total["totals"]["cases"], total["classes"]["K: 1"], total["corpus"]["cases"]) == (150, 40, 2)
    assert total["totals"]["rate"] == pytest.approx(150 / 9.0)
    assert [(item["variant"], item["turns"]) for item in total["items"] if "forward" in item["test"]] == [
        ("float16", 1),
        ("float32", 1),
    ]
    assert (total["workers"], total["shard"], total["device"]["gpus"]) == (16, None, ["H200", "H200"])
    assert [header["shard"] for header in total["merged"]] == [[1, 2], [2, 2]]
    assert total["bandit"] == [one["bandit"][0] | {"turns": 2, "cases": 4, "seconds": 6.0, "new_classes": 8}]


def test_a_fault_that_both_found_is_one():
    total = merge.merge([part(1, failed()), part(2, failed(), failed(HALF))])
    assert total["verdict"] == FAULTS
    assert [(fault["variant"], fault["count"], fault["shards"]) for fault in total["faults"]] == [
        ("float32", 2, [1, 2]),
        ("float16", 1, [2]),
    ]
    assert total["faults"][0]["case"] == "failures/x.json"


def test_floors_are_for_all_shards_together():
    enough = FEWEST_CASES
    one = part(1, record(FORWARD, cases=enough, classes={"K: 1": enough}), classes=("K: 1", "K: 2"))
    two = part(2, record(HALF, cases=5, classes={"K: 2": 5}), classes=("K: 1", "K: 2"))
    empty = part(2, record(HALF, cases=5, classes={"K: 1": 5}), classes=("K: 1", "K: 2"))
    assert one["verdict"] == CLEAN
    assert merge.merge([one, two])["reasons"] == []
    missed = merge.merge([one, empty])
    assert (missed["verdict"], missed["reasons"]) == (FAULTS, ["class 'K: 2' has 0 cases, its floor is 2"])


def test_quick_and_selected_runs_have_no_floors():
    turns = [record(FORWARD, cases=FEWEST_CASES)]
    for fields in ({"quick": True}, {"only": "forward"}):
        assert part(1, *turns, shard=None, **fields)["verdict"] == CLEAN
    assert part(1, *turns, shard=None)["verdict"] == FAULTS


def test_a_missing_shard_is_no_clean_run():
    total = merge.merge([part(2)])
    assert (total["verdict"], total["reasons"]) == ("could not run", ["shard 1/2 is missing"])


def test_different_subjects_are_not_added():
    with pytest.raises(ValueError, match='merge: subject is "a:b" and "c:d", expected the same'):
        merge.merge([part(1), part(2, subject="c:d")])


def test_an_error_of_the_harness_and_a_crash_are_kept():
    broken = record(HALF, outcome="error", reason="fixture")
    crashed = record(FORWARD, outcome="crashed", raised=(("", "crash"),), reason="the process ended")
    total = merge.merge([part(1, crashed), part(2, broken)])
    assert total["verdict"] == FAULTS
    assert f"{HALF}: the harness failed: fixture" in total["reasons"]
    assert total["crashes"] == [{"nodeid": FORWARD, "message": "the process ended", "case": ""}]


def test_other_files_are_refused(tmp_path: Path):
    (tmp_path / "nightly.json").write_text('{"kind": "summary"}')
    with pytest.raises(ValueError, match="expected the result of a nightly run in format 1"):
        merge.read(tmp_path)


def test_cases_and_case_files_come_together(tmp_path: Path):
    for name, case in (("one", "a"), ("two", "b")):
        (tmp_path / name / "failures").mkdir(parents=True)
        (tmp_path / name / "failures" / f"{case}.json").write_text("{}")
        (tmp_path / name / "cases.jsonl").write_text(f'{{"w":"{name}"}}\n')
    out = tmp_path / "out"
    merge.collect([tmp_path / "one", tmp_path / "two"], out)
    assert sorted(path.name for path in (out / "failures").iterdir()) == ["a.json", "b.json"]
    assert (out / "cases.jsonl").read_text() == '{"w":"one"}\n{"w":"two"}\n'
