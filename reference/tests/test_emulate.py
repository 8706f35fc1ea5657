"""The proof of the bounds: no emulated kernel exceeds them, and they are not vacuous. And of the emulator itself."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
import torch

from reference import exact
from reference.emulate import run
from reference.expect import expect
from reference.inputs import Inputs
from reference.machine import Machine, Sums, fma32, fma64, round_to_storage
from reference.model import UNIT_ROUNDOFF, Accumulate, Arithmetic, Coordinates, CornerSum, Interpolation

from .cases import DTYPE_CELLS, MAGNITUDES, PLACES, Shape, draw, draw_shape, lattice

OUTPUTS = ("out", "grad_value", "grad_sampling_locations", "grad_attention_weights")
ORDERS = ("random", "sequential", "tree", "reversed")
CASES = 120
# The largest ratio that must be reached per output. The bound of float64 kernels is doubled, and the coordinate's part
# twice, since the float64 reference is no better than they are.
# The bound of a float64 result is doubled for the reference's own error: 0.3 of the half that is left.
SHARP = {torch.float64: 0.15, torch.float32: 0.3, torch.float16: 0.3, torch.bfloat16: 0.3}
UNIT = 2.0**-24


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The tensors are tiny: threads cost more than they save, and other workers want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def name_of(cell):
    return "-".join(str(dtype)[6:] for dtype in cell)


def largest_ratios(inputs, arithmetic, *, label, **how):
    """Emulate, compare, and return the largest ratio of each output; fail where it is above 1."""
    emulated, expected = run(inputs, arithmetic, **how), expect(inputs, arithmetic)
    found = {}
    for name in OUTPUTS:
        observed, bounded = getattr(emulated, name), getattr(expected, name)
        ratio = bounded.ratio(observed)
        found[name] = ratio.max().item()
        if not found[name] <= 1.0:
            place = np.unravel_index(int(ratio.argmax()), ratio.shape)
            parts = {part: tensor[place].item() for part, tensor in bounded.parts.items()}
            pytest.fail(
                f"{name}{list(map(int, place))} = {observed[place].item()!r}, exactly {bounded.value[place].item()!r}: "
                f"{found[name]} times the bound {parts}; {label}, {arithmetic}, {how}"
            )
    return found


def draw_case(rng, cell):
    """Draw inputs, a declaration, and one way to satisfy it."""
    accumulate, interpolation, coordinates = (
        rng.choice(get_args(choices)).item() for choices in (Accumulate, Interpolation, Coordinates)
    )
    arithmetic = Arithmetic(
        accumulate=accumulate,
        interpolation=interpolation,
        coordinates=coordinates,
        coordinate_dtype="storage" if rng.random() < 0.2 else "float32",
        corner_sum=rng.choice(get_args(CornerSum)).item(),
        flush_to_zero=bool(rng.integers(2)),
        flush_atomics=bool(rng.integers(2)),
    )
    # Coordinates in 16 bits have a bound only on levels that are narrow enough for it to be a fraction of a pixel.
    unit = UNIT_ROUNDOFF[cell[1]] if arithmetic.coordinate_dtype == "storage" else UNIT
    longest = 0.25 / (14 * unit) - 2
    if longest < 1:
        return draw_case(rng, cell)
    magnitudes = {name: str(rng.choice(MAGNITUDES)) for name in ("value", "weight", "grad")}
    places = PLACES if rng.integers(2) else tuple(map(str, rng.choice(PLACES[:7], 2, replace=False)))
    inputs = draw(rng, draw_shape(rng, longest=longest), cell, places=places, **magnitudes)
    how = {
        "contract": bool(rng.integers(2)),
        "order": str(rng.choice(ORDERS)),
        "flush": arithmetic.flush_to_zero and bool(rng.integers(2)),
    }
    return inputs, arithmetic, magnitudes, how


@pytest.mark.parametrize("cell", DTYPE_CELLS, ids=name_of)
def test_no_emulated_kernel_exceeds_its_bounds_and_the_bounds_are_sharp(cell):
    largest: dict[str, float] = defaultdict(float)
    for case in range(CASES):
        rng = np.random.default_rng([DTYPE_CELLS.index(cell), case])
        inputs, arithmetic, magnitudes, how = draw_case(rng, cell)
        label = f"cell {name_of(cell)}, case {case}, {magnitudes}, levels {inputs.levels}"
        for name, ratio in largest_ratios(inputs, arithmetic, label=label, rng=rng, **how).items():
            largest[name] = max(largest[name], ratio)
    stored = dict(zip(OUTPUTS, (cell[0], *cell), strict=True))
    assert all(largest[name] >= SHARP[stored[name]] for name in OUTPUTS), dict(largest)


@pytest.mark.parametrize("interpolation", ["weights", "difference", "lerp"])
@pytest.mark.parametrize("flush", [False, True])
def test_bounds_hold_where_products_underflow(interpolation, flush):
    """One sample a query, and every combination of tiny, middling and huge operands."""
    ranges = [(-149, -120), (-126, -105), (-80, -50), (-20, 0), (0, 40)]
    arithmetic = Arithmetic(interpolation=interpolation, flush_to_zero=flush)
    for case in range(40):
        rng = np.random.default_rng([case, int(flush)])
        shape = Shape(levels=((2, 2),), batch=100, queries=1, points=1, channels=1)
        inputs = draw(rng, shape, (torch.float32,) * 3, places=("inside",))
        for operand in (inputs.value, inputs.weights, inputs.grad_output):
            exponents = rng.uniform(*ranges[rng.integers(len(ranges))], tuple(operand.shape))
            operand.copy_(torch.from_numpy(rng.choice([-1, 1], exponents.shape) * 2.0**exponents))
        how = {"contract": bool(rng.integers(2)), "order": "random", "flush": flush}
        largest_ratios(inputs, arithmetic, label=f"case {case}", rng=rng, **how)


@pytest.mark.parametrize("points", [1, 4, 16])
@pytest.mark.parametrize("corner_sum", ["nested", "flat"])
def test_bounds_hold_when_every_addition_rounds_the_same_way(points, corner_sum):
    """A running sum of 1 to which terms just below half its last place are added, each of which is lost."""
    value = torch.full((1, 16, 1, 1), 4 * 0.99 * UNIT)
    value[0, 0] = 1.0
    locations = torch.full((1, 1, 1, 1, points, 2), 3 / 4)  # in the middle of four pixels: every factor 1/4
    locations[..., 0, :] = 1 / 8  # on pixel 0
    inputs = Inputs(
        value=value,
        levels=((4, 4),),
        locations=locations,
        weights=torch.ones(1, 1, 1, 1, points),
        grad_output=torch.ones(1, 1, 1),
    )
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arithmetic = Arithmetic(corner_sum=corner_sum)
        largest_ratios(inputs, arithmetic, label=f"seed {seed}", rng=rng, contract=False, order="sequential")


@pytest.mark.parametrize("interpolation", ["weights", "difference", "lerp"])
def test_infinities_are_admissible_where_a_rounded_average_of_the_largest_number_overflows(interpolation):
    """Four factors may add up to a little more than 1, before a small weight is applied."""
    size = 500
    for seed in range(10):
        rng = np.random.default_rng(seed)
        inputs = Inputs(
            value=torch.full((size, 9, 1, 1), torch.finfo(torch.float32).max),
            levels=((3, 3),),
            locations=torch.from_numpy(rng.uniform(0.2, 0.8, (size, 1, 1, 1, 1, 2))).float(),
            weights=torch.full((size, 1, 1, 1, 1), 0.1),
            grad_output=torch.full((size, 1, 1), 0.01),
        )
        arithmetic = Arithmetic(interpolation=interpolation)
        largest_ratios(inputs, arithmetic, label=f"seed {seed}", rng=rng, contract=bool(seed % 2), order="random")


@pytest.mark.parametrize("accumulate", ["float32", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bounds_hold_under_heavy_collisions(dtype, accumulate):
    """Every sample on one pixel of a level of one pixel: n in the hundreds, and sums far from exact."""
    arithmetic = Arithmetic(accumulate=accumulate)
    for case in range(12):
        rng = np.random.default_rng(case)
        shape = Shape(levels=((1, 1),), queries=int(rng.choice([20, 100, 300])), points=2, channels=8)
        kinds = {name: str(rng.choice(["normal", "positive", "stagnant"])) for name in ("weight", "grad")}
        inputs = draw(rng, shape, (dtype, torch.float32, dtype), places=("inside", "collide"), **kinds)
        how = {"contract": bool(case % 2), "order": str(rng.choice(ORDERS))}
        largest_ratios(inputs, arithmetic, label=f"case {case}, {kinds}", rng=rng, **how)


@pytest.mark.parametrize("count", [2, 20, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_bound_of_colliding_contributions_is_sharp_when_all_but_the_first_are_lost(dtype, count):
    unit = UNIT_ROUNDOFF[dtype]
    grad = torch.full((1, count, 1), 0.99 * unit, dtype=dtype)
    grad[:, 0] = 1.0
    inputs = Inputs(
        value=torch.ones(1, 1, 1, 1, dtype=dtype),
        levels=((1, 1),),
        locations=torch.full((1, count, 1, 1, 1, 2), 0.5, dtype=dtype),
        weights=torch.ones(1, count, 1, 1, 1, dtype=dtype),
        grad_output=grad,
    )
    how = {"rng": np.random.default_rng(0), "contract": False, "order": "sequential"}
    found = largest_ratios(inputs, Arithmetic(accumulate="native"), label="", **how)["grad_value"]
    # Against n roundings of 16 bits; or n - 1 of float32, and the five of each contribution, which is exact here.
    roundings = count + 4 if dtype == torch.float32 else count
    assert found >= 0.9 * (count - 1) / roundings / (1 + count * unit)


# The emulator itself.


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("contract", [False, True])
@pytest.mark.parametrize("interpolation", ["weights", "difference", "lerp"])
def test_emulation_is_exact_where_nothing_rounds(interpolation, contract, order):
    """On a lattice every partial sum is representable, so the result is the rational one, bitwise, in any order."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inputs = lattice(rng, Shape(levels=((2, 3), (1, 4)), queries=3, heads=2, channels=2), torch.float32)
        arithmetic = Arithmetic(interpolation=interpolation)
        emulated = run(inputs, arithmetic, rng=rng, contract=contract, order=order)
        true = exact.gradients(inputs)
        for observed, rationals in (
            (emulated.out, exact.forward(inputs)),
            (emulated.grad_value, true.value),
            (emulated.grad_attention_weights, true.weights),
        ):
            assert torch.equal(observed.double(), torch.from_numpy(exact.to_float64(rationals)))
        # From above at an edge, except that x = -1 is off the map.
        sides = [torch.from_numpy(exact.to_float64(s)) for s in (true.locations_right, true.locations_left)]
        found = emulated.grad_sampling_locations.double()
        size = torch.tensor(inputs.levels).flip(-1)[:, None, :]
        leaves = (inputs.locations * size - 0.5 == -1).any(dim=-1, keepdim=True)
        assert torch.equal(torch.where(leaves, 0.0, sides[0]), found)


