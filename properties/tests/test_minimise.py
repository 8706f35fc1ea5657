"""The minimiser on failures made up for it: no kernel runs here."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch.autograd.gradcheck import GradcheckError

from properties.cells import CELLS
from properties.declaration import Declaration
from properties.explicit import MAX_NUMBERS, OPERANDS, Explicit
from properties.harness import Harness
from properties.journal import DeviceLost, Journal
from properties.limits import Limits
from properties.minimise import failure_key, minimise, numbers_may_change
from properties.recipe import LAYOUTS, Lattice, Recipe
from properties.reductions import AXES, PLAIN, State, cost, crop, rewrites, with_entries
from properties.report import ItemStats
from properties.subject import declaring
from properties.verdict import Evidence, PropertyFailed

FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")
MIXED = next(cell for cell in CELLS if cell.name == "bfloat16-float32-bfloat16")
LARGE = Recipe(
    cell=FLOAT32,
    batch=2,
    queries=21,
    heads=2,
    channels=3,
    points=2,
    levels=((3, 4), (2, 2), (1, 5)),
    value_layout="padded",
    locations_layout="sliced",
    weights_layout="permuted",
    grad_output_layout="transposed",
    locations=("inside", "border", "nan", "infinite", "edge"),
    value="wide",
    seed=3,
)
SMALLEST = dataclasses.replace(
    LARGE,
    batch=1,
    queries=1,
    heads=1,
    channels=1,
    points=1,
    levels=((1, 1),),
    value_layout="contiguous",
    locations_layout="contiguous",
    weights_layout="contiguous",
    grad_output_layout="contiguous",
    explicit=Explicit(value=("0x0p+0",), locations=("0x1p-1", "0x1p-1"), weights=("0x1p+0",), grad_output=("0x1p+0",)),
)
LONG = 60.0

Condition = Callable[[Recipe], bool]


def when(condition: Condition) -> Callable[[Recipe], str | None]:
    return lambda recipe: "wrong" if condition(recipe) else None


def has_nan(recipe: Recipe) -> bool:
    return bool(recipe.build().locations.isnan().any())


def reads_left_of_the_map(recipe: Recipe) -> bool:
    """Some sample lies between the border of the map and the centres of its first pixels, on a pixel that is not 0."""
    inputs = recipe.build()
    starts = [0, *itertools.accumulate(height * width for height, width in inputs.levels)]
    for level, (height, width) in enumerate(inputs.levels):
        place = inputs.locations[:, :, :, level].double() * torch.tensor([width, height]) - 0.5
        x, y = place.unbind(-1)
        found = (x > -1) & (x < 0) & (y > 0) & (y < height - 1)
        if bool(found.any()) and bool(inputs.value[:, starts[level] : starts[level + 1]].any()):
            return True
    return False


CONDITIONS: dict[str, Condition] = {
    "always": lambda _: True,
    "17 queries": lambda recipe: recipe.queries >= 17,
    "a count of queries": lambda recipe: recipe.queries % 16 == 5,
    "NaN": has_nan,
    "left of the map": reads_left_of_the_map,
    "a large sum": lambda recipe: float(recipe.build().value.double().abs().sum()) > 100.0,
    "two levels": lambda recipe: len(recipe.levels) >= 2 and recipe.levels[0] != recipe.levels[1],
    "a layout": lambda recipe: recipe.weights_layout == "permuted" and recipe.heads > 1,
}
each_condition = pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)


# ---------------------------------------------------------------- where it ends


def test_what_always_fails_ends_at_the_smallest_case():
    assert minimise(LARGE, when(CONDITIONS["always"]), seconds=LONG) == SMALLEST


@pytest.mark.parametrize("least", [1, 2, 3, 8, 16, 17, 20, 21])
def test_a_block_edge_ends_at_the_first_count(least):
    small = minimise(LARGE, when(lambda recipe: recipe.queries >= least), seconds=LONG)
    assert small.queries == least
    assert (small.batch, small.heads, small.points, small.channels, small.levels) == (1, 1, 1, 1, ((1, 1),))


@pytest.mark.parametrize("first", [0, 7, 12])
def test_counts_of_a_period_end_in_the_first(first):
    large = dataclasses.replace(LARGE, queries=32 + first, heads=1, batch=1)
    small = minimise(large, when(lambda recipe: recipe.queries % 16 == first), seconds=LONG)
    assert small.queries == (first or 16)


@pytest.mark.parametrize("place", [0, 9, 20])
def test_one_query_among_many_is_found(place):
    number = State.of(LARGE).full("weights")[1, place, 1, 2, 1].item()

    def fails(recipe: Recipe) -> bool:
        return bool((recipe.build().weights == number).any())

    small = minimise(LARGE, when(fails), seconds=LONG)
    assert (small.samples, small.levels, small.channels) == (1, ((1, 1),), 1)
    assert small.explicit is not None
    assert small.explicit.numbers("weights") == [number]


def test_nan_stays_where_it_matters():
    small = minimise(LARGE, when(has_nan), seconds=LONG)
    assert small.explicit is not None
    assert sorted(small.explicit.locations) == ["0x1p-1", "nan"]
    assert dataclasses.replace(small, explicit=None) == dataclasses.replace(SMALLEST, explicit=None)


def test_a_sample_keeps_its_place_while_its_level_shrinks():
    large = dataclasses.replace(LARGE, levels=((9, 8), (7, 7)), locations=("inside", "border"))
    small = minimise(large, when(reads_left_of_the_map), seconds=LONG)
    assert small.samples == 1
    assert small.levels == ((2, 1),)
    assert small.explicit is not None
    assert sorted(small.explicit.value) == ["0x0p+0", "0x1p+0"]


def test_numbers_lose_the_bits_that_do_not_matter():
    small = minimise(LARGE, when(CONDITIONS["a large sum"]), seconds=LONG)
    assert small.explicit is not None
    (value,) = small.explicit.numbers("value")
    assert math.frexp(abs(value))[0] == 0.5
    assert abs(value) > 100.0


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
@pytest.mark.parametrize("value", ["normal", "huge", "subnormal"])
def test_every_number_can_be_stored(cell, value):
    large = dataclasses.replace(LARGE, cell=cell, value=value, queries=3, locations=("inside", "nan", "ulps"))
    state = State.of(large)
    for operand in OPERANDS:
        numbers = state.tensors[operand]
        dtype = getattr(large.build(), operand).dtype
        for rewritten in rewrites(state, operand):
            stored = rewritten.to(dtype).double()
            assert torch.equal(stored.nan_to_num(7.0), rewritten.nan_to_num(7.0))
            grown = (rewritten.abs() > numbers.abs()) & (cost(operand, rewritten) < cost(operand, numbers))
            if operand != "locations":
                assert float(rewritten[grown].abs().max() if bool(grown.any()) else 0.0) <= 1.0


def test_other_dtypes_stay_as_they_are():
    small = minimise(dataclasses.replace(LARGE, cell=MIXED), when(CONDITIONS["a large sum"]), seconds=LONG)
    assert small.cell == MIXED
    assert State.of(small).recipe() == small


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_that_matters_stays(layout):
    large = dataclasses.replace(LARGE, **{f"{operand}_layout": layout for operand in OPERANDS})

    def strided(recipe: Recipe) -> bool:
        inputs = recipe.build()
        return recipe.weights_layout == layout and (layout != "expanded" or 0 in inputs.weights.stride())

    small = minimise(large, when(strided), seconds=LONG)
    assert small.weights_layout == layout
    assert {getattr(small, f"{operand}_layout") for operand in OPERANDS if operand != "weights"} == {"contiguous"}
    assert small.samples == (2 if layout == "expanded" else 1)
    assert State.of(small).recipe() == small


def test_expanded_operands_that_become_plain_are_written_out():
    large = dataclasses.replace(LARGE, value_layout="expanded")
    before, after = large.build(), minimise(large, when(lambda r: r.channels == 3), seconds=LONG, numbers=False)
    assert 0 in before.value.stride()
    assert after.value_layout == "contiguous"
    assert after.explicit is not None
    assert len(after.explicit.value) == after.pixels * 3


@pytest.mark.parametrize("size", ["batch", "queries", "heads", "channels", "points"])
def test_empty_operands_stay_empty(size):
    empty = Recipe.from_dict({**LARGE.to_dict(), size: 0})
    small = minimise(empty, when(lambda recipe: getattr(recipe, size) == 0), seconds=LONG)
    assert sum(getattr(small, name) for name in ("batch", "queries", "heads", "channels", "points")) == 4


def test_no_levels_at_all():
    small = minimise(dataclasses.replace(LARGE, levels=()), when(lambda recipe: not recipe.levels), seconds=LONG)
    assert (small.queries, small.levels) == (1, ())


def test_numbers_that_must_not_change_are_only_left_out():
    small = minimise(LARGE, when(lambda recipe: recipe.queries >= 2), seconds=LONG, numbers=False)
    before = State.of(LARGE)
    assert small.queries == 2
    # The map of a level is not cropped either: its samples would get other numbers.
    assert small.levels[0] in LARGE.levels
    for operand in OPERANDS:
        known = {repr(number) for number in before.tensors[operand].reshape(-1).tolist()}
        assert small.explicit is not None
        assert {repr(number) for number in small.explicit.numbers(operand)} <= known


# ---------------------------------------------------------------- what it promises


@each_condition
def test_the_same_search_ends_at_the_same_case(condition):
    runs = []
    for _ in range(2):
        kept: list[Recipe] = []
        runs.append((minimise(LARGE, when(condition), seconds=LONG, keep=kept.append), kept))
    assert runs[0] == runs[1]
    small, kept = runs[0]
    assert condition(small)
    assert small == kept[-1]


@each_condition
def test_it_gets_smaller_with_every_step_and_tries_nothing_twice(condition):
    kept: list[Recipe] = []
    tried: list[Recipe] = []

    def fails(recipe: Recipe) -> str | None:
        tried.append(recipe)
        return when(condition)(recipe)

    minimise(LARGE, fails, seconds=LONG, keep=kept.append)
    measures = [State.of(recipe).measure for recipe in (LARGE, *kept)]
    assert all(later < earlier for earlier, later in itertools.pairwise(measures))
    assert len(set(tried)) == len(tried)
    assert len(tried) < 1500


@each_condition
def test_it_can_be_resumed_anywhere(condition):
    kept: list[Recipe] = []
    small = minimise(LARGE, when(condition), seconds=LONG, keep=kept.append)
    assert minimise(small, when(condition), seconds=LONG) == small
    for recipe in kept[:: max(1, len(kept) // 8)]:
        again = minimise(Recipe.from_json(recipe.to_json()), when(condition), seconds=LONG)
        assert State.of(again).measure <= State.of(small).measure


def test_it_stops_in_time_and_goes_on_from_there():
    def slow(recipe: Recipe) -> str | None:
        time.sleep(0.01)
        return when(CONDITIONS["17 queries"])(recipe)

    started = time.perf_counter()
    cut = minimise(LARGE, slow, seconds=0.1)
    assert time.perf_counter() - started < 1.0
    assert cut.queries >= 17
    assert cut.samples < LARGE.samples
    whole = minimise(LARGE, when(CONDITIONS["17 queries"]), seconds=LONG)
    assert minimise(cut, when(CONDITIONS["17 queries"]), seconds=LONG) == whole


def test_without_time_nothing_runs():
    def fails(_recipe: Recipe) -> str | None:
        raise AssertionError

    assert minimise(LARGE, fails, seconds=0.0) is LARGE


def test_another_failure_is_not_followed():
    def fails(recipe: Recipe) -> str:
        return "this one" if recipe.queries >= 4 else "another one"

    assert minimise(LARGE, fails, seconds=LONG).queries == 4


@pytest.mark.parametrize("failure", [None, "another one"])
def test_what_fails_as_drawn_alone_is_left_alone(failure):
    def fails(recipe: Recipe) -> str | None:
        return "this one" if recipe.explicit is None else failure

    assert minimise(LARGE, fails, seconds=LONG) is LARGE


def test_what_does_not_fail_is_left_alone():
    assert minimise(LARGE, lambda _: None, seconds=LONG) is LARGE


def test_a_lattice_is_written_out():
    lattice = dataclasses.replace(
        LARGE, locations=("lattice", "nan"), weights="dyadic", value="integer", lattice=Lattice(value=3, grad=0)
    )
    state = State.of(lattice)
    assert (state.shell.locations, state.shell.lattice) == (("nan",), None)
    before, after = lattice.build(), state.recipe().build()
    for operand in OPERANDS:
        assert torch.equal(getattr(before, operand).nan_to_num(7.0), getattr(after, operand).nan_to_num(7.0))


def test_too_many_numbers_are_not_written_down():
    large = dataclasses.replace(LARGE, levels=((80, 80),), batch=1, heads=1, channels=1, queries=1)
    kept: list[Recipe] = []
    assert minimise(large, when(lambda r: r.pixels >= MAX_NUMBERS), seconds=LONG, keep=kept.append) is large
    assert all(State.of(recipe).numbers <= MAX_NUMBERS for recipe in kept)
    assert minimise(large, when(lambda r: r.pixels >= 16), seconds=LONG).pixels < 40


# ---------------------------------------------------------------- reductions


def test_entries_are_dropped_everywhere():
    state = State.of(LARGE)
    for dimension in AXES:
        kept = [state.size(dimension) - 1]
        less = with_entries(state, dimension, kept)
        assert less.size(dimension) == 1
        inputs, whole = less.recipe().build(), LARGE.build()
        assert inputs.value.shape == less.shell.shape("value")
        if dimension == "levels":
            assert torch.equal(inputs.value, whole.value[:, -5:])
        if dimension == "heads":
            assert torch.equal(inputs.grad_output, whole.grad_output[..., 3:])


@pytest.mark.parametrize("corner", [(0, 0), (1, 1), (1, 2)])
def test_a_cropped_level_keeps_its_pixels_and_samples(corner):
    large = dataclasses.replace(LARGE, locations=("inside",), value="normal")
    state = State.of(large)
    less = crop(state, 0, corner, (2, 2), move=True)
    before, after = state.full("value")[:, :12].unflatten(1, (3, 4)), less.full("value")[:, :4].unflatten(1, (2, 2))
    top, left = corner
    assert torch.equal(after, before[:, top : top + 2, left : left + 2])
    assert torch.equal(less.full("value")[:, 4:], state.full("value")[:, 12:])
    was = state.full("locations")[..., 0, :, :] * torch.tensor([4.0, 3.0]) - torch.tensor([left, top])
    now = less.full("locations")[..., 0, :, :] * 2.0
    # A moved location is rounded to float32; what float64 rounded before is a few units of 2^-53 of pixels below 4.
    assert ((was - now).abs() <= 2.0**-24 * now.abs() + 2.0**-48).all()


def test_plain_numbers_cost_less():
    # Each costs less than the one after it.
    for operand, order in {
        "value": [0.0, 1.0, -1.0, -0.0, 2.0, -2.0, 1.5, 1.25, 2.0**-149, 1.0 / 3.0, math.inf, math.nan],
        "locations": [0.5, 0.25, 0.75, 0.0, 1.0, 2.0, 0.375, 0.1, math.inf, math.nan],
    }.items():
        costs = cost(operand, torch.tensor(order, dtype=torch.float64)).tolist()
        bits = [number for number in costs if number < 300]
        assert bits == sorted(bits)
        assert costs[0] == 0
        assert costs[-1] == max(costs)
    assert all(cost(operand, torch.tensor(PLAIN[operand], dtype=torch.float64))[0] == 0 for operand in OPERANDS)


# ---------------------------------------------------------------- how failures are told apart


def evidence(output: str = "out") -> Evidence:
    return Evidence(output=output, failure="not finite", expected=0.0, got=math.inf, index=(0,))


def test_failures_are_told_apart():
    assert failure_key(PropertyFailed("", evidence=[evidence()])) == "out: not finite"
    assert failure_key(RuntimeError("17")) == "RuntimeError"
    first, second = (PropertyFailed(f"rows: level {n} differs\n  {n}") for n in (1, 22))
    assert failure_key(first) == failure_key(second) == "PropertyFailed: rows: level # differs"


def test_only_a_bound_takes_any_numbers():
    assert numbers_may_change(PropertyFailed("", evidence=[evidence()]))
    assert numbers_may_change(RuntimeError())
    assert not numbers_may_change(PropertyFailed("a relation"))
    assert not numbers_may_change(GradcheckError())


# ---------------------------------------------------------------- in the harness


def failing(recipe: Recipe) -> None:
    tensors = recipe.build()
    if tensors.queries > 2:
        raise PropertyFailed(f"out: wrong for {recipe.describe()}", evidence=[evidence()])


def harness_of(kept: list[Recipe] | None = None, **given) -> Harness:
    def keep(recipe: Recipe, _error: Exception) -> list[str]:
        if kept is not None:
            kept.append(recipe)
        return ["  case      kept"]

    settings = {"examples": 3, "on_failure": keep, **given}
    return Harness(
        subject=declaring(lambda *_: torch.empty(0), Declaration(), name="never called"),
        device=torch.device("cpu"),
        limits=Limits.cpu(),
        stats=ItemStats(test="none"),
        **settings,
    )


def test_the_minimised_case_is_told_and_kept():
    kept: list[Recipe] = []
    harness = harness_of(kept)
    with pytest.raises(PropertyFailed, match="out: wrong for float32 B1 Q3 M1 D1 K1 levels 1x1 at given") as caught:
        harness.for_all(st.just(LARGE), failing)
    (small,) = kept
    assert small == dataclasses.replace(SMALLEST, queries=3, explicit=small.explicit)
    assert str(caught.value).endswith("\n  case      kept")
    assert caught.value.__context__ is None
    # One case was drawn, whatever was run to make it small.
    assert harness.stats.cases == 1
    assert harness.stats.shrinks > 20
    assert harness.case is None


def test_it_is_off_when_there_is_no_time_for_it():
    kept: list[Recipe] = []
    with pytest.raises(PropertyFailed):
        harness_of(kept, minimise_seconds=0.0).for_all(st.just(LARGE), failing)
    assert kept == [LARGE]


def test_a_case_from_a_file_stays_as_it_is():
    kept: list[Recipe] = []
    with pytest.raises(PropertyFailed):
        harness_of(kept, case=LARGE).for_all(st.nothing(), failing)
    assert kept == [LARGE]


def test_what_is_no_recipe_is_not_minimised():
    def check(number: int) -> None:
        raise PropertyFailed(f"{number}")

    with pytest.raises(PropertyFailed, match="0"):
        harness_of().for_all(st.integers(0, 9), check)


def test_skipped_and_discarded_candidates_pass():
    def check(recipe: Recipe) -> None:
        assume(recipe.queries > 6)
        if recipe.explicit is not None and recipe.channels < 3:
            pytest.skip("not this one")
        failing(recipe)

    kept: list[Recipe] = []
    harness = harness_of(kept)
    with pytest.raises(PropertyFailed):
        harness.for_all(st.just(LARGE), check)
    assert (kept[0].queries, kept[0].channels, kept[0].batch) == (7, 3, 1)
    assert harness.stats.discarded == 0


def test_events_and_targets_of_candidates_are_not_for_hypothesis():
    harness = harness_of(target=True)

    def check(recipe: Recipe) -> None:
        harness.event("seen")
        harness.record(ratio={"out": float(recipe.queries)})
        failing(recipe)

    with pytest.raises(PropertyFailed, match="B1 Q3"):
        harness.for_all(st.just(LARGE), check)
    assert harness.stats.ratio == {"out": float(LARGE.queries)}


def test_a_smallest_case_that_passes_in_the_end_is_not_told():
    passes: set[Recipe] = set()

    def check(recipe: Recipe) -> None:
        if recipe.queries <= 3 and recipe in passes:
            return
        passes.add(recipe)
        failing(recipe)

    kept: list[Recipe] = []
    with pytest.raises(PropertyFailed, match="B2 Q21"):
        harness_of(kept).for_all(st.just(LARGE), check)
    assert kept == [LARGE]


def test_a_check_of_something_else_is_not_minimised(monkeypatch):
    def fails(*_args, **_given):
        raise PropertyFailed("out: always", evidence=[evidence()])

    monkeypatch.setattr("properties.walk.walk", fails)
    kept: list[Recipe] = []
    harness = harness_of(kept)
    with pytest.raises(PropertyFailed):
        harness.for_all(st.just(LARGE), lambda _: harness.check(LARGE, gradients=True))
    assert kept == [LARGE]
    with pytest.raises(PropertyFailed):
        harness.for_all(st.just(LARGE), lambda recipe: harness.check(recipe, gradients=True))
    assert kept[1] == SMALLEST


def test_every_candidate_is_noted_before_it_runs(tmp_path):
    noted: list[Recipe] = []

    class Notes(Journal):
        def begin(self, recipe: Recipe) -> None:
            noted.append(recipe)

    def check(recipe: Recipe) -> None:
        assert noted[-1] is recipe
        failing(recipe)

    journal = Notes(path=tmp_path / "journal", origin={}, is_lost=lambda: False, leave=lambda *_: None)
    with pytest.raises(PropertyFailed, match="B1 Q3"):
        harness_of(journal=journal).for_all(st.just(LARGE), check)
    assert len(noted) > 20


def test_a_lost_device_ends_everything(tmp_path):
    lost: list[Recipe] = []
    journal = Journal(
        path=tmp_path / "journal", origin={}, is_lost=lambda: bool(lost), leave=lambda recipe, _: lost.append(recipe)
    )

    def check(recipe: Recipe) -> None:
        if recipe.explicit is not None and 2 < recipe.queries < 8:
            lost.append(recipe)
        failing(recipe)

    kept: list[Recipe] = []
    with pytest.raises(DeviceLost):
        harness_of(kept, journal=journal).for_all(st.just(LARGE), check)
    assert kept == []
    assert lost[0] == lost[1]
    journal.end()


def test_failures_leave_no_tensors_behind():
    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    harness = harness_of(minimise_seconds=0.05, examples=1)

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(PropertyFailed):
                harness.for_all(st.just(LARGE), failing)

    fail(1)
    before = tensors()
    fail(100)
    assert tensors() <= before


def test_what_the_subject_does_not_promise_is_no_smaller_case():
    """Simpler numbers may be infinite; a subject that says nothing of those must not be shown them."""
    tried: list[Recipe] = []
    says = Declaration(nonfinite="propagate")
    harness = dataclasses.replace(harness_of(), subject=declaring(lambda *_: LARGE, says, name="x"))  # type: ignore[arg-type]
    assert harness._attempt(LARGE, tried.append) is None
    assert tried == []
    finite = dataclasses.replace(LARGE, locations=("inside",))
    assert harness._attempt(finite, tried.append) is None
    assert tried == [finite]
