"""The bound of run-to-run differences, the overflow rule of 16-bit sums, and rational expectations: on the emulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from reference.emulate import run
from reference.expect import expect
from reference.inputs import Inputs
from reference.machine import round_to_storage
from reference.model import OVERFLOW, UNIT_ROUNDOFF, Arithmetic
from reference.repeat import lossy_from, run_to_run

from .cases import MAGNITUDES, Shape, draw

ACCUMULATORS = [
    (torch.float64, "float32"),
    (torch.float32, "float32"),
    (torch.float16, "float32"),
    (torch.bfloat16, "float32"),
    (torch.float16, "native"),
    (torch.bfloat16, "native"),
]
RUNS = 6
# The largest ratio that must be reached: the bound is no excuse for anything.
SHARP = 0.2


def runs_of(inputs, arithmetic, seed, *, flush=False):
    """Emulate one compiled kernel several times: the same choices, and another order of the atomics each time."""
    results = []
    for number in range(RUNS):
        rng: Any = ReplayedGenerator(seed, number)
        results.append(run(inputs, arithmetic, rng=rng, contract=True, order="random", flush=flush))
    return results


class ReplayedGenerator:
    """A generator whose coin tosses repeat from run to run, while long permutations differ."""

    def __init__(self, seed, number):
        self.choices = np.random.default_rng(seed)
        self.orders = np.random.default_rng([seed, number])
        # Shorter ones order the sums inside a kernel, which are compiled in: four corners, four channels.
        self.longest = 4

    def integers(self, *args):
        """Toss a coin as in every run."""
        return self.choices.integers(*args)

    def permutation(self, count):
        """Order a sum: as in every run, or as in this one."""
        own = self.choices.permutation(min(count, self.longest))
        return own if count <= self.longest else self.orders.permutation(count)


def extremes(results, name):
    stack = torch.stack([getattr(result, name).double() for result in results])
    low, high = stack.amin(dim=0), stack.amax(dim=0)
    differs = ((stack != stack[0]) & ~(stack.isnan() & stack[0].isnan())).any(dim=0)
    # amin and amax pass NaN on.
    return low, high, differs


@pytest.mark.parametrize(("dtype", "accumulate"), ACCUMULATORS, ids=lambda x: str(x).removeprefix("torch."))
def test_runs_stay_within_the_bound_and_reach_it(dtype, accumulate):
    largest = 0.0
    for case in range(25):
        rng = np.random.default_rng([case, 7])
        shape = Shape(levels=((2, 3),), queries=int(rng.choice([3, 4, 5, 40])), points=1, channels=4)
        kinds = [str(rng.choice(MAGNITUDES)) for _ in range(2)]
        inputs = draw(rng, shape, (dtype,) * 3, places=("inside", "collide"), weight=kinds[0], grad=kinds[1])
        arithmetic = Arithmetic(accumulate=accumulate, flush_atomics=bool(case % 2))
        allowed = run_to_run(expect(inputs, arithmetic), arithmetic, dtype)
        results = runs_of(inputs, arithmetic, case, flush=dtype == torch.float32)
        ratio = allowed.ratio(*extremes(results, "grad_value"))
        assert ratio.max() <= 1.0, (case, kinds, ratio.max())
        largest = max(largest, float(ratio.max()))
    # After a cast only sums next to a rounding boundary differ at all: one is made below.
    assert largest >= SHARP or allowed.cast


def test_a_cast_may_round_either_way():
    """1 + 2^-11 is half way between two float16; four of 2^-25 decide, if they are added to one another first."""
    terms = np.array([1.0, 2.0**-11, *[2.0**-25] * 4], dtype=np.float32)
    sums = [0.0, 0.0]
    for number, order in enumerate((terms, terms[::-1])):
        for term in order:
            sums[number] = np.float32(sums[number]) + term
    low, high = (torch.tensor(float(np.float16(total))).reshape(1, 1, 1, 1) for total in sums)
    assert (low.item(), high.item()) == (1.0, 1.0 + 2.0**-10)
    allowed = run_to_run(expect(one_pixel(terms, torch.float16)), Arithmetic(), torch.float16)
    assert 0.9 < allowed.ratio(low, high, low != high).item() <= 1.0


def test_two_contributions_commute():
    """Two samples on one pixel: the bits are the same in any order, and anything else is infinitely wrong."""
    rng = np.random.default_rng(0)
    inputs = draw(
        rng, Shape(levels=((1, 1),), queries=2, points=1, channels=1), (torch.float32,) * 3, places=("inside",)
    )
    expectation = expect(inputs)
    allowed = run_to_run(expectation, Arithmetic(), torch.float32)
    assert expectation.contributions is not None
    assert expectation.contributions.max() == 2
    low = torch.zeros(inputs.value.shape)
    high = torch.full_like(low, 1e-45)
    assert (allowed.ratio(low, high, high != low) == torch.inf).all()
    assert (allowed.ratio(low, low, high == high - 1) == 0.0).all()


def test_a_promise_leaves_no_room():
    rng = np.random.default_rng(0)
    inputs = draw(
        rng, Shape(levels=((1, 1),), queries=9, points=1, channels=1), (torch.float16,) * 3, places=("inside",)
    )
    expectation = expect(inputs)
    usual, promised = (
        run_to_run(expectation, Arithmetic(), torch.float16, deterministic=promise) for promise in (False, True)
    )
    one = torch.ones(inputs.value.shape)
    assert (usual.bound(one, one) > 0.0).all()
    assert (promised.bound(one, one) == 0.0).all()


def sum_in_sixteen_bits(terms, dtype, order):
    total = np.zeros((), dtype=np.float32)
    with np.errstate(all="ignore"):
        for i in order:
            total = round_to_storage(total + terms[i], dtype)
    return float(np.ravel(total)[0])


def one_pixel(terms, dtype):
    """Inputs whose grad_value is the sum of `terms`: one pixel, samples in its middle, weight 1."""
    count = len(terms)
    return Inputs(
        value=torch.ones((1, 1, 1, 1), dtype=dtype),
        levels=((1, 1),),
        locations=torch.full((1, count, 1, 1, 1, 2), 0.5),
        weights=torch.ones((1, count, 1, 1, 1)),
        grad_output=torch.from_numpy(terms).to(dtype).reshape(1, count, 1),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_native_sums_are_finite_where_they_must_be(dtype):
    """A finite result is required where T'(1 + n u_h) stays below the overflow threshold, and nowhere else."""
    rng = np.random.default_rng(0)
    required = seen = 0
    for _ in range(300):
        count = int(rng.integers(1, 12))
        scale = OVERFLOW[dtype] * rng.uniform(0.2, 3.0) / count
        limit = 0.99 * OVERFLOW[dtype]
        terms = round_to_storage(np.clip(rng.uniform(-1, 1, count) * scale, -limit, limit).astype(np.float32), dtype)
        bounded = expect(one_pixel(terms, dtype), Arithmetic(accumulate="native")).grad_value
        assert bounded is not None
        largest = np.abs(terms.astype(np.float64)).sum() * (1.0 + count * UNIT_ROUNDOFF[dtype])
        hazard = bool(bounded.hazard)
        # The rule, but for roundings of float32 (2^-21) and of second order. In float32 nothing may overflow either,
        # which counts for bfloat16 alone.
        products = 2.0 * (1.0 + np.abs(terms.astype(np.float64))).sum()
        if largest < 0.99 * OVERFLOW[dtype] and products < OVERFLOW[torch.float32]:
            assert not hazard
        if largest >= OVERFLOW[dtype]:
            assert hazard
        results = {sum_in_sixteen_bits(terms, dtype, rng.permutation(count)) for _ in range(6)}
        finite = all(np.isfinite(list(results)))
        assert hazard or finite
        required += not hazard
        seen += not finite
        for result in results:
            assert bounded.ratio(torch.tensor(result).reshape(1, 1, 1, 1)).item() <= 1.0
    assert required > 30
    assert seen > 10


