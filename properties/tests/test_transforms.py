"""Changes of a call, undone again: on the reference, which is exact on a lattice, nothing is left of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from properties import transforms
from properties.cells import CELLS, cell_named
from properties.harness import Harness
from properties.limits import Limits
from properties.recipe import Lattice, Recipe
from properties.relations import Relation, summed
from properties.report import ItemStats
from properties.strategies import lattice_recipes
from properties.subject import Subject
from properties.verdict import PropertyFailed
from reference import float64
from reference.inputs import Inputs

QUICK = settings(max_examples=30, derandomize=True, database=None, deadline=None)
FLOAT32 = cell_named("float32")
SMALL = Limits(max_steps=8, max_value_elements=2048, max_tile_elements=2048)


def mirrored(number: int) -> Callable[[Inputs, int], tuple[Inputs, transforms.Undo]]:
    flips = {"flip_x": bool(number & 1), "flip_y": bool(number & 2), "transpose": bool(number & 4)}
    return lambda inputs, _: transforms.mirror(inputs, **flips)


CHANGES: dict[str, Callable[[Inputs, int], tuple[Inputs, transforms.Undo]]] = {
    "rows": transforms.permute_rows,
    "samples": transforms.permute_samples,
    "points": lambda inputs, _: transforms.pad_points(inputs),
    "front": lambda inputs, _: transforms.pad_levels(inputs, front=True),
    "end": lambda inputs, _: transforms.pad_levels(inputs, front=False),
    **{f"mirror {number}": mirrored(number) for number in range(1, 8)},
}


def evaluated(inputs: Inputs) -> dict[str, Tensor]:
    gradients = float64.gradients(inputs)
    return {
        "out": float64.forward(inputs),
        "grad_value": gradients.value,
        "grad_sampling_locations": gradients.locations,
        "grad_attention_weights": gradients.weights,
    }


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_undone(name: str):
    @QUICK
    @given(lattice_recipes(FLOAT32, limits=SMALL))
    def check(recipe: Recipe) -> None:
        inputs = recipe.build()
        plain = evaluated(inputs)
        changed, undo = CHANGES[name](inputs, recipe.seed)
        one_sided = ~transforms.on_pixel_edge(inputs)
        for output, result in evaluated(changed).items():
            back = undo(output, result)
            assert back.shape == plain[output].shape
            equal = back == plain[output]
            if name.startswith("mirror") and output == "grad_sampling_locations":
                equal |= ~one_sided
            assert equal.all()

    check()


def test_permutations_move_everything_there_is():
    for size in range(2, 9):
        for seed in range(20):
            order = transforms.permutation(seed, 0, size, torch.device("cpu"))
            assert sorted(order.tolist()) == list(range(size))
            assert order.tolist() != list(range(size))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_leading_bits_and_the_rest_add_up(cell):
    for value in ("normal", "sparse", "wide", "subnormal"):
        tensor = Recipe(cell=cell, levels=((20, 20),), value=value).build().value
        leading = transforms.coarse(tensor)
        rest = tensor - leading
        assert rest.dtype == tensor.dtype
        assert torch.equal(leading.double() + rest.double(), tensor.double())
        normal = tensor.double().abs() >= torch.finfo(torch.float64).smallest_normal
        assert (rest.double().abs() < leading.double().abs() / 4)[normal & (tensor != 0)].all()


def test_pixel_edges_are_found():
    recipe = Recipe(cell=FLOAT32, queries=4, levels=((2, 4),))
    inputs = dataclasses.replace(recipe.build(), locations=torch.tensor([0.125, 0.25, 0.2, 0.375, 0.0, 1.0, 0.5, 0.5]))
    inputs = dataclasses.replace(inputs, locations=inputs.locations.view(1, 4, 1, 1, 1, 2))
    assert transforms.on_pixel_edge(inputs).view(4, 2).tolist() == [
        [True, True],
        [False, False],
        [False, False],
        [False, False],
    ]


def relation() -> Relation:
    subject = Subject(name="none", call=lambda *_: torch.zeros(()))
    harness = Harness(subject=subject, device=torch.device("cpu"), limits=SMALL, stats=ItemStats(test="none"))
    return Relation(harness, Recipe(cell=FLOAT32))


def test_relations_tell_what_is_wrong():
    zero, one = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    relation().same("nothing", "out", -zero, one)
    one[0, 1, 2] = 1.0
    with pytest.raises(PropertyFailed, match=r"doubled: out has other bits\n.*batch 0, query 1, channel 2\); 1 of 6"):
        relation().same("doubled", "out", zero, one)
    relation().same("doubled", "out", zero, one, where=zero == one)
    allowed = torch.full((1, 2, 3), 0.5, dtype=torch.float64)
    relation().close("doubled", "out", zero, one, 2 * allowed)
    with pytest.raises(PropertyFailed, match=r"(?s)out differs.*2 times"):
        relation().close("doubled", "out", zero, one, allowed)
    with pytest.raises(PropertyFailed):
        relation().close("doubled", "out", zero, one * torch.nan, allowed)
    relation().close("doubled", "out", zero, one * torch.nan, allowed * torch.inf)


def test_sums_bound_their_rounding():
    terms = torch.tensor([[1.0, 2.0**-53, 2.0**-53, 0.0]], dtype=torch.float64)
    total, error = summed(terms, 1)
    assert abs(float(total) - 1.0) <= float(error)
    assert float(error) == pytest.approx(4 * 2.0**-53)


def test_a_lattice_leaves_room_for_mirroring():
    # 1 - x is exact for the coarsest locations there are, at both ends of the smallest map.
    recipe = Recipe(
        cell=cell_named("bfloat16"),
        queries=50,
        levels=((1, 1),),
        locations=("lattice",),
        value="integer",
        grad_output="integer",
        weights="dyadic",
        lattice=Lattice(fraction=10),
    )
    inputs = recipe.build()
    changed, _ = transforms.mirror(inputs, flip_x=True, flip_y=True, transpose=False)
    assert torch.equal(changed.locations.double(), 1.0 - inputs.locations.double())
