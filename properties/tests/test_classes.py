"""Input classes: a recipe that has a label builds tensors that have the feature."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from properties.cells import CELLS, DtypeCell, cell_named
from properties.classes import MANY_COLLISIONS, REQUIRED, classes
from properties.explicit import OPERANDS
from properties.recipe import (
    LAYOUTS,
    LOCATION_PATTERNS,
    VALUE_PATTERNS,
    WEIGHT_PATTERNS,
    Hot,
    Recipe,
)
from properties.strategies import Limits, empty_recipes, recipes
from reference.inputs import Inputs

THOROUGH = settings(max_examples=400, derandomize=True, database=None, deadline=None)
FLOAT32 = cell_named("float32")
ANY = st.sampled_from(CELLS).flatmap(lambda cell: recipes(cell, limits=Limits.cpu()))
ANY_EMPTY = st.sampled_from(CELLS).flatmap(lambda cell: empty_recipes(cell, limits=Limits.cpu()))


def pixel_coordinates(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Exact x_im and y_im of the stored locations, their sides, and the spacing of the dtype there, in pixels."""
    sizes = torch.tensor([(width, height) for height, width in inputs.levels], dtype=torch.float64).view(-1, 1, 2)
    location = inputs.locations.to(torch.float64)
    # Doubles hold the product of a location in single or half precision and a side; of a double nearly.
    spacing = (
        location.abs().clamp(min=torch.finfo(inputs.locations.dtype).tiny) * torch.finfo(inputs.locations.dtype).eps
    )
    return location * sizes - 0.5, sizes, spacing * sizes


def on_edge(inputs: Inputs, ulps: float) -> Tensor:
    place, sizes, spacing = pixel_coordinates(inputs)
    nearest = place.round()
    return ((place - nearest).abs() <= ulps * spacing) & (nearest >= -1) & (nearest <= sizes)


# ---------------------------------------------------------------- what each label promises

LOCAL_REACH = 4.0  # pixels around a reference point that lies anywhere in the map


def has_location(inputs: Inputs, pattern: str) -> bool:
    location = inputs.locations.to(torch.float64)
    place, sizes, spacing = pixel_coordinates(inputs)
    inside = (location >= 0) & (location <= 1)
    fraction = place - place.floor()
    near = (place >= -LOCAL_REACH - 0.5 - spacing) & (place <= sizes + LOCAL_REACH - 0.5 + spacing)
    border = torch.zeros_like(place, dtype=torch.bool)
    for line in (-1.0, -0.5, 0.0, sizes - 1.0, sizes - 0.5, sizes):
        border |= (place - line).abs() <= spacing
    outside = ((place > -2 - spacing) & (place < spacing)) | (
        (place > sizes - 1 - spacing) & (place < sizes + 1 + spacing)
    )
    away = (fraction >= 0.1 - spacing) & (fraction <= 0.9 + spacing) & (place > -1) & (place < sizes)
    finfo = torch.finfo(inputs.locations.dtype)
    found = {
        "inside": inside.all(dim=-1),
        "local": near.all(dim=-1),
        "away": away.all(dim=-1),
        # A cell is one pixel wide, and rounding may move a sample over its edge.
        "pile": ((place > -1 - spacing) & (place < sizes + spacing)).all(dim=-1),
        "edge": on_edge(inputs, 1.0),
        "ulps": on_edge(inputs, 4.0),
        "border": border,
        "outside": outside,
        "far": (place < -1) | (place > sizes),
        "huge": location.abs() >= min(1e30, finfo.max),
        "infinite": location.isinf(),
        "nan": location.isnan(),
    }
    return bool(found[pattern].any())


