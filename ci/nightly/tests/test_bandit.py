"""The bandit on made-up properties: who gets the time, and that nobody is left out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ci.nightly.bandit import FLOOR, MOST, Bandit


def play(bandit: Bandit, *, seconds: float, gain: Mapping[str, float], cost: Mapping[str, float]) -> dict[str, float]:
    """Give turns until the time is spent; a turn gains `gain` in a second and takes `cost` seconds."""
    spent = dict.fromkeys(bandit.arms, 0.0)
    while sum(spent.values()) < seconds:
        arm = bandit.choose()
        assert arm is not None
        took = cost[arm.key]
        bandit.record(arm.key, seconds=took, cases=1, new=round(gain[arm.key] * took), rise=0.0)
        spent[arm.key] += took
    return spent


def test_time_is_shared_evenly_however_long_a_case_takes():
    spent = play(Bandit("ab"), seconds=400, gain={"a": 0, "b": 0}, cost={"a": 1, "b": 7})
    assert spent["a"] == pytest.approx(spent["b"], rel=0.1)


def test_what_shows_something_new_gets_more_and_the_rest_keeps_its_floor():
    keys = [f"dull {number}" for number in range(9)] + ["rich"]
    spent = play(Bandit(keys), seconds=3000, gain=dict.fromkeys(keys, 0) | {"rich": 50}, cost=dict.fromkeys(keys, 2.0))
    equal = 3000 / len(keys)
    assert spent["rich"] > 3 * equal
    assert min(spent.values()) > 0.8 * FLOOR * equal


def test_a_rising_ratio_counts_like_something_new():
    bandit = Bandit("ab")
    for key, rise in (("a", 0.0), ("b", 2.0)):
        bandit.record(key, seconds=1.0, cases=10, new=0, rise=rise)
    assert bandit.weight(bandit.arms["b"]) > 2 * bandit.weight(bandit.arms["a"])


def test_what_ceases_to_show_anything_new_falls_back():
    bandit = Bandit("ab")
    bandit.record("a", seconds=1.0, cases=10, new=500, rise=0.0)
    assert bandit.weight(bandit.arms["a"]) > bandit.weight(bandit.arms["b"])
    for _ in range(15):
        bandit.record("a", seconds=1.0, cases=10, new=0, rise=0.0)
        bandit.record("b", seconds=1.0, cases=10, new=1, rise=0.0)
    assert bandit.weight(bandit.arms["a"]) < bandit.weight(bandit.arms["b"])


def test_one_arm_cannot_take_everything():
    bandit = Bandit(map(str, range(500)))
    bandit.record("7", seconds=1.0, cases=10, new=10**6, rise=0.0)
    assert bandit.weight(bandit.arms["7"]) == MOST
    assert sum(bandit.shares().values()) == pytest.approx(1.0)


def test_a_known_fault_does_not_take_the_night():
    bandit = Bandit("abcd")
    bandit.arms["a"].faulty = True
    spent = play(bandit, seconds=400, gain=dict.fromkeys("abcd", 10), cost=dict.fromkeys("abcd", 1.0))
    assert spent["a"] == pytest.approx(400 * FLOOR / (3 + FLOOR), rel=0.2)


def test_turns_that_are_still_running_count():
    bandit = Bandit("abc")
    chosen = []
    for _ in range(3):
        arm = bandit.choose()
        assert arm is not None
        chosen.append(arm.key)
        bandit.charge(arm.key, 2.0)
    assert sorted(chosen) == ["a", "b", "c"]
    before = bandit.arms["a"].clock
    bandit.release("a")
    assert bandit.arms["a"].clock < before


def test_a_busy_arm_waits_while_another_one_fits():
    bandit = Bandit("ab")
    bandit.record("b", seconds=100.0, cases=1, new=0, rise=0.0)
    chosen = [bandit.choose(busy={"a"}), bandit.choose(busy={"a", "b"}), bandit.choose(fits=lambda _: False)]
    assert [one and one.key for one in chosen] == ["b", "a", None]


def test_a_dropped_arm_has_no_turns_and_keeps_its_figures():
    bandit = Bandit("ab")
    bandit.record("a", seconds=1.0, cases=1, new=3, rise=0.0)
    bandit.drop("a")
    bandit.drop("never heard of")
    chosen = bandit.choose()
    assert chosen is not None
    assert (chosen.key, bandit.dropped["a"].new) == ("b", 3)