@pytest.mark.parametrize("cell", DTYPE_CELLS, ids=name_of)
def test_every_result_has_the_shape_and_dtype_of_its_operand(cell):
    rng = np.random.default_rng(0)
    for sizes in ({}, {"queries": 0}, {"points": 0}, {"channels": 0}, {"batch": 0}):
        inputs = draw(rng, Shape(levels=((2, 3), (4, 1)), **sizes), cell)
        emulated = run(inputs, rng=rng, contract=True, order="random")
        for result, operand in (
            (emulated.out, inputs.grad_output),
            (emulated.grad_value, inputs.value),
            (emulated.grad_sampling_locations, inputs.locations),
            (emulated.grad_attention_weights, inputs.weights),
        ):
            assert (result.shape, result.dtype) == (operand.shape, operand.dtype)


def test_skipped_samples_and_pixels_not_sampled_leave_no_trace():
    rng = np.random.default_rng(0)
    inputs = draw(rng, Shape(levels=((4, 4),), points=4), (torch.float32,) * 3, places=("nan", "huge"))
    inputs.value.fill_(torch.nan)
    inputs.weights.fill_(torch.inf)
    for form in ("weights", "difference", "lerp"):
        emulated = run(inputs, Arithmetic(interpolation=form), rng=rng, contract=False, order="tree")
        assert all((getattr(emulated, name) == 0).all() for name in OUTPUTS)


