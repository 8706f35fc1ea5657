"""Turns: a property that is run again and again draws until its time is up, and tells each fault once."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from properties.cells import CELLS
from properties.harness import Harness
from properties.limits import Limits
from properties.report import ItemStats
from properties.strategies import recipes
from properties.subject import from_callable
from properties.turn import TimeIsUp, Turn, faults_of
from properties.verdict import PropertyFailed

FLOAT64 = next(cell for cell in CELLS if cell.name == "float64")


def turn_of(**fields: Any) -> Turn:
    later = time.monotonic() + 60.0
    given = {"seed": 1, "examples": 100, "until": later, "deadline": later, "minimise_seconds": 0.0}
    return Turn(**(given | fields))


def zeros(value, _shapes, _starts, locations, _weights):
    return value.new_zeros(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])


def harness_of(turn: Turn) -> Harness:
    return Harness(
        subject=from_callable(zeros, name="zeros:operator"),
        device=torch.device("cpu"),
        limits=Limits.cpu(),
        stats=ItemStats(test="test_it"),
        seed=turn.seed,
        examples=turn.examples,
        database=turn.database,
        target=True,
        turn=turn,
    )


def failing(output: str, kind: str = "memory") -> PropertyFailed:
    return PropertyFailed(f"{output}: wrong", kind=kind)  # type: ignore[arg-type]


def test_drawing_ends_when_the_time_is_up_and_that_is_no_failure():
    turn = turn_of(examples=100_000, until=time.monotonic() + 0.5)
    harness = harness_of(turn)
    harness.for_all(st.integers(), lambda _: time.sleep(0.001))
    assert turn.cut
    assert 0 < harness.stats.cases < 1000
    assert harness.stats.seconds < 5.0


def test_no_case_begins_after_the_end_and_nothing_is_kept_of_it():
    kept = InMemoryExampleDatabase()
    turn = turn_of(until=time.monotonic() - 1.0, database=kept)
    harness = harness_of(turn)
    harness.for_all(st.integers(), lambda _: None)
    assert harness.stats.cases == 0
    assert not any(kept.data.values())


def test_other_turns_draw_other_cases_and_the_same_turn_the_same():
    def drawn(seed: int) -> list[int]:
        values: list[int] = []
        harness_of(turn_of(seed=seed, examples=20)).for_all(st.integers(0, 2**40), values.append)
        return values

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_known_fault_is_counted_and_another_one_is_raised():
    def check(number: int) -> None:
        if number % 2:
            raise failing("out")
        if number > 1000:
            raise failing("grad_value")

    turn = turn_of(known=frozenset({("out", "memory")}))
    harness = harness_of(turn)
    with pytest.raises(PropertyFailed, match="grad_value"):
        harness.for_all(st.integers(0, 2**20), check)
    assert turn.seen["out", "memory"] > 0
    assert turn.raised == [("grad_value", "memory")]
    assert harness._failing is None

    turn = turn_of(known=frozenset({("out", "memory"), ("grad_value", "memory")}))
    harness = harness_of(turn)
    harness.for_all(st.integers(0, 2**20), check)
    assert harness.stats.cases == 100


def test_shrinking_does_not_slip_to_another_fault():
    seen: list[str] = []

    def check(number: int) -> None:
        output = "out" if number >= 1000 else "grad_value" if number >= 10 else ""
        if output:
            seen.append(output)
            raise failing(output)

    for _ in range(5):
        seen.clear()
        with pytest.raises(PropertyFailed) as found:
            harness_of(turn_of(seed=len(seen))).for_all(st.integers(0, 2**20), check)
        # Whichever came first is what is told.
        assert str(found.value).startswith(seen[0])


def test_a_fault_that_cannot_be_made_small_in_time_is_told_as_it_is():
    turn = turn_of(shrink_seconds=0.2)
    harness = harness_of(turn)

    def check(numbers: list[int]) -> None:
        time.sleep(0.02)
        if sum(numbers) > 10**6:
            raise failing("out")

    with pytest.raises(PropertyFailed, match="out: wrong"):
        harness.for_all(st.lists(st.integers(0, 2**40), min_size=5), check)
    assert not turn.whole
    assert harness.stats.seconds < 20.0


def test_how_long_a_fault_is_made_smaller_depends_on_the_fault():
    asked: list[tuple[str, str]] = []

    def effort(fault: tuple[str, str]) -> tuple[float, float]:
        asked.append(fault)
        return 0.0, 0.0

    def check(number: int) -> None:
        if number >= 0:
            raise failing("out")

    turn = turn_of(effort=effort)
    with pytest.raises(PropertyFailed):
        harness_of(turn).for_all(st.integers(0, 2**20), check)
    assert asked == [("out", "memory")]
    assert (turn.shrink_seconds, turn.minimise_seconds) == (0.0, 0.0)


def test_a_replay_of_nothing_is_no_failure():
    turn = turn_of(phases=(Phase.reuse, Phase.shrink), database=InMemoryExampleDatabase())
    harness = harness_of(turn)
    harness.for_all(st.integers(), lambda _: None)
    assert harness.stats.cases == 0


def test_what_is_judged_and_drawn_is_told():
    judged: list[Any] = []
    cases: list[Any] = []
    turn = turn_of(
        examples=5,
        on_judged=lambda *told: judged.append(told),
        on_case=lambda *told: cases.append(told),
        known=frozenset({("out", "logic fault"), ("out", "precision loss")}),
    )
    harness = harness_of(turn)
    limits = Limits.cpu().tiny()
    harness.for_all(recipes(FLOAT64, limits=limits), lambda recipe: harness.check(recipe, gradients=False))
    assert len(judged) == len(cases) == harness.stats.cases == 5
    for (ratio, worst, _), (classes, recorded, _) in zip(judged, cases, strict=True):
        assert ratio == recorded
        assert "cell: float64" in classes
        # Zero is off by the whole of what was expected.
        error = abs(worst["out"].expected)
        assert ratio["out"] == pytest.approx(error / worst["out"].bound if error else 0.0)


def test_faults_are_named_by_output_and_class():
    assert faults_of(failing("grad_value")) == [("grad_value", "memory")]
    assert faults_of(PropertyFailed("no output is named here")) == [("PropertyFailed", "logic fault")]
    assert faults_of(RuntimeError("cuda: no kernel image")) == [("RuntimeError", "refused wrongly")]
    assert faults_of(MemoryError("out: of memory")) == [("MemoryError", "memory")]


def test_the_end_of_the_time_is_none_of_the_errors_that_a_test_may_catch():
    assert not issubclass(TimeIsUp, Exception)
