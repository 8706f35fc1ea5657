"""From a recipe to tensors: bitwise the same on every device, in about a hundred tensor operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from properties import counter
from properties.explicit import OPERANDS, Explicit
from properties.fills import fill, fill_weights, store
from properties.layouts import arrange, drawn_index, drawn_shape
from properties.locations import locate
from properties.recipe import Lattice
from reference.inputs import Inputs

if TYPE_CHECKING:
    from properties.recipe import Recipe

# Streams of the counter, in this order. Each operand has its own, so that a smaller value tensor, say, leaves the
# locations as they were: a failing case then keeps failing while it shrinks.
_DRAWN = ("weights", "locations", "samples", "grad_output", "value")


def build(recipe: Recipe, device: torch.device | str) -> Inputs:
    """Build the operands that a recipe describes.

    Numbers are computed in integers and float64 and rounded once to their storage dtype.

    Args:
        recipe: what to build.
        device: where to.

    Returns:
        The operands, with the layouts that the recipe asks for.
    """
    if recipe.explicit is not None:
        return _build_explicit(recipe, recipe.explicit, device)
    shapes = {
        operand: drawn_shape(operand, recipe.shape(operand), getattr(recipe, f"{operand}_layout"), recipe.seed)
        for operand in ("value", "locations", "weights", "grad_output")
    }
    shapes["samples"] = shapes["locations"][:-1]
    words = counter.bits_of(recipe.seed, [math.prod(shapes[name]) for name in _DRAWN], device)
    word = {name: words.view(shapes[name]) for name, words in zip(_DRAWN, words, strict=True)}
    cell = recipe.cell
    lattice = recipe.lattice or Lattice()

    locations = locate(
        recipe.locations,
        recipe.levels,
        word["samples"],
        word["locations"],
        cell.locations,
        recipe.seed,
        fraction_bits=lattice.fraction,
    )
    _place_hot(locations, recipe)
    filled = {
        "value": fill(recipe.value, word["value"], cell.value, recipe.seed, bits=lattice.value),
        "locations": locations,
        "weights": fill_weights(
            recipe.weights, word["weights"], cell.weights, recipe.points, step=lattice.step, bits=lattice.weight
        ),
        "grad_output": fill(recipe.grad_output, word["grad_output"], cell.value, recipe.seed + 1, bits=lattice.grad),
    }
    arranged = {
        operand: arrange(tensor, recipe.shape(operand), getattr(recipe, f"{operand}_layout"))
        for operand, tensor in filled.items()
    }
    return Inputs(levels=recipe.levels, **arranged)


def _build_explicit(recipe: Recipe, explicit: Explicit, device: torch.device | str) -> Inputs:
    dtypes = dict(
        zip(OPERANDS, (recipe.cell.value, recipe.cell.locations, recipe.cell.weights, recipe.cell.value), strict=True)
    )
    arranged = {}
    for operand, dtype in dtypes.items():
        shape, layout = recipe.shape(operand), getattr(recipe, f"{operand}_layout")
        drawn = drawn_shape(operand, shape, layout, recipe.seed)
        numbers = explicit.numbers(operand)
        if len(numbers) != math.prod(drawn):
            raise ValueError(f"explicit {operand} has {len(numbers)} numbers; expected {math.prod(drawn)} of {drawn}")
        tensor = torch.tensor(numbers, dtype=torch.float64).reshape(drawn)
        arranged[operand] = arrange(store(tensor, dtype).to(device), shape, layout)
    return Inputs(levels=recipe.levels, **arranged)


def _place_hot(locations: Tensor, recipe: Recipe) -> None:
    """Write the hot samples over `locations`, (B, Q, M, L, K, 2) with 1 for a dimension that will be expanded."""
    if not recipe.hot:
        return
    rows = [drawn_index(one.sample, recipe.shape("weights"), locations.shape[:-1]) for one in recipe.hot]
    # One assignment for each: with a repeated index a single one would leave the winner open.
    exact = torch.tensor([(one.x, one.y) for one in recipe.hot], dtype=torch.float64)
    stored = store(exact, locations.dtype).to(locations.device)
    flat = locations.view(-1, 2)
    for row, pair in zip(rows, stored, strict=True):
        flat[row] = pair
