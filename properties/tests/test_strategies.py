"""Strategies: what they draw stays within its limits, reaches every class, and shrinks well."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from properties.cells import CELLS, DtypeCell, cell_named
from properties.classes import REQUIRED, classes
from properties.limits import FOCUSES, Sizes, fit
from properties.profiles import draws_independent_of_imports
from properties.recipe import Recipe
from properties.strategies import Limits, empty_recipes, recipes

# What a default run on the CPU draws, at the least: five properties, each with six cases of each dtype cell.
PROPERTIES = 5
EXAMPLES = 6
QUICK = settings(max_examples=100, derandomize=True, database=None, deadline=None)
SEARCH = settings(max_examples=2000, derandomize=True, database=None, deadline=None)
FLOAT32 = cell_named("float32")
LIMITS = {
    "cpu": Limits.cpu(),
    "cpu-odd-blocks": Limits.cpu({"queries": (3, 5), "samples": (4,), "channels": (16,)}),
    "cuda": Limits.cuda(),
    "tiny": Limits.cpu().tiny(),
}


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("name", LIMITS)
def test_drawn_recipes_fit_their_limits(name: str):
    limits = LIMITS[name]

    @QUICK
    @given(recipes(FLOAT32, limits=limits))
    def check(recipe: Recipe) -> None:
        sizes = Sizes.of(recipe)
        assert limits.max_steps is None or sizes.steps(limits) <= limits.max_steps
        assert sizes.value_elements <= limits.max_value_elements
        assert sizes.tile_elements <= limits.max_tile_elements
        assert recipe.samples > 0
        assert recipe.pixels > 0

    check()


@QUICK
@given(keep=st.sampled_from(FOCUSES), budget=st.integers(1, 50), count=st.integers(1, 8), side=st.integers(1, 40))
def test_fit_always_ends_within_the_budget(keep: str, budget: int, count: int, side: int):
    limits = Limits(max_steps=budget, max_value_elements=budget, max_tile_elements=budget)
    sizes = Sizes(batch=3, queries=33, heads=8, channels=256, points=8, levels=[(side, 7), (1, 2000)] * count)
    fit(sizes, limits, keep=keep)
    assert sizes.steps(limits) <= budget
    assert sizes.value_elements <= budget
    assert sizes.tile_elements <= budget


@pytest.mark.parametrize("keep", FOCUSES)
def test_fit_keeps_what_it_is_told_to(keep: str):
    drawn = {"batch": 3, "queries": 17, "heads": 8, "channels": 256, "points": 8}
    sizes = Sizes(**drawn, levels=[(1, 2000)])
    fit(sizes, Limits.cpu(), keep=keep)
    if keep == "levels":
        assert sizes.levels == [(1, 2000)]
    else:
        assert getattr(sizes, keep) == drawn[keep]


def test_fit_leaves_alone_what_fits():
    sizes = Sizes(batch=1, queries=9, heads=2, channels=32, points=4, levels=[(3, 5)])
    fit(sizes, Limits.cpu(), keep="batch")
    assert sizes == Sizes(batch=1, queries=9, heads=2, channels=32, points=4, levels=[(3, 5)])


def test_limits_take_block_edges():
    assert Limits.cpu({"queries": (4,), "samples": ()}).queries == (4,)
    assert Limits.cpu({"samples": ()}).samples == Limits().samples
    with pytest.raises(ValueError, match="block_edges has"):
        Limits.cuda({"rows": (4,)})
    with pytest.raises(ValueError, match="max_tile_elements is 0; expected at least 1"):
        Limits(max_tile_elements=0)
    with pytest.raises(ValueError, match="queries is"):
        Limits(queries=())


# ---------------------------------------------------------------- options


def test_options_restrict_what_is_drawn():
    strategy = recipes(
        FLOAT32,
        limits=Limits.cpu(),
        locations=("away", "far"),
        values=("sparse",),
        grads=("constant",),
        weights=("raw", "zero"),
        layouts=False,
    )

    @QUICK
    @given(strategy)
    def check(recipe: Recipe) -> None:
        assert {"away", "far"}.issuperset(recipe.locations)
        assert (recipe.value, recipe.grad_output) == ("sparse", "constant")
        assert recipe.weights in {"raw", "zero"}
        assert recipe.hot == ()
        assert not any(label.startswith("layout") and "contiguous" not in label for label in classes(recipe))

    check()


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_finite_locations_are_finite(cell: DtypeCell):
    @QUICK
    @given(recipes(cell, limits=Limits.cpu(), finite=True))
    def check(recipe: Recipe) -> None:
        assert recipe.build().locations.isfinite().all()

    check()


@pytest.mark.parametrize("option", ["locations", "values", "grads", "weights"])
def test_options_are_checked_early(option: str):
    for given_patterns in (("nowhere",), ()):
        options: dict[str, Any] = {option: given_patterns}
        with pytest.raises(ValueError, match=f"{option} is "):
            recipes(FLOAT32, limits=Limits.cpu(), **options)


def test_finite_leaves_something_to_draw():
    with pytest.raises(ValueError, match=r"locations is \(\); expected at least one of inside"):
        recipes(FLOAT32, limits=Limits.cpu(), locations=("nan",), finite=True)


def test_empty_recipes_are_empty():
    seen = set()

    @QUICK
    @given(empty_recipes(FLOAT32, limits=Limits.cpu()))
    def check(recipe: Recipe) -> None:
        assert "empty" in classes(recipe)
        empty = {name for name in ("batch", "queries", "heads", "channels", "points") if not getattr(recipe, name)}
        empty |= set() if recipe.levels else {"levels"}
        seen.update(empty)
        assert 1 <= len(empty) <= 2
        assert any(operand.numel() == 0 for operand in (recipe.build().value, recipe.build().weights))

    check()
    assert seen == {"batch", "queries", "heads", "channels", "points", "levels"}


# ---------------------------------------------------------------- reach


def drawn_classes(limits: Limits, session: int) -> Counter[str]:
    """Count the classes of one run, which draws anew for every property and dtype cell."""
    counts: Counter[str] = Counter()
    for number, cell in enumerate(CELLS * PROPERTIES):

        @hypothesis.seed(1000 * session + number)
        @settings(max_examples=EXAMPLES, database=None, deadline=None)
        @given(recipes(cell, limits=limits))
        def count(recipe: Recipe) -> None:
            counts.update(classes(recipe, limits=limits))

        count()
    return counts


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_default_run_reaches_every_class(name: str):
    counts = drawn_classes(LIMITS[name], 0)
    empty = sorted(label for label in REQUIRED if not counts[label])
    assert not empty, f"no recipe of a default run has {empty}"


def test_no_class_is_rare():
    # Three runs together, so that one unlucky run is not taken for a rare class.
    counts = sum((drawn_classes(Limits.cpu(), session) for session in range(1, 4)), Counter())
    rare = {label: counts[label] for label in sorted(REQUIRED) if counts[label] < 3 * 3}
    assert not rare


def test_classes_are_counted_as_events():
    seen: list[str] = []

    @settings(max_examples=1, database=None, deadline=None)
    @given(recipes(FLOAT32, limits=Limits.cpu()))
    def check(_recipe: Recipe) -> None:
        seen.extend(map(str, hypothesis.control.current_build_context().data.events))

    check()
    assert seen == list(classes(MINIMAL))


# ---------------------------------------------------------------- shrinking


@pytest.fixture(autouse=True)
def _same_draws_in_any_order() -> Iterator[None]:
    """Hypothesis also draws constants of whatever is imported, which depends on the tests before this one."""
    with draws_independent_of_imports():
        yield


MINIMAL = Recipe(cell=FLOAT32)
# Four samples are four: nothing smaller fails, and neither of the two is simpler.
FOUR_SAMPLES = ({"points": 4, "batch": 2}, {"points": 2, "levels": ((1, 1),) * 2, "batch": 2})


@pytest.mark.parametrize(
    ("fails", "minimal"),
    [
        (lambda _: True, {}),
        (lambda r: any(height != width for height, width in r.levels), {"levels": ((1, 2),)}),
        (lambda r: max(width for _, width in r.levels) >= 1000, {"levels": ((1, 1000),)}),
        (lambda r: len(r.levels) >= 3, {"levels": ((1, 1),) * 3}),
        (lambda r: r.channels > 64, {"channels": 65}),
        (lambda r: r.heads >= 2 and r.queries > 8, {"heads": 2, "queries": 9}),
        (lambda r: r.points * len(r.levels) > 3 and r.batch > 1, FOUR_SAMPLES),
        (lambda r: "nan" in r.locations, {"locations": ("nan",)}),
        (lambda r: r.value_layout == "expanded" and r.batch == 2, {"value_layout": "expanded", "batch": 2}),
        (lambda r: r.weights == "zero" and r.grad_output == "huge", {"weights": "zero", "grad_output": "huge"}),
    ],
    ids=["anything", "non-square", "wide", "levels", "channels", "heads", "samples", "nan", "expanded", "patterns"],
)
def test_failures_shrink_to_what_they_need(fails: Callable[[Recipe], bool], minimal: dict | tuple[dict, ...]):
    found = find(recipes(FLOAT32, limits=Limits.cpu()), fails, settings=SEARCH)
    choices = minimal if isinstance(minimal, tuple) else (minimal,)
    assert found in [dataclasses.replace(MINIMAL, **choice) for choice in choices]


def test_hot_samples_shrink_away_or_to_the_middle():
    found = find(recipes(FLOAT32, limits=Limits.cpu()), lambda r: len(r.hot) > 0, settings=SEARCH)
    assert found.hot == ((0, 0.5, 0.5),)
    assert found.samples == 1


def test_a_failure_of_the_tensors_shrinks_too():
    # A mask fault on the last channel of a block: needs 33 channels and nothing else.
    found = find(
        recipes(FLOAT32, limits=Limits.cpu()),
        lambda r: bool(torch.any(r.build().value[..., 32:] != 0)),
        settings=SEARCH,
    )
    assert (found.channels, found.queries, found.heads, found.samples, found.pixels) == (33, 1, 1, 1, 1)