def test_native_accumulation_stagnates_in_sequence_and_not_in_a_tree():
    """Adding 1 to 2048 in float16 changes nothing: half an ulp, and 2048 is even."""
    inputs = Inputs(
        value=torch.ones(1, 1, 1, 1, dtype=torch.float16),
        levels=((1, 1),),
        locations=torch.full((1, 4096, 1, 1, 1, 2), 0.5, dtype=torch.float16),
        weights=torch.ones(1, 4096, 1, 1, 1, dtype=torch.float16),
        grad_output=torch.ones(1, 4096, 1, dtype=torch.float16),
    )
    found = {
        (accumulate, order): run(
            inputs, Arithmetic(accumulate=accumulate), rng=np.random.default_rng(0), contract=False, order=order
        ).grad_value.item()
        for accumulate in ("native", "float32")
        for order in ("sequential", "tree")
    }
    assert found.pop(("native", "sequential")) == 2048.0
    assert set(found.values()) == {4096.0}


def nearest(number, dtype):
    """Round a Fraction to a numpy float, to nearest even, from the definition."""
    start = dtype(float(number))  # within one step of the answer
    candidates = [np.nextafter(start, dtype(-np.inf)), start, np.nextafter(start, dtype(np.inf))]
    bits = {np.float32: np.uint32, np.float64: np.uint64}[dtype]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - number), int(c.view(bits)) & 1))