def has_values(tensor: Tensor, pattern: str) -> bool:
    magnitude = tensor.to(torch.float64).abs()
    finfo = torch.finfo(tensor.dtype)
    if pattern == "subnormal":
        return bool(((magnitude > 0) & (magnitude < finfo.tiny)).all())
    if pattern == "huge":
        octaves = 30 if tensor.dtype == torch.float64 else 10
        return bool((magnitude >= finfo.max / 2.0**octaves).all() and (magnitude <= finfo.max).all())
    if pattern == "sparse":
        return bool((tensor == 0).double().mean() > 0.5)
    if pattern == "wide":
        return bool(magnitude.max() / magnitude.min() > 2.0**16 and (magnitude >= 2.0**-20).all())
    if pattern == "constant":
        return bool((tensor == tensor.reshape(-1)[0]).all())
    return bool((magnitude < 4).all() and (tensor != 0).all())


def has_weights(weights: Tensor, pattern: str) -> bool:
    if pattern == "softmax":
        return bool((weights >= 0).all() and (weights <= 1).all() and (weights.sum() > 0))
    if pattern == "zero":
        return bool((weights == 0).any())
    return bool((weights <= 0).all()) if pattern == "negative" else bool((weights.abs() < 8).all())


def has_layout(tensor: Tensor, layout: str) -> bool:
    longer = [index for index, size in enumerate(tensor.shape) if size > 1]
    strides = [tensor.stride(index) for index in longer]
    if layout == "expanded":
        return 0 in strides
    if layout == "transposed":
        return strides == sorted(strides) and len(strides) > 1 and not tensor.is_contiguous()
    if layout == "permuted":
        return tensor.stride(-1) == 1 and not tensor.is_contiguous() and strides != sorted(strides, reverse=True)
    if layout == "padded":
        row = tensor.stride(-2)
        return tensor.stride(-1) == 1 and row % 16 == 0 and row > tensor.shape[-1] and tensor.storage_offset() == 0
    if layout == "sliced":
        return not tensor.is_contiguous() and tensor.storage_offset() == 0 and strides == sorted(strides, reverse=True)
    if layout == "offset":
        misaligned = tensor.data_ptr() % (2 * tensor.element_size()) == tensor.element_size()
        return tensor.is_contiguous() and tensor.storage_offset() == 1 and misaligned
    return tensor.is_contiguous() and tensor.storage_offset() == 0


def largest_pile(inputs: Inputs) -> int:
    """The most samples of one batch entry and head in one cell of one level."""
    place, _, _ = pixel_coordinates(inputs)
    cell = place.floor().nan_to_num(nan=1e9, posinf=1e9, neginf=1e9).permute(0, 2, 3, 1, 4, 5).flatten(3, 4)
    return max(
        int(one.unique(dim=0, return_counts=True)[1].max()) for one in cell.flatten(0, 2).clamp(-1e9, 1e9).unbind()
    )


def promised(recipe: Recipe, inputs: Inputs, label: str) -> bool:
    kind, _, what = label.partition(": ")
    sides = torch.tensor(recipe.levels)
    checks: dict[str, Callable[[], bool]] = {
        "cell": lambda: inputs.value.dtype == cell_named(what).value,
        "batch": lambda: inputs.value.shape[0] == int(what),
        "heads": lambda: inputs.value.shape[2] == int(what),
        "channels": lambda: what == "other" or inputs.value.shape[3] == int(what),
        "L": lambda: inputs.locations.shape[3] == int(what),
        "K": lambda: inputs.locations.shape[4] == int(what),
        "level": lambda: bool(LEVELS[what](sides[:, 0], sides[:, 1]).any()),
        "queries": lambda: QUERIES[what](inputs.locations.shape[1]),
        "samples": lambda: SAMPLES[what](inputs.locations.shape[3] * inputs.locations.shape[4]),
        "location": lambda: what == "hot" or has_location(inputs, what),
        "collisions": lambda: largest_pile(inputs) >= MANY_COLLISIONS // 2,
        "weights": lambda: has_weights(inputs.weights, what),
        "value": lambda: has_values(inputs.value, what),
        "grad": lambda: has_values(inputs.grad_output, what),
    }
    if kind.startswith("layout"):
        return has_layout(getattr(inputs, kind.split()[1]), what)
    return checks[kind]()


