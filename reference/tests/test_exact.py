"""The rational operator against hand-made numbers and exact difference quotients; float64 against it and autograd."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from reference import exact, float64
from reference.inputs import Inputs

from .cases import DTYPE_CELLS, MAGNITUDES, Shape, draw, lattice

U = 2.0**-53
# Second-order terms of products of errors, all far below 2^-20 of the first-order ones.
SECOND_ORDER = 1.0 + 2.0**-20
INSIDE = ("inside", "edge", "near_edge", "border", "outside", "far", "nan", "corner_zone")


def one_sample(x, y, *, value=((1.0, 2.0), (3.0, 4.0)), weight=1.0, grad=1.0):
    """One sample at pixel coordinates (x, y) of a single map."""
    plane = torch.tensor(value, dtype=torch.float64)
    height, width = plane.shape
    return Inputs(
        value=plane.reshape(1, -1, 1, 1),
        levels=((height, width),),
        locations=torch.tensor([(x + 0.5) / width, (y + 0.5) / height], dtype=torch.float64).reshape(1, 1, 1, 1, 1, 2),
        weights=torch.full((1, 1, 1, 1, 1), weight, dtype=torch.float64),
        grad_output=torch.full((1, 1, 1), grad, dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0.0, 0.0, Fraction(1)),
        (1.0, 1.0, Fraction(4)),
        (0.5, 0.5, Fraction(10, 4)),
        (0.25, 0.0, Fraction(5, 4)),
        (0.25, 0.75, Fraction(11, 4)),  # 1 + x + 2 y
        (-0.5, 0.0, Fraction(1, 2)),  # half of it on the padding
        (1.5, 1.5, Fraction(1)),
        (-1.0, 0.0, Fraction(0)),
        (2.0, 1.0, Fraction(0)),
        (-1.5, 0.5, Fraction(0)),
        (float("nan"), 0.5, Fraction(0)),
        (0.5, float("inf"), Fraction(0)),
    ],
)
def test_bilinear_values_by_hand(x, y, expected):
    assert exact.forward(one_sample(x, y)).item() == expected
    assert exact.forward(one_sample(x, y, weight=-0.5)).item() == -expected / 2


def test_gradients_by_hand():
    found = exact.gradients(one_sample(0.25, 0.75, weight=0.5, grad=2.0))
    assert found.weights.item() == 2 * Fraction(11, 4)
    # a g = 1 here: the bilinear factors themselves.
    assert found.value.ravel().tolist() == [Fraction(n, 16) for n in (3, 1, 9, 3)]
    # s = 1 + x + 2 y and both levels are 2 pixels long.
    assert found.locations_right.ravel().tolist() == [2, 4]
    assert found.locations_left.ravel().tolist() == [2, 4]


@pytest.mark.parametrize(
    ("x", "y", "right", "left"),
    [
        # On the left column: right of it the slope 1, left of it the rise from the padding, 1 + 2 y = 2.
        (0.0, 0.5, [2, 4], [4, 4]),
        (1.0, 0.5, [-6, 4], [2, 4]),
        (0.0, 0.0, [2, 4], [2, 2]),
        # The outermost kinks: nothing beyond them.
        (-1.0, 0.5, [4, 0], [0, 0]),
        (2.0, 0.5, [0, 0], [-6, 0]),
        (0.5, -1.0, [0, 3], [0, 0]),
        (0.5, 2.0, [0, 0], [0, -7]),
        (-1.5, 0.5, [0, 0], [0, 0]),
        (float("nan"), 0.5, [0, 0], [0, 0]),
    ],
)
def test_one_sided_location_gradients_by_hand(x, y, right, left):
    found = exact.gradients(one_sample(x, y))
    assert found.locations_right.ravel().tolist() == right
    assert found.locations_left.ravel().tolist() == left


@pytest.mark.parametrize("name", ["value", "weights", "grad_output"])
def test_operands_that_are_not_finite_are_named(name):
    inputs = one_sample(0.5, 0.5)
    with pytest.raises(ValueError, match=name):
        exact.gradients(replace(inputs, **{name: torch.full_like(getattr(inputs, name), torch.nan)}))


def test_to_float64_rounds_to_nearest_even_and_overflows_to_infinity():
    one_ulp = Fraction(1, 2**52)
    array = np.array([1 + one_ulp / 2, 1 + one_ulp * 3 / 2, Fraction(1, 3), Fraction(-(10**400))], dtype=object)
    assert exact.to_float64(array).tolist() == [1.0, 1.0 + 2.0**-51, 1.0 / 3.0, -np.inf]


def objective(inputs):
    """Sum of out * grad_output, exactly."""
    grad = [Fraction(g) for g in inputs.grad_output.double().ravel().tolist()]
    return sum((o * g for o, g in zip(exact.forward(inputs).ravel(), grad, strict=True)), Fraction(0))


def quotient(inputs, name, position, step):
    """Exact one-sided difference quotient of the objective in one element of one operand."""
    operand = getattr(inputs, name).clone()
    before = Fraction(operand[position].item())
    operand[position] += step
    moved = Fraction(operand[position].item()) - before
    assert moved == Fraction(step), "the step must be exact"
    return (objective(replace(inputs, **{name: operand})) - objective(inputs)) / moved


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_exact_difference_quotients(seed):
    rng = np.random.default_rng(seed)
    shape = Shape(levels=((2, 3), (1, 4)), queries=2, heads=2, points=1, channels=2)
    inputs = lattice(rng, shape, torch.float64)
    found = exact.gradients(inputs)
    # out is linear in value and in weights, whatever the step.
    for name, gradient in (("value", found.value), ("weights", found.weights)):
        for position in np.ndindex(*gradient.shape):
            assert quotient(inputs, name, position, 0.5) == gradient[position]
    # It is linear in one coordinate up to the next pixel edge. Locations are multiples of 1/16 and widths at most 4,
    # so no edge (j + 1/2) / W lies within 1/96 of one that is not on it.
    step = 2.0**-7
    for position in np.ndindex(*found.locations_right.shape):
        assert quotient(inputs, "locations", position, step) == found.locations_right[position]
        assert quotient(inputs, "locations", position, -step) == found.locations_left[position]


def float64_bounds(inputs, coordinate_error):
    """Bound any float64 evaluation whose pixel coordinates are off by `coordinate_error` (B, Q, M, L, K, 2).

    A bilinear factor is a product of two numbers in [0, 1] of absolute error e + 2u each, e the coordinate error. So
    is each slope, for the other axis. The rest is at most 20 roundings a term and one an addition. Magnitudes are
    bounded crudely: the four pixels by four times the largest value of their head.
    """
    samples = inputs.weights.shape[3] * inputs.weights.shape[4]
    error = coordinate_error.nan_to_num(0.0, 0.0, 0.0)
    largest = 4 * inputs.value.double().abs().amax(dim=(1, 3))[:, None, :, None, None]
    weight = inputs.weights.double().abs()
    grad = inputs.grad_output.double().abs().reshape(inputs.batch, inputs.queries, inputs.heads, inputs.channels)
    all_grad = grad.sum(dim=-1)[..., None, None]
    size = torch.tensor(inputs.levels, dtype=torch.float64).flip(-1)[:, None, :]
    both = error.sum(dim=-1)
    out = (weight * largest * (both + (9 * samples + 20) * U)).sum(dim=(3, 4))
    pixels = torch.einsum("bqmlk,bqmd->bmd", weight * (both + (samples * inputs.queries + 20) * U), grad)
    bounds = {
        "out": out.repeat_interleave(inputs.channels, dim=-1),
        "value": pixels[:, None].expand(inputs.value.shape),
        "weights": all_grad * largest * (both + (inputs.channels + 30) * U),
        "locations": size * (weight * all_grad * largest)[..., None] * (error.flip(-1) + (inputs.channels + 30) * U),
    }
    return {name: bound * SECOND_ORDER for name, bound in bounds.items()}


def pixel_coordinates(inputs):
    """Return loc * W, loc * W - 1/2 and W, in float64."""
    size = torch.tensor(inputs.levels, dtype=torch.float64).flip(-1)[:, None, :]
    scaled = inputs.locations.double() * size
    return scaled, scaled - 0.5, size


def plain_error(inputs):
    """Error of loc * W - 1/2 in float64: one rounding of the product and one of the difference."""
    scaled, pixel, _ = pixel_coordinates(inputs)
    return U * (scaled.abs() + pixel.abs()) * SECOND_ORDER


@pytest.mark.parametrize("dtypes", DTYPE_CELLS, ids=lambda cell: "-".join(str(dtype)[6:] for dtype in cell))
def test_float64_reference_agrees_with_exact_arithmetic(dtypes):
    rng = np.random.default_rng(1)
    kinds = [kind for kind in MAGNITUDES if kind not in ("huge", "subnormal", "extreme")]
    for _ in range(6):
        shape = Shape(levels=((3, 5), (1, 7), (4, 2)), batch=2, queries=3, heads=2, points=1, channels=2)
        magnitudes = {name: str(rng.choice(kinds)) for name in ("value", "weight", "grad")}
        inputs = draw(rng, shape, dtypes, places=INSIDE, **magnitudes)
        error = plain_error(inputs)
        bounds = float64_bounds(inputs, error)
        found, true = float64.gradients(inputs), exact.gradients(inputs)
        pairs = {
            "out": (float64.forward(inputs), exact.forward(inputs)),
            "value": (found.value, true.value),
            "weights": (found.weights, true.weights),
        }
        for name, (floats, rationals) in pairs.items():
            difference = (floats - torch.from_numpy(exact.to_float64(rationals))).abs()
            assert (difference <= bounds[name]).all(), name
        # Each coordinate moved a little up, and down: within a cell its own gradient stays and the other's hardly
        # moves, so this gives the limits from both sides of an edge that the float64 coordinate may have crossed.
        nudge = 2.0**-49
        above, here, below = (
            torch.from_numpy(exact.to_float64(side(exact.gradients(replace(inputs, locations=moved)))))
            for side, moved in (
                (lambda found: found.locations_right, inputs.locations.double() + nudge),
                (lambda found: found.locations_right, inputs.locations),
                (lambda found: found.locations_left, inputs.locations.double() - nudge),
            )
        )
        _, pixel, size = pixel_coordinates(inputs)
        errors = torch.stack([(found.locations - limit).abs() for limit in (above, here, below)])
        at_edge = (pixel - pixel.round()).abs() <= error
        difference = torch.where(at_edge, errors.amin(dim=0), errors[1])
        bounds = float64_bounds(inputs, error + nudge * size)
        assert (difference <= bounds["locations"]).all()
        # Where the coordinate does not round, the reference takes the side from above, as it says.
        assert dtypes[1] == torch.float64 or (errors[1] <= bounds["locations"]).all()


def grid_sample_forward(value, locations, weights, levels):
    """The operator as PyTorch's grid_sample computes it, differentiable."""
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    out = value.new_zeros(batch * heads, channels, queries)
    planes = value.split([height * width for height, width in levels], dim=1)
    for level, (height, width) in enumerate(levels):
        plane = planes[level].permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        sampled = torch.nn.functional.grid_sample(
            plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )  # (B * M, D, Q, K)
        weight = weights[:, :, :, level].transpose(1, 2).flatten(0, 1).unsqueeze(1)
        out = out + (sampled * weight).sum(dim=-1)
    return out.reshape(batch, heads * channels, queries).transpose(1, 2)