@pytest.mark.parametrize(("fma", "dtype", "low"), [(fma32, np.float32, -70), (fma64, np.float64, -400)])
def test_fused_multiply_add_rounds_once(fma, dtype, low):
    rng = np.random.default_rng(0)
    a, b = (rng.choice([-1, 1], 3000) * 2.0 ** rng.uniform(low, 10, 3000) for _ in range(2))
    a, b = a.astype(dtype), b.astype(dtype)
    # Cancellation down to the product's own rounding error, comparable addends, and far smaller ones.
    scale = rng.choice([-1.0, 1.0, 2.0**-20, 2.0**-30, 2.0**-60, 0.3], 3000)
    c = (a.astype(np.float64) * b.astype(np.float64) * scale).astype(dtype)
    found = fma(a, b, c)
    for i in range(3000):
        true = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        assert found[i] == nearest(true, dtype), (a[i], b[i], c[i])


def test_fused_multiply_add_does_not_round_twice():
    """(1 + 2^-12)^2 ends exactly half way between two float32; a tiny addend decides, and float64 cannot hold it."""
    a = np.array([1 + 2.0**-12], dtype=np.float32)
    c = np.array([2.0**-80], dtype=np.float32)
    assert fma32(a, a, c)[0] == np.float32(1 + 2.0**-11 + 2.0**-23)
    assert fma32(a, a, -c)[0] == np.float32(1 + 2.0**-11)


@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
def test_machine_rounds_each_float32_operation_once(operation):
    """The float64 result rounded again equals one rounding: 53 >= 2 * 24 + 2. Subnormals included."""
    rng = np.random.default_rng(0)
    a, b = ((rng.choice([-1, 1], 100_000) * 2.0 ** rng.uniform(-75, 60, 100_000)).astype(np.float32) for _ in range(2))
    wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[operation](a.astype(np.float64), b)
    found = getattr(Machine(np.float32, contract=False, flush=False), operation)(a, b)
    assert found.dtype == np.float32
    assert np.array_equal(found, wide.astype(np.float32))


def test_machine_contracts_and_flushes_only_when_asked():
    one = np.ones(1, dtype=np.float32)
    tiny = np.float32(2.0**-126) * one
    a, half_way = one + np.float32(2.0**-12), np.float32(-1 - 2.0**-11) * one
    machines = {
        (contract, flush): Machine(np.float32, contract=contract, flush=flush)
        for contract in (False, True)
        for flush in (False, True)
    }
    for (contract, flush), machine in machines.items():
        assert machine.mul_add(a, a, half_way)[0] == (2.0**-24 if contract else 0.0)
        assert machine.mul(tiny, one / 2)[0] == (0.0 if flush else 2.0**-127)
        assert machine.mul(tiny, one)[0] == tiny[0]


def test_bfloat16_rounds_to_nearest_even():
    # Every finite bfloat16 but the largest, and the float32 a quarter, a half (a tie) and three quarters further.
    low = np.arange(0x7F7F, dtype=np.uint32)
    for quarter, up in ((0, low * 0), (1, low * 0), (2, low & 1), (3, low * 0 + 1)):
        for sign in (0, 0x8000):
            given = (((low | sign) << 16) + quarter * 0x4000).astype(np.uint32).view(np.float32)
            expected = (((low | sign) + up) << 16).astype(np.uint32).view(np.float32)
            found = round_to_storage(given, torch.bfloat16)
            assert np.array_equal(found, expected)
            assert np.array_equal(found, torch.from_numpy(given).to(torch.bfloat16).float().numpy())
    special = np.array([np.inf, -np.inf, np.nan, 3.4e38, -0.0], dtype=np.float32)
    assert np.array_equal(
        round_to_storage(special, torch.bfloat16), np.array([np.inf, -np.inf, np.nan, np.inf, 0.0]), equal_nan=True
    )
    # From float64 there is no stop at float32, where this number would become a tie.
    assert round_to_storage(np.array([1 + 2.0**-8 + 2.0**-40]), torch.bfloat16)[0] == 1 + 2.0**-7
    assert round_to_storage(np.array([1 + 2.0**-11 + 2.0**-40]), torch.float16)[0] == 1 + 2.0**-10


def test_sums_take_the_order_they_are_told():
    terms = np.array([1.0, UNIT, UNIT, UNIT], dtype=np.float32)[:, None]
    machine, rng = Machine(np.float32, contract=False, flush=False), np.random.default_rng(0)
    found = {order: Sums(machine, order, rng).total(terms)[0] for order in ("sequential", "reversed", "tree")}
    # Alone, each UNIT is half an ulp of 1 and is lost. Added to one another first they count: 3 UNIT rounds to 4.
    assert found == {"sequential": 1.0, "reversed": 1 + 4 * UNIT, "tree": 1 + 2 * UNIT}
    assert {float(Sums(machine, "random", rng).total(terms)[0]) for _ in range(50)} >= set(found.values())