# On the CPU blocks hold 8 queries and 16 samples.
QUERIES: dict[str, Callable[[int], bool]] = {
    "1": lambda q: q == 1,
    "prime": lambda q: q in {2, 3, 5, 7, 11, 13, 17},
    "block edge -1": lambda q: q == 7,
    "block edge": lambda q: q == 8,
    "block edge +1": lambda q: q == 9,
    "2 block edges -1": lambda q: q == 15,
    "2 block edges": lambda q: q == 16,
    "2 block edges +1": lambda q: q == 17,
}
SAMPLES: dict[str, Callable[[int], bool]] = {
    "below a block": lambda n: n < 16,
    "block edge": lambda n: n == 16,
    "above a block": lambda n: n > 16,
}
LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "1 pixel side": lambda h, w: (h == 1) | (w == 1),
    "2 pixel side": lambda h, w: (h == 2) | (w == 2),
    "3 pixel side": lambda h, w: (h == 3) | (w == 3),
    "non-square": lambda h, w: h != w,
    "not a power of two": lambda h, w: (h.double().log2() % 1 != 0) | (w.double().log2() % 1 != 0),
    "1000 or wider": lambda _, w: w >= 1000,
    "1000 or taller": lambda h, _: h >= 1000,
}


# ---------------------------------------------------------------- tests


@THOROUGH
@given(ANY)
def test_labels_hold_for_the_tensors(recipe: Recipe):
    inputs = recipe.build()
    broken = [label for label in classes(recipe) if not promised(recipe, inputs, label)]
    assert not broken


@settings(THOROUGH, max_examples=50)
@given(ANY_EMPTY)
def test_labels_of_empty_recipes(recipe: Recipe):
    labels = classes(recipe)
    assert "empty" in labels
    for operand in OPERANDS:
        if 0 in recipe.shape(operand):
            told = {label for label in labels if label.startswith(f"layout {operand}")}
            assert told <= {f"layout {operand}: contiguous"}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
@pytest.mark.parametrize("pattern", LOCATION_PATTERNS)
def test_location_patterns_alone(cell: DtypeCell, pattern: str):
    # All samples of one pattern: each has the feature in one coordinate at least, and some in x alone, some in y alone.
    recipe = Recipe(cell=cell, queries=16, points=8, levels=((3, 5), (7, 1), (16, 16)), locations=(pattern,), seed=3)
    inputs = recipe.build()
    for number in range(recipe.queries):
        one = dataclasses.replace(inputs, locations=inputs.locations[:, number : number + 1])
        assert has_location(one, pattern)
    bad = ~inputs.locations.isfinite()
    if pattern in {"nan", "infinite"}:
        assert bad.any(dim=-1).all()
        assert (bad[..., 0] & ~bad[..., 1]).any()
        assert (bad[..., 1] & ~bad[..., 0]).any()
        assert (bad[..., 1] & bad[..., 0]).any()


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_edges_in_full_precision(name: str):
    # Every pixel-centre line from -1 to W is reached, and in steps of up to three ulps to either side.
    recipe = Recipe(cell=cell_named(name), queries=64, points=8, levels=((5, 5),), locations=("edge",))
    place, _, _ = pixel_coordinates(recipe.build())
    edge = on_edge(recipe.build(), 1.0)
    assert set(place[edge].round().tolist()) == set(range(-1, 6))
    moved = dataclasses.replace(recipe, locations=("ulps",)).build().locations
    exact = recipe.build().locations
    follows = edge & ((moved - exact).abs() < 1e-5)
    integers = torch.int64 if name == "float64" else torch.int32
    steps = (moved.view(integers) - exact.view(integers))[follows]
    assert set(steps.tolist()) >= set(range(-3, 4))
    assert steps[steps.abs() < 100].abs().max() == 3


def test_border_has_the_exact_places():
    recipe = Recipe(cell=cell_named("float64"), queries=32, points=8, levels=((4, 4),), locations=("border",))
    places = set(recipe.build().locations.flatten().tolist())
    assert places >= {-0.125, 0.0, 0.125, 0.875, 1.0, 1.125}


