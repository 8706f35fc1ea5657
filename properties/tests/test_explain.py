"""An explanation adds up to what the reference says, and shows the coordinates and corners of the operator."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from properties.casefile import CaseFile
from properties.cells import cell_named
from properties.explain import explain, explain_walked
from properties.recipe import Hot, Recipe
from properties.subject import Observation, from_callable
from properties.trace import trace, worst_element
from properties.verdict import INDICES, element_at, judge, level_of
from properties.walk import Case
from reference.expect import expect
from reference.float64 import forward
from reference.inputs import Inputs

FLOAT32 = cell_named("float32")
# One sample at x_im = 0.5 * 2 - 0.5 = 0.5, y_im = 0.25 * 4 - 0.5 = 0.5, in the middle of four pixels.
MIDDLE = Recipe(cell=FLOAT32, levels=((4, 2),), hot=(Hot(0, 0.5, 0.25),), value="constant")


def walked(recipe, **changes):
    """The case of a kernel that returns the exact results, rounded, with some elements changed: name=(index, new)."""
    inputs = recipe.build()
    expectation = expect(inputs)
    results = {name: getattr(expectation, name).value.to(getattr(expectation, name).dtype) for name in INDICES}
    for name, (index, new) in changes.items():
        results[name][index] = new
    observation = Observation(**results)
    return Case(
        recipe=recipe,
        inputs=inputs,
        given=inputs,
        observation=observation,
        expectation=expectation,
        verdict=judge(observation, expectation),
    )


@pytest.mark.parametrize("output", INDICES)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(cell=FLOAT32, queries=3, heads=2, channels=2, points=3, levels=((3, 2), (1, 4)), locations=("border",)),
        Recipe(cell=FLOAT32, batch=2, queries=40, channels=2, points=2, levels=((2, 2),), locations=("inside", "away")),
        Recipe(cell=FLOAT32, queries=2, heads=2, points=2, levels=((2, 3),), locations=("inside", "huge", "nan")),
    ],
    ids=["border", "many", "skipped"],
)
def test_the_samples_add_up_to_what_the_reference_says(output, recipe):
    case = walked(recipe)
    bounded = getattr(case.expectation, output)
    for flat in range(0, bounded.value.numel(), max(1, bounded.value.numel() // 12)):
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), bounded.value.shape))
        observed = getattr(case.observation, output)
        element = element_at(output, index, observed, bounded, bounded.ratio(observed))
        taken = trace(case.inputs, element, most=5)
        # At x_im = -1 a sample is skipped, and the slope beside it is as right.
        sides = [(float(element.expected), element.bound), *filter(None, [element.alternative])]
        # Within the bound of float32 arithmetic, and float64 arithmetic is better.
        assert any(abs(taken.total - value) <= bound for value, bound in sides), index
        assert len(taken.samples) <= 5


def test_the_largest_contributions_are_listed_and_the_rest_is_summed():
    case = walked(Recipe(cell=FLOAT32, queries=50, points=2, levels=((1, 1),), locations=("inside",)))
    observed, bounded = case.inputs.value, case.expectation.grad_value
    element = element_at("grad_value", (0, 0, 0, 0), observed, bounded, bounded.ratio(observed))
    taken = trace(case.inputs, element)
    sizes = [abs(sample.contribution) for sample in taken.samples]
    assert len(sizes) == 20
    assert sizes == sorted(sizes, reverse=True)
    assert taken.rest == 80
    text = explain_walked(walked(case.recipe, grad_value=((0, 0, 0, 0), 1e6)))
    assert "100 samples touch it" in text
    assert "the sum of 80 more samples" in text


def test_the_coordinates_of_a_sample_are_those_of_the_operator():
    text = explain_walked(walked(MIDDLE, out=((0, 0, 0), 100.0)))
    assert "out, element (batch 0, query 0, channel 0)" in text
    assert "x_im = x * W - 0.5 = 0.5 * 2 - 0.5 = 0.5;  -1 < x_im < 2: yes" in text
    assert "y_im = y * H - 0.5 = 0.25 * 4 - 0.5 = 0.5;  -1 < y_im < 4: yes" in text
    corners = [line.split()[:6] for line in text.splitlines() if line.strip().startswith(("top", "bottom"))]
    assert [corner[2:] for corner in corners] == [[r, c, "yes", "0.25"] for r in "01" for c in "01"]
    assert "got       100.0" in text
    assert "above 1: wrong" in text


def test_a_corner_outside_is_named_and_adds_nothing():
    recipe = dataclasses.replace(MIDDLE, hot=(Hot(0, 0.0, 0.0),))
    text = explain_walked(walked(recipe, out=((0, 0, 0), 100.0)))
    assert [line.split()[2:7] for line in text.splitlines() if "top left" in line] == [["-1", "-1", "no", "0.25", "-"]]


@pytest.mark.parametrize(("x", "shown"), [(-0.5, "-1.5"), (math.inf, "inf"), (math.nan, "nan")])
def test_a_skipped_sample_says_so(x, shown):
    recipe = dataclasses.replace(MIDDLE, hot=(Hot(0, x, 0.25),))
    text = explain_walked(walked(recipe, out=((0, 0, 0), 1.0)))
    assert "skipped: it contributes nothing" in text
    assert f"* 2 - 0.5 = {shown};  -1 < x_im < 2: no" in text
    assert "sum       0" in text


def test_the_gradient_of_a_pixel_lists_the_samples_that_touch_it():
    text = explain_walked(walked(MIDDLE, grad_value=((0, 3, 0, 0), 9.0)))
    assert "It is pixel (row 1, column 1) of level 0 (4 x 2)" in text
    assert "1 sample touches it" in text
    assert "bottom right    0.25" in text


def test_a_pixel_that_nothing_touches_shows_what_comes_near():
    text = explain_walked(walked(MIDDLE, grad_value=((0, 7, 0, 0), 9.0)))
    assert "No sample touches it; expected exactly 0." in text
    assert "The nearest samples:" in text
    assert "expected  0.0" in text


def test_gradients_of_a_sample_show_dot_products_and_slopes():
    text = explain_walked(walked(MIDDLE, grad_attention_weights=((0, 0, 0, 0, 0), 9.0)))
    assert "value . grad" in text
    text = explain_walked(walked(MIDDLE, grad_sampling_locations=((0, 0, 0, 0, 0, 1), 99.0)))
    assert "H 4 * weight 1.0 * slope = " in text
    assert [line.split()[5] for line in text.splitlines() if " left " in line] == ["-0.5", "0.5"]


def test_the_other_side_of_a_pixel_edge_is_shown():
    recipe = dataclasses.replace(MIDDLE, hot=(Hot(0, 0.75, 0.25),), value="normal")
    text = explain_walked(walked(recipe, grad_sampling_locations=((0, 0, 0, 0, 0, 0), 99.0)))
    assert "the cell on the other side of the pixel edge" in text


def test_a_sample_on_the_edge_of_the_map_is_skipped_and_the_slope_beside_it_is_named():
    recipe = dataclasses.replace(MIDDLE, hot=(Hot(0, -0.25, 0.25),), value="normal")
    text = explain_walked(walked(recipe, grad_sampling_locations=((0, 0, 0, 0, 0, 0), 99.0)))
    assert "x_im = x * W - 0.5 = -0.25 * 2 - 0.5 = -1.0;  -1 < x_im < 2: no" in text
    assert "what the samples above add up to: the other side of the pixel edge" in text


def test_where_all_is_well_the_largest_error_is_explained():
    text = explain_walked(walked(MIDDLE))
    assert text.startswith("Every element is within its bound")
    assert "at most 1: admissible" in text


def test_nothing_to_take_apart_is_told():
    assert "no elements" in explain_walked(walked(Recipe(cell=FLOAT32, queries=0)))
    case = walked(MIDDLE)
    short = dataclasses.replace(case.observation, out=case.observation.out[:, :0])
    failed = dataclasses.replace(case, observation=short, verdict=judge(short, case.expectation))
    assert worst_element(failed).index == ()
    assert explain_walked(failed).startswith("out: wrong shape")


def test_a_case_is_run_and_explained():
    def operator(value, shapes, starts, locations, weights):
        del starts
        levels = tuple((int(h), int(w)) for h, w in shapes)
        inputs = Inputs(value=value, levels=levels, locations=locations, weights=weights, grad_output=value[:, :1, 0])
        return forward(inputs).to(value.dtype) + 1

    case = CaseFile(recipe=MIDDLE, property="properties/test_forward.py::test_forward_within_bound[float32]")
    assert "above 1: wrong" in explain(case, from_callable(operator, name="wrong"), torch.device("cpu"))


def test_level_of_a_pixel():
    assert level_of(5, ((1, 2), (2, 3))) == (1, 1, 0)
    with pytest.raises(IndexError, match="behind the last level"):
        level_of(8, ((1, 2), (2, 3)))
