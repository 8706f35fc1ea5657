"""Bounds of the other interpolation forms hold for their derivatives as autograd computes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference.expect import expect
from reference.inputs import Inputs
from reference.model import Arithmetic, Interpolation

HEIGHT, WIDTH, QUERIES, CHANNELS = 4, 5, 60, 3


def attend(value: Tensor, locations: Tensor, weights: Tensor, form: str) -> Tensor:
    """One level, one head, one point: (1, S, 1, D), (1, Q, 1, 1, 1, 2), (1, Q, 1, 1, 1) -> (1, Q, D)."""
    x = locations[0, :, 0, 0, 0, 0] * WIDTH - 0.5
    y = locations[0, :, 0, 0, 0, 1] * HEIGHT - 0.5
    left, top = x.detach().floor(), y.detach().floor()
    lx, ly = (x - left)[:, None], (y - top)[:, None]
    corners = []
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        pixel = torch.where(inside, row * WIDTH + column, 0.0).long()
        corners.append(torch.where(inside[:, None], value[0, pixel, 0], 0.0))
    v00, v01, v10, v11 = corners
    a = weights[0, :, 0, 0, 0, None]
    if form == "lerp":
        above, below = v00 + lx * (v01 - v00), v10 + lx * (v11 - v10)
        return (a * (above + ly * (below - above)))[None]
    w1 = a * ly
    w0 = a - w1
    w01, w11 = w0 * lx, w1 * lx
    return ((w0 - w01) * v00 + w01 * v01 + (w1 - w11) * v10 + w11 * v11)[None]


@pytest.mark.parametrize("form", ["difference", "lerp"])
@pytest.mark.parametrize("spread", [0.0, 20.0])
def test_autograd_of_another_form_stays_within_its_bounds(form: Interpolation, spread: float):
    """Factors near 0 beside pixels of very different sizes: what an absolute error of a factor makes visible."""
    largest: dict[str, float] = {}
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        value = torch.randn(1, HEIGHT * WIDTH, 1, CHANNELS, generator=generator)
        value = value * 2.0 ** (spread * (torch.rand(value.shape, generator=generator) - 0.5))
        fractions = torch.rand(QUERIES, 2, generator=generator)
        # Half of the samples within a thousandth of a pixel below the next pixel centre.
        close = torch.rand(QUERIES, 2, generator=generator) < 0.5
        fractions = torch.where(close, 1.0 - 0.001 * fractions, fractions)
        cells = torch.stack([torch.randint(-1, n, (QUERIES,), generator=generator) for n in (WIDTH, HEIGHT)], dim=-1)
        locations = (cells + fractions + 0.5) / torch.tensor([WIDTH, HEIGHT])
        inputs = Inputs(
            value=value,
            levels=((HEIGHT, WIDTH),),
            locations=locations.reshape(1, QUERIES, 1, 1, 1, 2),
            weights=torch.randn(1, QUERIES, 1, 1, 1, generator=generator),
            grad_output=torch.randn(1, QUERIES, CHANNELS, generator=generator),
        )
        value, locations, weights = (
            t.clone().requires_grad_() for t in (inputs.value, inputs.locations, inputs.weights)
        )
        out = attend(value, locations, weights, form)
        grads = torch.autograd.grad(out, (value, locations, weights), inputs.grad_output)
        expectation = expect(inputs, Arithmetic(interpolation=form, corner_sum="flat"))
        observed = {
            "out": out.detach(),
            "grad_value": grads[0],
            "grad_sampling_locations": grads[1],
            "grad_attention_weights": grads[2],
        }
        for name, result in observed.items():
            ratio = float(getattr(expectation, name).ratio(result).max())
            largest[name] = max(largest.get(name, 0.0), ratio)
    assert max(largest.values()) <= 1.0, largest
