"""Expectations without tolerance, against rational arithmetic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from reference import exact
from reference.lattice import expect_exactly
from reference.tests.cases import Shape, lattice

SHAPE = Shape(levels=((4, 6), (3, 1)), batch=2, queries=5, heads=2, points=2, channels=3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_values_are_the_exact_ones_rounded_once(dtype: torch.dtype):
    for seed in range(10):
        inputs = lattice(np.random.default_rng(seed), SHAPE, dtype)
        expected, true = expect_exactly(inputs), exact.gradients(inputs)
        results = {
            "out": exact.forward(inputs),
            "grad_value": true.value,
            "grad_attention_weights": true.weights,
            "grad_sampling_locations": true.locations_right,
        }
        for name, result in results.items():
            bounded = getattr(expected, name)
            rounded = torch.from_numpy(exact.to_float64(result)).to(dtype)
            assert (bounded.ratio(rounded) == 0.0).all()
            assert (bounded.bound == 0.0).all()
        # The other side of an edge is admissible for each axis by itself, and nothing between the two.
        left = torch.from_numpy(exact.to_float64(true.locations_left)).to(dtype)
        right = torch.from_numpy(exact.to_float64(true.locations_right)).to(dtype)
        bounded = expected.grad_sampling_locations
        assert bounded is not None
        assert (bounded.ratio(left) == 0.0).all()
        mean = (left.double() + right.double()) / 2
        assert torch.equal(bounded.ratio(mean.to(dtype)) == 0.0, (mean.to(dtype) == left) | (mean.to(dtype) == right))
        assert (left != right).any()


def test_one_unit_in_the_last_place_is_too_much():
    inputs = lattice(np.random.default_rng(1), SHAPE, torch.float16)
    out = expect_exactly(inputs, gradients=False).out
    stored = out.value.to(torch.float16)
    nonzero = stored != 0
    near = (stored.view(torch.int16) + 1).view(torch.float16)
    assert torch.equal(out.ratio(near) == torch.inf, torch.ones_like(nonzero))
    assert (out.ratio(-torch.zeros_like(stored))[~nonzero] == 0.0).all()


def test_overflow_of_storage_asks_for_the_right_infinity():
    inputs = lattice(np.random.default_rng(2), SHAPE, torch.float16)
    inputs = dataclasses.replace(inputs, value=inputs.value * 2.0**13, weights=inputs.weights * 16)
    big = expect_exactly(inputs).out
    over = big.value.abs() >= 65520.0
    assert over.any()
    right = torch.where(over, torch.sign(big.value) * torch.inf, big.value)
    assert (big.ratio(right) == 0.0).all()
    assert (big.ratio(-right)[over] == torch.inf).all()
    assert (big.ratio(right.clamp(-65504.0, 65504.0))[over] == torch.inf).all()
