"""Lattice recipes: nothing rounds in them, whatever a correct kernel does; budgets are neither loose nor idle."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import find, given, seed, settings
from hypothesis import strategies as st

from properties.cells import CELLS, DtypeCell, cell_named
from properties.classes import classes
from properties.lattice import fits, is_lattice, lattice_budget, shrink_sizes, widen
from properties.limits import Limits
from properties.recipe import Lattice, Recipe
from properties.strategies import lattice_recipes
from properties.subject import Observation
from properties.verdict import judge
from reference import emulate
from reference.inputs import Inputs
from reference.lattice import expect_exactly
from reference.machine import Order
from reference.model import Accumulate, Arithmetic, Coordinates, Interpolation

QUICK = settings(max_examples=30, derandomize=True, database=None, deadline=None)
# The emulation goes through its operations one by one.
SMALL = Limits(max_steps=8, max_value_elements=2048, max_tile_elements=2048)
FLOAT32 = cell_named("float32")


def simple(**fields) -> Recipe:
    patterns = {"locations": ("lattice",), "value": "integer", "grad_output": "integer", "weights": "dyadic"}
    return Recipe(**{"cell": FLOAT32, "lattice": Lattice(), **patterns, **fields})


def emulated(inputs: Inputs, arithmetic: Arithmetic, random: np.random.Generator) -> Observation:
    result = emulate.run(
        inputs,
        arithmetic,
        rng=random,
        contract=bool(random.integers(2)),
        order=random.choice(get_args(Order)).item(),
        flush=bool(random.integers(2)),
    )
    return Observation(
        out=result.out,
        grad_value=result.grad_value,
        grad_sampling_locations=result.grad_sampling_locations,
        grad_attention_weights=result.grad_attention_weights,
    )


@pytest.mark.parametrize("accumulate", get_args(Accumulate))
@pytest.mark.parametrize("coordinates", get_args(Coordinates))
@pytest.mark.parametrize("interpolation", get_args(Interpolation))
def test_emulated_kernels_round_nothing(interpolation: Interpolation, coordinates: Coordinates, accumulate: Accumulate):
    # Every form, order, contraction and flushing that the emulation knows: the budgets are proven for all of them.
    arithmetic = Arithmetic(interpolation=interpolation, coordinates=coordinates, accumulate=accumulate)

    @QUICK
    @given(st.sampled_from(CELLS).flatmap(lambda cell: lattice_recipes(cell, limits=SMALL, arithmetic=arithmetic)))
    def check(recipe: Recipe) -> None:
        assert fits(recipe, arithmetic)
        inputs = recipe.build()
        random = np.random.default_rng(recipe.seed)
        verdict = judge(emulated(inputs, arithmetic, random), expect_exactly(inputs))
        assert verdict.passed, verdict

    check()


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_stored_operands_are_the_lattice(cell: DtypeCell):
    @QUICK
    @given(lattice_recipes(cell, limits=SMALL, skipped=False))
    def check(recipe: Recipe) -> None:
        lattice = recipe.lattice
        assert lattice is not None
        inputs = recipe.build()
        for tensor, bits, step in (
            (inputs.value, lattice.value, 0),
            (inputs.grad_output, lattice.grad, 0),
            (inputs.weights, lattice.weight, lattice.step),
        ):
            numbers = tensor.double() * 2.0**step
            assert torch.equal(numbers, numbers.round())
            assert numbers.abs().max() <= 2 ** (bits + step)
        sizes = torch.tensor([(width, height) for height, width in recipe.levels]).view(-1, 1, 2)
        place = inputs.locations.double() * sizes - 0.5
        assert torch.equal(place * 2.0**lattice.fraction, (place * 2.0**lattice.fraction).round())

    check()


def test_half_of_the_coordinates_are_on_pixel_edges():
    recipe = simple(queries=500, levels=((8, 24),), lattice=Lattice(fraction=6), seed=3)
    x, y = (recipe.build().locations.double() * torch.tensor([24, 8]) - 0.5).unbind(-1)
    for place, side in ((x, 24), (y, 8)):
        on_edge = place[place == place.round()]
        assert 0.4 < on_edge.numel() / place.numel() < 0.6
        assert set(on_edge.tolist()) >= {-1.0, 0.0, 2.0, side - 1.0, float(side)} or side == 24
    assert "lattice: pixel edges" in classes(recipe)


def test_a_wide_level_uses_the_bits_that_its_locations_have():
    # bfloat16 has 8 bits: steps of 8 pixels on 1024, and no pixel edge at all.
    recipe = simple(cell=cell_named("bfloat16"), queries=50, levels=((1, 1024),), lattice=Lattice(fraction=4), seed=1)
    place = recipe.build().locations[..., 0].double() * 1024 - 0.5
    assert torch.equal(place.sub(place.floor()), torch.full_like(place, 0.5))


def test_budgets_are_used():
    # Of one output or another nearly all bits are in use; a kernel that loses one is then seen.
    left: Counter[int] = Counter()

    @seed(0)
    @settings(max_examples=200, database=None, deadline=None)
    @given(lattice_recipes(FLOAT32, limits=Limits.cpu()))
    def count(recipe: Recipe) -> None:
        left[min(bits.allowed - bits.used for bits in lattice_budget(recipe).values())] += 1

    count()
    assert sum(count for spare, count in left.items() if spare <= 1) > 100


def test_budgets_of_a_known_recipe():
    recipe = simple(queries=9, points=3, channels=5, levels=((3, 6), (4, 4)), lattice=Lattice(3, 4, 5, 2, 1))
    budget = lattice_budget(recipe)
    # 6 samples: 3 bits; two factors of 3 bits each.
    assert budget["out"] == (3 + 6 + 2 + 1 + 4, 24)
    assert budget["grad_attention_weights"] == (3 + 6 + 4 + 5, 24)
    # 2 * 6 * 5 * 8 = 480: 9 bits.
    assert budget["grad_sampling_locations"] == (9 + 3 + 4 + 5, 24)
    assert budget["grad_value"] == (5 + 6 + 3 + 5, 24)
    native = lattice_budget(dataclasses.replace(recipe, cell=cell_named("bfloat16")), Arithmetic(accumulate="native"))
    assert native["grad_value"] == (19, 8)
    assert native["weights"] == (3, 8)


def test_sizes_give_way_to_a_16_bit_accumulator():
    arithmetic = Arithmetic(accumulate="native")
    recipe = simple(cell=cell_named("bfloat16"), queries=300, points=8)
    assert not fits(recipe, arithmetic)
    smaller = shrink_sizes(recipe, arithmetic)
    assert fits(smaller, arithmetic)
    assert smaller.points == 8
    assert smaller.queries * 8 <= 64 < 2 * smaller.queries * 8 + 8


def test_widening_serves_the_first_first():
    recipe = widen(simple(), (("value", 30), ("grad", 12), ("fraction", 3)))
    assert recipe.lattice == Lattice(fraction=1, value=22, grad=0)
    assert fits(recipe)
    assert widen(simple(), (("grad", 4), ("value", 5))).lattice == Lattice(value=5, grad=4)


def test_failures_shrink_to_the_smallest_lattice():
    found = find(
        lattice_recipes(FLOAT32, limits=Limits.cpu()),
        lambda recipe: recipe.lattice is not None and recipe.lattice.value >= 2,
        settings=settings(max_examples=2000, derandomize=True, database=None, deadline=None),
    )
    assert found.lattice == Lattice(value=2)
    assert (found.pixels, found.channels, found.samples) == (1, 1, 1)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(st.sampled_from(CELLS).flatmap(lambda cell: lattice_recipes(cell, limits=Limits.cuda())))
def test_json_round_trip(recipe: Recipe):
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert is_lattice(recipe)
    assert fits(recipe)


def test_recipes_of_before_have_no_lattice():
    plain = Recipe(cell=FLOAT32).to_dict()
    del plain["lattice"]
    assert Recipe.from_dict(plain) == Recipe(cell=FLOAT32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lattice": None}, "lattice is None with patterns"),
        ({"lattice": [1, 2]}, r"lattice is \[1, 2\]; expected an object with the fields fraction, value"),
        ({"lattice": {**Lattice()._asdict(), "step": -1}}, "lattice step is -1"),
        ({"lattice": {**Lattice()._asdict(), "fraction": 0}}, "lattice fraction is 0"),
        ({"value": "normal", "grad_output": "normal", "weights": "raw", "locations": ["inside"]}, "with patterns"),
    ],
)
def test_json_refusals(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Recipe.from_json(json.dumps(simple().to_dict() | change))


def test_numbers_off_the_lattice_have_no_budget():
    with pytest.raises(ValueError, match="patterns that are not on a lattice"):
        lattice_budget(simple(value="normal"))


def test_the_worst_element_is_told_where_nothing_may_round():
    inputs = simple().build()
    expectation = expect_exactly(inputs)
    verdict = judge(emulated(inputs, Arithmetic(), np.random.default_rng(0)), expectation, details=True)
    assert verdict.evidence == ()
    assert {name: (one.bound, one.likely) for name, one in verdict.worst.items()} == dict.fromkeys(
        ("out", "grad_value", "grad_sampling_locations", "grad_attention_weights"), (0.0, 0.0)
    )
