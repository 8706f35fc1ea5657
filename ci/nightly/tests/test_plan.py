"""The plan: what comes first, how long a turn is, how shards divide the tests, and what a record changes."""

from __future__ import annotations

from typing import Any

import pytest

from ci.nightly.plan import LEAST_EXAMPLES, MOST_SECONDS, Plan, dealt, interleaved
from ci.nightly.turns import Assignment, Record, records, split

CORPUS = [f"properties/test_corpus.py::test_corpus[c{number}]" for number in range(3)]
CELLS = [f"properties/test_{name}.py::test_{name}[{cell}]" for name in "ab" for cell in ("f32", "f16", "f64")]


class Time:
    """A clock that stands still unless it is told."""

    def __init__(self, left: float) -> None:
        self.left = left

    def __call__(self) -> float:
        """Tell the time."""
        return self.left


def plan_of(nodeids: list[str], *, left: float = 600.0, **fields: Any) -> Plan:
    given = {"shard": None, "budget": 600.0, "workers": 2, "left": Time(left)} | fields
    return Plan(nodeids=nodeids, **given)


def record(nodeid: str, stage: str = "fuzz", *, cases: int = 50, seconds: float = 1.0, **fields: Any) -> Record:
    outcome = fields.pop("outcome", "passed")
    stats: dict[str, Any] = {"test": split(nodeid)[0], "variant": split(nodeid)[1], "cases": cases}
    stats |= {"ratio": fields.pop("ratio", {}), "classes": fields.pop("classes", {})}
    return Record(nodeid=nodeid, stage=stage, at=1.0, seconds=seconds, outcome=outcome, stats=stats, **fields)


def begun(plan: Plan) -> Assignment:
    assignment = plan.next()
    assert assignment is not None
    return assignment


def test_the_corpus_comes_first_and_once_then_every_property_before_any_comes_twice():
    plan = plan_of([*CELLS, *CORPUS])
    stages = []
    for _ in range(len(CORPUS) + len(CELLS)):
        assignment = begun(plan)
        stages.append((assignment.stage, split(assignment.nodeid)[0][-1]))
        plan.hear(record(assignment.nodeid, assignment.stage), assignment)
    assert [stage for stage, _ in stages] == ["corpus"] * 3 + ["fuzz"] * 6
    assert [name for _, name in stages[3:]] == ["a", "b"] * 3
    assert begun(plan).stage == "fuzz"


def test_properties_begin_with_different_variants():
    assert [split(nodeid)[1] for nodeid in interleaved(CELLS)[:2]] == ["f32", "f16"]
    assert sorted(interleaved(CELLS)) == sorted(CELLS)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_have_everything_once_and_are_of_a_size(count: int):
    parts = [dealt([*CELLS, *CORPUS], (number, count)) for number in range(1, count + 1)]
    assert sorted(nodeid for part in parts for nodeid in part) == sorted([*CELLS, *CORPUS])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_shard_is_the_same_whatever_order_the_tests_come_in():
    assert set(dealt(CELLS, (1, 2))) == set(dealt(CELLS[::-1], (1, 2)))


def test_a_shard_replays_what_is_not_dealt_to_it():
    mine = set(dealt(CELLS, (1, 2)))
    other = next(nodeid for nodeid in CELLS if nodeid not in mine)
    plan = plan_of(CELLS, shard=(1, 2))
    plan.replay([other, other, "not collected here"])
    first = begun(plan)
    assert (first.nodeid, first.stage) == (other, "replay")
    plan.hear(record(other, "replay"), first)
    assert {begun(plan).nodeid for _ in range(6)} <= mine


def test_a_replay_that_finds_a_fault_is_tried_again_for_the_next_one():
    plan = plan_of(CELLS)
    plan.replay([CELLS[0]])
    first = begun(plan)
    plan.hear(record(CELLS[0], "replay", outcome="failed", raised=(("out", "logic fault"),)), first)
    second = begun(plan)
    assert (second.nodeid, second.stage) == (CELLS[0], "replay")
    plan.hear(record(CELLS[0], "replay"), second)
    assert begun(plan).stage == "fuzz"


def test_turns_are_as_many_cases_as_fit_and_later_turns_draw_others():
    plan = plan_of(CELLS[:1])
    first = begun(plan)
    plan.hear(record(CELLS[0], cases=100, seconds=2.0), first)
    second = begun(plan)
    assert second.number == first.number + 1
    assert (second.seconds, second.examples) == (plan.slice, 200)