@pytest.mark.parametrize("seed", range(10))
def test_float64_reference_agrees_with_autograd_through_grid_sample(seed):
    rng = np.random.default_rng(seed)
    shape = Shape(levels=((5, 9), (1, 300), (64, 3)), batch=2, queries=7, heads=2, points=3, channels=4)
    inputs = draw(rng, shape, (torch.float64,) * 3, places=("inside", "outside"))
    # Away from kinks, where autograd has one derivative to return.
    scaled, pixel, size = pixel_coordinates(inputs)
    pixel = pixel.floor() + (pixel - pixel.floor()).clamp(0.1, 0.9)
    inputs = replace(inputs, locations=(pixel + 0.5) / size)
    scaled, pixel, size = pixel_coordinates(inputs)
    # grid_sample: g = 2 loc - 1, then ((g + 1) W - 1) / 2. One rounding a step, the first two amplified by W / 2.
    doubled = 2 * inputs.locations
    detour = U * (pixel.abs() + scaled.abs() + 1 + size / 2 * ((doubled - 1).abs() + doubled.abs())) * SECOND_ORDER
    bounds, theirs = float64_bounds(inputs, plain_error(inputs)), float64_bounds(inputs, detour)
    operands = [tensor.clone().requires_grad_() for tensor in (inputs.value, inputs.locations, inputs.weights)]
    value, locations, weights = operands
    out = grid_sample_forward(value, locations, weights, inputs.levels)
    autograd = dict(
        zip(("value", "locations", "weights"), torch.autograd.grad(out, operands, inputs.grad_output), strict=True)
    )
    found = float64.gradients(inputs)
    assert ((float64.forward(inputs) - out).abs() <= bounds["out"] + theirs["out"]).all()
    for name, gradient in autograd.items():
        assert ((getattr(found, name) - gradient).abs() <= bounds[name] + theirs[name]).all(), name