def test_overflow_may_depend_on_the_order():
    """60000 + 60000 - 60000 is infinite or 60000."""
    terms = np.array([60000.0, 60000.0, -60000.0], dtype=np.float32)
    assert sum_in_sixteen_bits(terms, torch.float16, [0, 1, 2]) == np.inf
    assert sum_in_sixteen_bits(terms, torch.float16, [0, 2, 1]) == np.float32(60000.0).astype(np.float16)
    inputs = one_pixel(terms, torch.float16)
    arithmetic = Arithmetic(accumulate="native")
    low, high = (torch.tensor(x).reshape(1, 1, 1, 1) for x in (60000.0, np.inf))
    for given, worst in ((arithmetic, 0.0), (Arithmetic(), np.inf)):
        allowed = run_to_run(expect(inputs, given), given, torch.float16)
        assert allowed.ratio(low, high, low != high).item() == worst


@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 2048), (torch.bfloat16, 256)])
def test_accumulators_end_where_ones_no_longer_count(dtype, count):
    assert lossy_from(dtype) == count
    assert sum_in_sixteen_bits(np.ones(count + 50), dtype, range(count + 50)) == count


def test_flushing_atomics_have_a_term_of_their_own():
    rng = np.random.default_rng(0)
    inputs = draw(rng, Shape(levels=((1, 1),), queries=9), (torch.float32,) * 3, grad="subnormal", places=("inside",))
    terms = []
    for flush in (True, False):
        bounded = expect(inputs, Arithmetic(flush_to_zero=False, flush_atomics=flush)).grad_value
        assert bounded is not None
        terms.append(bounded.parts["underflow"].max())
    flushing, gradual = terms
    assert flushing >= 2 * 2.0**-126
    assert gradual < 2.0**-130


@pytest.mark.parametrize("kind", ["normal", "wide", "subnormal"])
def test_rational_bounds_hold_without_the_factor_two(kind):
    """And they are sharper: those of float64 by nearly two."""
    largest, halved = 0.0, []
    for case in range(25):
        rng = np.random.default_rng(case)
        shape = Shape(levels=((2, 3), (3, 5)), queries=2, channels=2)
        places = ("inside", "edge", "near_edge", "border", "outside", "nan", "corner_zone", "collide")
        inputs = draw(rng, shape, (torch.float64,) * 3, value=kind, weight=kind, places=places)
        emulated = run(inputs, rng=rng, contract=bool(case % 2), order="random")
        double, rational = expect(inputs), expect(inputs, rational=True)
        for field in dataclasses.fields(emulated):
            bounded = getattr(rational, field.name)
            ratio = bounded.ratio(getattr(emulated, field.name)).max().item()
            assert ratio <= 1.0, (case, field.name, ratio)
            largest = max(largest, ratio)
        halved.append((rational.out.bound.sum() / double.out.bound.sum()).item())
    assert max(halved) < 0.6
    assert largest >= SHARP or kind == "subnormal"