@pytest.mark.parametrize("pattern", VALUE_PATTERNS)
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_value_patterns(name: str, pattern: str):
    recipe = Recipe(cell=cell_named(name), queries=8, channels=16, levels=((8, 8),), value=pattern, grad_output=pattern)
    inputs = recipe.build()
    assert has_values(inputs.value, pattern)
    assert has_values(inputs.grad_output, pattern)
    if pattern not in {"constant", "sparse"}:
        assert (inputs.value > 0).any()
        assert (inputs.value < 0).any()


@pytest.mark.parametrize("pattern", WEIGHT_PATTERNS)
def test_weight_patterns(pattern: str):
    weights = Recipe(cell=FLOAT32, queries=16, points=8, levels=((2, 2),) * 2, weights=pattern).build().weights
    assert has_weights(weights, pattern)
    if pattern == "raw":
        assert weights.min() < 0
        assert weights.max() > 1
    if pattern == "zero":
        assert 0.5 < (weights == 0).double().mean() < 1.0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_layouts_change_no_element(cell: DtypeCell, layout: str):
    plain = Recipe(cell=cell, batch=2, queries=3, heads=2, channels=5, points=3, levels=((2, 3), (1, 4)), seed=2)
    layouts: dict[str, Any] = {f"{operand}_layout": layout for operand in OPERANDS}
    moved = dataclasses.replace(plain, **layouts)
    for operand in OPERANDS:
        tensor = getattr(moved.build(), operand)
        assert f"layout {operand}: {layout}" in classes(moved)
        assert has_layout(tensor, layout)
        if layout != "expanded":
            assert torch.equal(tensor, getattr(plain.build(), operand))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("operand", OPERANDS)
def test_expanded_operands_repeat_a_dimension(operand: str, seed: int):
    recipe = Recipe(cell=FLOAT32, batch=2, queries=3, heads=2, channels=5, points=3, levels=((2, 3),), seed=seed)
    layout: dict[str, Any] = {f"{operand}_layout": "expanded"}
    recipe = dataclasses.replace(recipe, **layout)
    strides = getattr(recipe.build(), operand).stride()
    # Odd seeds repeat the batch.
    assert [index for index, stride in enumerate(strides) if stride == 0] == [
        0 if seed else {"value": 3, "locations": 4, "weights": 4, "grad_output": 2}[operand]
    ]


def test_memory_between_the_elements_is_poisoned():
    recipe = Recipe(cell=FLOAT32, queries=3, points=3, value_layout="sliced", weights_layout="offset")
    for tensor in (recipe.build().value, recipe.build().weights):
        whole = torch.empty(0).set_(tensor.untyped_storage())
        assert whole.isnan().sum() == whole.numel() - tensor.numel() > 0


def test_patterns_that_no_sample_follows_have_no_label():
    recipe = Recipe(cell=FLOAT32, queries=2, locations=("nan", "edge", "far"))
    assert {"location: nan", "location: edge"}.issubset(classes(recipe))
    assert "location: far" not in classes(recipe)
    hot = dataclasses.replace(recipe, hot=(Hot(0, 0.5, 0.5),))
    assert "location: nan" not in classes(hot)
    assert "location: hot" in classes(hot)


def test_query_labels_follow_the_limits():
    limits = Limits(queries=(4, 6))
    assert {label for label in classes(Recipe(cell=FLOAT32, queries=7), limits=limits) if "queries" in label} == {
        "queries: block edge +1",
        "queries: 2 block edges -1",
        "queries: prime",
    }


def test_required_names_what_the_harness_promises():
    assert {f"L: {n}" for n in range(1, 9)} <= REQUIRED
    assert {f"location: {pattern}" for pattern in LOCATION_PATTERNS} <= REQUIRED
    assert {f"layout {operand}: {layout}" for operand in OPERANDS for layout in LAYOUTS} <= REQUIRED
    assert "level: 1000 or wider" in REQUIRED
    assert all(": " in label for label in REQUIRED)