def test_a_dear_property_gets_a_few_cases_and_the_time_they_take():
    plan = plan_of(CELLS[:1])
    plan.hear(record(CELLS[0], cases=1, seconds=5.0, cut=True), begun(plan))
    second = begun(plan)
    assert (second.examples, second.seconds) == (LEAST_EXAMPLES, 15.0)


@pytest.mark.parametrize(("budget", "least", "most"), [(60, 2, 2), (600, 3, 5), (8 * 3600, MOST_SECONDS, MOST_SECONDS)])
def test_turns_grow_with_the_budget(budget: float, least: float, most: float):
    assert least <= plan_of(CELLS, budget=budget).slice <= most


def test_first_turns_leave_most_of_the_time_to_the_others():
    plan = plan_of(CELLS, left=24.0)
    assert begun(plan).seconds == pytest.approx(0.25 * 24.0 * 2 / len(CELLS))


def test_what_takes_longer_than_is_left_is_not_begun():
    time = Time(600.0)
    plan = plan_of(CELLS[:2])
    plan.left = time
    for nodeid, each in zip(CELLS[:2], (0.01, 10.0), strict=True):
        assignment = begun(plan)
        plan.hear(record(assignment.nodeid, cases=10, seconds=10 * each, cut=True), assignment)
        assert assignment.nodeid == nodeid
    time.left = 20.0
    assert {begun(plan).nodeid for _ in range(5)} == {CELLS[0]}
    time.left = 0.0
    assert plan.next() is None


def test_a_turn_that_was_not_begun_comes_again():
    plan = plan_of([*CORPUS, *CELLS])
    first = begun(plan)
    plan.give_back(first)
    assert begun(plan) == first


def test_skipped_tests_and_tests_that_draw_nothing_have_one_turn():
    plan = plan_of(CELLS[:3])
    for fields in ({"outcome": "skipped", "reason": "no float16"}, {"cases": 0}, {}):
        assignment = begun(plan)
        plan.hear(record(assignment.nodeid, **fields), assignment)
    assert plan.skipped == {CELLS[0]: "no float16"}
    assert list(plan.bandit.arms) == [CELLS[2]]


def test_earlier_sessions_count():
    plan = plan_of([*CORPUS, *CELLS])
    for nodeid in CORPUS[:2]:
        plan.hear(record(nodeid, "corpus", cases=1))
    plan.hear(record(CELLS[0], new=(1, 2, 3)))
    assert begun(plan).nodeid == CORPUS[2]
    assert plan.bandit.arms[CELLS[0]].new == 3
    assert begun(plan).nodeid != CELLS[0]


def test_only_the_first_of_several_workers_shows_something_new():
    plan = plan_of(CELLS)
    plan.hear(record(CELLS[0], new=(1, 2)))
    plan.hear(record(CELLS[0], new=(2, 3)))
    assert plan.bandit.arms[CELLS[0]].new == 3


def test_ratios_that_rise_are_worth_time_and_those_beyond_the_bound_are_faults():
    plan = plan_of(CELLS[:2])
    for nodeid, ratios in zip(CELLS[:2], ((0.1, 0.8), (0.1, 3.0)), strict=True):
        for ratio in ratios:
            plan.hear(record(nodeid, ratio={"out": ratio}))
    rising, beyond = (plan.bandit.arms[nodeid] for nodeid in CELLS[:2])
    assert rising.gain == pytest.approx(beyond.gain + 32.0 * 3)


def test_a_crash_costs_the_time_that_a_new_worker_takes():
    plan = plan_of(CELLS)
    plan.hear(record(CELLS[0], outcome="crashed", seconds=3.0))
    arm = plan.bandit.arms[CELLS[0]]
    assert (arm.seconds, arm.faulty) == (13.0, True)


def test_records_survive_a_damaged_line(tmp_path):
    kept = record(CELLS[0], seen=(("out", "crash", 3),), raised=(("out", "memory"),), compiles=(("kernel", 0.5),))
    file = tmp_path / "turns.jsonl"
    file.write_text(kept.to_json() + "{}\n" + '{"nodeid": "cut of')
    assert list(records(file)) == [kept]
