"""Recipes: their JSON form, and the tensors that they build."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from properties import counter
from properties import recipe as recipe_module
from properties.cells import CELLS, DtypeCell, cell_named
from properties.explicit import OPERANDS, Explicit, to_hex
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

QUICK = settings(max_examples=60, derandomize=True, database=None, deadline=None)
FLOAT32 = cell_named("float32")
ANY = st.sampled_from(CELLS).flatmap(
    lambda cell: st.one_of(recipes(cell, limits=Limits.cpu()), empty_recipes(cell, limits=Limits.cpu()))
)


def tensors(inputs: Inputs) -> list[torch.Tensor]:
    return [inputs.value, inputs.locations, inputs.weights, inputs.grad_output]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu().contiguous().view(-1).view(torch.uint8)

    return left.stride() == right.stride() and torch.equal(raw(left), raw(right))


def devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


# ---------------------------------------------------------------- cells


def test_cells_are_the_ten_legal_ones():
    assert [cell.name for cell in CELLS[:3]] == ["float64", "float32", "float16"]
    assert len(set(CELLS)) == 10
    assert [cell_named(cell.name) for cell in CELLS] == list(CELLS)


def test_cells_refuse_what_the_operator_does_not_define():
    with pytest.raises(ValueError, match=r"locations dtype is torch.float32 with value float64; expected float64"):
        DtypeCell(torch.float64, torch.float32, torch.float64)
    with pytest.raises(ValueError, match=r"weights dtype is torch.bfloat16 with value float16"):
        DtypeCell(torch.float16, torch.float16, torch.bfloat16)
    with pytest.raises(ValueError, match="cell is 'float8'"):
        cell_named("float8")


# ---------------------------------------------------------------- counter

GOLDEN_00 = [5197578548964807871, -6411193824288604561, -5511663747979980962]
GOLDEN_12345_4 = [-914445716410782002, 5411461116789636843]
GOLDEN_UNIFORM = [0.28176129772258496, 0.6524484863740322]
UNMIXED_KEY_3 = 2092789425003139053
GOLDEN_NORMAL = [0.9774429495634367, -0.1988169747652892]


@pytest.mark.parametrize("device", devices())
def test_counter_golden_values(device: str):
    # A change here changes every recipe that was ever saved.
    assert counter.bits(0, 0, 3, device).tolist() == GOLDEN_00
    assert counter.bits(12345, 4, 2, device).tolist() == GOLDEN_12345_4
    assert counter.uniform(counter.bits(0, 0, 2, device)).tolist() == GOLDEN_UNIFORM
    assert counter.normal_like(counter.bits(0, 0, 2, device)).tolist() == GOLDEN_NORMAL


def test_counter_streams_do_not_depend_on_each_other():
    first, second, third = counter.bits_of(7, [3, 0, 5], "cpu")
    assert second.numel() == 0
    assert torch.equal(first, counter.bits(7, 0, 3, "cpu"))
    assert torch.equal(third, counter.bits(7, 2, 5, "cpu"))
    assert counter.integer(7, 2) == third[0].item() % 2**64


def test_counter_is_splitmix64():
    # The published finaliser on Python's integers, for a counter other than 0.
    mask = 2**64 - 1
    state = counter.integer(3, 0)
    finalised = []
    for counted in (0, 5):
        word = (UNMIXED_KEY_3 + counted * 0x9E3779B97F4A7C15) & mask
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & mask
        finalised.append(word ^ (word >> 31))
    assert finalised[0] == state
    assert finalised == [word & mask for word in counter.bits(3, 0, 6, "cpu").tolist()[::5]]


def test_counter_distributions():
    word = counter.bits(1, 0, 1 << 16, "cpu")
    uniform, normal = counter.uniform(word), counter.normal_like(word)
    assert 0.0 <= uniform.min() < uniform.max() < 1.0
    assert abs(uniform.mean().item() - 0.5) < 0.01
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1.0) < 0.05
    assert not (normal == 0).any()
    assert counter.below(word, 5).bincount().min() > (1 << 16) / 5.5
    assert set(counter.signs(word).tolist()) == {-1, 1}
    ones = torch.stack([(word >> bit) & 1 for bit in range(64)]).double().mean(dim=1)
    assert (ones - 0.5).abs().max() < 0.02


# ---------------------------------------------------------------- JSON


@QUICK
@given(ANY)
def test_json_round_trip(recipe: Recipe):
    text = recipe.to_json()
    again = Recipe.from_json(text)
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert again.to_json() == text
    assert json.loads(text) == recipe.to_dict()
    assert "\n" not in repr(recipe)


def test_json_keeps_odd_floats():
    hot = (Hot(0, math.nan, -0.0), Hot(1, math.inf, 1e-320), Hot(2, -math.inf, 0.1 + 0.2))
    recipe = Recipe(cell=FLOAT32, queries=3, hot=hot)
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe
    assert math.copysign(1.0, again.hot[0].y) == -1.0
    assert again.hot[2].y.hex() == (0.1 + 0.2).hex()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "recipe version is 0, expected 1 to 2"),
        ({"version": 99}, "expected at most 2: a newer version of this tool wrote it"),
        ({"explicit": {"value": []}}, "explicit is"),
        ({"explicit": {**{operand: [] for operand in OPERANDS}, "value": ["1.5"]}}, "explicit value has"),
        ({"colour": "red"}, "recipe has unknown fields 'colour'; expected some of cell, batch"),
        ({"cell": "float8"}, "cell is 'float8'; expected one of float64"),
        ({"cell": ["float32"]}, "cell is"),
        ({"hot": [["first", 0.0, 0.0]]}, "hot sample is 'first'"),
        ({"queries": -1}, "queries is -1; expected an integer of at least 0"),
        ({"queries": True}, "queries is True"),
        ({"levels": [[1]]}, r"levels is \[\[1\]\]; expected a list of lists of 2"),
        ({"levels": [[0, 1]]}, "levels has"),
        ({"locations": []}, "locations is empty"),
        ({"locations": "inside"}, "expected a list of patterns"),
        ({"locations": ["everywhere"]}, "locations is 'everywhere'; expected one of inside"),
        ({"weights": ["softmax"]}, "weights is"),
        ({"value_layout": "diagonal"}, "value_layout is 'diagonal'"),
        ({"hot": [[0, "many", 0.0]]}, "hot has coordinate 'many'"),
        ({"hot": [[1, 0.0, 0.0]]}, "hot has sample 1; expected an index below 1"),
        ({"hot": [[0, 0.0, 0.0]] * 4}, "hot has 4 samples"),
    ],
)
def test_json_refusals(change: dict, message: str):
    plain = Recipe(cell=FLOAT32).to_dict() | change
    with pytest.raises(ValueError, match=message):
        Recipe.from_json(json.dumps(plain))


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"version": 1}'])
def test_json_that_is_no_recipe(text: str):
    with pytest.raises(ValueError, match=r"recipe|Expecting"):
        Recipe.from_json(text)


def test_left_out_fields_have_defaults():
    assert Recipe.from_dict({"version": 1, "cell": "float32"}) == Recipe(cell=FLOAT32)


# ---------------------------------------------------------------- build


@QUICK
@given(ANY)
def test_build_has_the_shapes_and_dtypes_of_the_recipe(recipe: Recipe):
    inputs = recipe.build()
    assert inputs.levels == recipe.levels
    for operand in OPERANDS:
        assert getattr(inputs, operand).shape == recipe.shape(operand)
    assert inputs.value.dtype == inputs.grad_output.dtype == recipe.cell.value
    assert inputs.locations.dtype == recipe.cell.locations
    assert inputs.weights.dtype == recipe.cell.weights
    assert inputs.value.isfinite().all()
    assert inputs.grad_output.isfinite().all()
    assert inputs.weights.isfinite().all()


@QUICK
@given(ANY)
def test_build_is_the_same_every_time_and_everywhere(recipe: Recipe):
    first = tensors(recipe.build())
    for device in devices():
        for left, right in zip(first, tensors(recipe.build(device)), strict=True):
            assert same_bits(left, right)


GOLDEN_BUILDS = {
    "float64": [594379212, 580195689, 352285193, 257048068, 591291489, 531242274],
    "float32": [137756487, 139459850, 84763522, 71278942, 144711109, 121668294],
    "float16": [30983452, 32125806, 22640123, 16916673, 35960008, 29116349],
    "float16-float16-float32": [41562512, 42266229, 34344177, 18522476, 45487334, 40018595],
    "float16-float32-float16": [69306988, 71922341, 62046133, 53600459, 74620347, 68886724],
    "float16-float32-float32": [79886048, 82062764, 73750187, 55206262, 84147673, 79788970],
    "bfloat16": [34456290, 34001103, 23603083, 21673426, 37411121, 26003901],
    "bfloat16-bfloat16-float32": [44501659, 44360240, 35418489, 23294621, 46920930, 36966796],
    "bfloat16-float32-bfloat16": [70714341, 73292311, 61880017, 57999442, 75080841, 64222580],
    "bfloat16-float32-float32": [80759710, 83651448, 73695423, 59620637, 84590650, 75185475],
}


def _one_nan(tensor: torch.Tensor) -> torch.Tensor:
    # Rounding a NaN to 16 bits gives another pattern of bits on a GPU.
    return torch.where(tensor.isnan(), torch.tensor(torch.nan, dtype=tensor.dtype), tensor)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
@pytest.mark.parametrize("device", devices())
def test_build_golden_values(cell: DtypeCell, device: str):
    # Checksums of the bytes, so that a change of the data of saved recipes cannot slip in anywhere.
    checks: list[int] = []
    for pattern in VALUE_PATTERNS:
        recipe = Recipe(
            cell=cell,
            batch=2,
            queries=5,
            heads=2,
            channels=3,
            points=3,
            levels=((3, 5), (1, 7)),
            locations=LOCATION_PATTERNS,
            value=pattern,
            weights=WEIGHT_PATTERNS[len(checks) % len(WEIGHT_PATTERNS)],
            seed=len(checks),
        )
        built = [
            _one_nan(tensor.cpu()).contiguous().view(torch.uint8).to(torch.int64)
            for tensor in tensors(recipe.build(device))
        ]
        checks.append(sum(int((one.view(-1) * torch.arange(1, one.numel() + 1)).sum()) for one in built))
    assert checks == GOLDEN_BUILDS[cell.name]


def test_operands_do_not_move_when_others_shrink():
    large = Recipe(cell=FLOAT32, queries=3, channels=8, levels=((4, 4),), seed=5)
    small = dataclasses.replace(large, channels=1)
    assert torch.equal(large.build().locations, small.build().locations)
    assert torch.equal(large.build().weights, small.build().weights)


def test_softmax_weights_sum_to_one():
    for layout in LAYOUTS:
        recipe = Recipe(
            cell=cell_named("float64"), queries=4, points=4, levels=((2, 2),) * 3, weights_layout=layout, seed=1
        )
        weights = recipe.build().weights
        assert (weights > 0).all()
        # Twelve roundings of numbers below 1, and eleven additions.
        assert (weights.sum(dim=(-2, -1)) - 1.0).abs().max() < 24 * 2.0**-53


def test_hot_samples_are_placed_where_they_say():
    hot = (Hot(0, 0.25, math.nan), Hot(23, math.inf, 0.1))
    for layout in ("contiguous", "transposed", "sliced", "offset"):
        recipe = Recipe(cell=FLOAT32, queries=3, heads=2, points=2, levels=((2, 2),) * 2, hot=hot)
        flat = dataclasses.replace(recipe, locations_layout=layout).build().locations.reshape(-1, 2)
        assert flat[0, 0] == 0.25
        assert flat[0, 1].isnan()
        assert flat[23, 0] == math.inf
        assert flat[23, 1] == torch.tensor(0.1)


def test_hot_samples_of_expanded_locations_repeat():
    recipe = Recipe(cell=FLOAT32, batch=3, queries=2, locations_layout="expanded", seed=1, hot=(Hot(3, 0.75, 0.5),))
    assert recipe.build().locations[:, 1, 0, 0, 0].tolist() == [[0.75, 0.5]] * 3


def test_build_takes_few_operations():
    counted = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            # Views launch nothing.
            if not function.is_view:
                counted.append(function)
            return function(*args, **(kwargs or {}))

    recipe = Recipe(
        cell=cell_named("bfloat16"),
        queries=9,
        points=4,
        levels=((8, 8), (4, 4)),
        locations=("ulps", "local", "far"),
        value="sparse",
        weights="zero",
        grad_output="wide",
        value_layout="sliced",
    )
    with Count():
        recipe.build()
    assert len(counted) <= 125


# ---------------------------------------------------------------- explicit numbers


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_explicit_numbers_build_the_same_tensors(cell, layout):
    drawn = Recipe(
        cell=cell,
        batch=2,
        queries=3,
        heads=2,
        channels=2,
        points=2,
        levels=((2, 3), (1, 1)),
        locations=("inside", "nan", "infinite", "huge", "edge"),
        seed=5,
        **{f"{operand}_layout": layout for operand in OPERANDS},
    )
    inputs = drawn.build()
    compressed = {
        operand: getattr(inputs, operand)[
            tuple(slice(0, 1) if stride == 0 else slice(None) for stride in getattr(inputs, operand).stride())
        ]
        for operand in OPERANDS
    }
    written = dataclasses.replace(drawn, explicit=Explicit.of(**compressed))
    again = Recipe.from_json(written.to_json())
    assert again == written
    built = again.build()
    for operand in OPERANDS:
        before, after = getattr(inputs, operand), getattr(built, operand)
        assert after.dtype == before.dtype
        assert after.stride() == before.stride()
        assert torch.equal(after.double().nan_to_num(7.0), before.double().nan_to_num(7.0))


def test_too_few_explicit_numbers_are_refused():
    numbers = Explicit(value=("0x1p+0",), locations=("0x1p-1",), weights=("nan",), grad_output=("-inf",))
    with pytest.raises(ValueError, match="explicit locations has 1 numbers; expected 2"):
        Recipe(cell=FLOAT32, explicit=numbers).build()


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, 1.5, -3.0, 0.1, 5e-324, 1.7976931348623157e308])
def test_hexadecimal_floats_are_exact(number):
    assert float.fromhex(to_hex(number)).hex() == number.hex()


def test_an_older_recipe_is_read_and_a_migration_is_applied(monkeypatch):
    old = Recipe(cell=FLOAT32, seed=3).to_dict()
    monkeypatch.setattr(recipe_module, "VERSION", recipe_module.VERSION + 1)

    def rename(plain):
        return {("seed" if key == "sown" else key): value for key, value in plain.items()}

    monkeypatch.setitem(recipe_module.MIGRATIONS, old["version"], rename)
    sown = {("sown" if key == "seed" else key): value for key, value in old.items()}
    assert Recipe.from_dict(sown) == Recipe(cell=FLOAT32, seed=3)
    assert Recipe(cell=FLOAT32).to_dict()["version"] == old["version"] + 1
