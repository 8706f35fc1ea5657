"""Trivial results: what a subject could return without computing, and cases that tell them from right ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from reference.expect import Bounded, Expectation
from reference.inputs import Inputs

from .explicit import OPERANDS
from .recipe import Recipe
from .repeat import other_bits
from .subject import Observation
from .verdict import INDICES

# An operand of the same shape as each output.
ALIKE = {
    "out": ("grad_output", "grad_output"),
    "grad_value": ("value", "value"),
    "grad_sampling_locations": ("sampling_locations", "locations"),
    "grad_attention_weights": ("attention_weights", "weights"),
}
# Part of an output's elements that each trivial result must be wrong in.
GOOD_PART = 0.25


def enlarged(recipe: Recipe) -> Recipe:
    """Give a recipe several elements of each output, and a level that has other sides: the simplest one has neither."""
    sizes: dict[str, Any] = {name: max(2, getattr(recipe, name)) for name in ("queries", "channels", "points")}
    levels = recipe.levels if recipe.pixels > len(recipe.levels) else ((2, 3), *recipe.levels[1:])
    return dataclasses.replace(recipe, levels=levels, **sizes)


def unexpanded(recipe: Recipe) -> Recipe:
    """Give a recipe operands of which every element is another one."""
    layouts: dict[str, Any] = {f"{operand}_layout": getattr(recipe, f"{operand}_layout") for operand in OPERANDS}
    plain = {name: "contiguous" for name, layout in layouts.items() if layout == "expanded"}
    return dataclasses.replace(recipe, **layouts | plain)


def discriminates(expectation: Expectation, inputs: Inputs, before: Observation | None = None) -> str:
    """Return which trivial result a case would let pass, empty when it lets none pass.

    A trivial result must be wrong in a quarter of the elements of every output, those of grad_value alone that
    something contributes to: zeros, any other constant, the operand of the same shape, and the result of another call.

    Args:
        expectation: of the case; gradients that it lacks are left out.
        inputs: its operands.
        before: results of another call of the same shapes.
    """
    for name in INDICES:
        bounded: Bounded | None = getattr(expectation, name)
        if bounded is None:
            continue
        reached = torch.ones_like(bounded.value, dtype=torch.bool)
        if name == "grad_value":
            assert expectation.contributions is not None
            reached = (expectation.contributions > 0).unsqueeze(-1).expand_as(reached)
        label, field = ALIKE[name]
        candidates = {"zeros": torch.zeros_like(bounded.value), label: getattr(inputs, field)}
        if before is not None:
            candidates["the result of the call before"] = getattr(before, name)
        count = int(reached.sum())
        for what, candidate in candidates.items():
            wrong = int((~(bounded.ratio(candidate) <= 1.0) & reached).sum())
            if wrong < GOOD_PART * count or not count:
                return f"{what} for {name}, wrong in {wrong} of {count} elements"
        wrong = count - _most_that_share(bounded, reached)
        if wrong < GOOD_PART * count:
            return f"a constant for {name}, wrong in {wrong} of {count} elements"
    return ""


def _most_that_share(bounded: Bounded, reached: Tensor) -> int:
    """Count the intervals that one number can lie in at most; a second interval of an element counts as another one."""
    sides = [bounded, *bounded.alternatives]
    low = torch.cat([(side.value - side.bound)[reached] for side in sides[:1]])
    high = torch.cat([(side.value + side.bound)[reached] for side in sides[:1]])
    for side in sides[1:]:
        # Most elements have the same interval twice.
        other = reached & (side.value != bounded.value)
        low = torch.cat([low, (side.value - side.bound)[other]])
        high = torch.cat([high, (side.value + side.bound)[other]])
    low, high = low.sort().values, high.sort().values
    begun = torch.arange(1, low.numel() + 1, device=low.device)
    ended = torch.searchsorted(high, low)
    return int((begun - ended).max()) if low.numel() else 0


def likeness(name: str, found: Observation, inputs: Inputs, before: Observation | None = None) -> str:
    """Say what trivial thing a result is, empty when it is none.

    Args:
        name: of the output.
        found: the results.
        inputs: the operands.
        before: results of the call before.
    """
    result = getattr(found, name)
    label, field = ALIKE[name]
    operand = getattr(inputs, field)
    if result is None or result.shape != operand.shape or result.dtype != operand.dtype or result.numel() == 0:
        return ""
    if bool((result == 0).all()):
        return "every element is 0"
    if bool((result == result.flatten()[0]).all()):
        return f"every element is {float(result.flatten()[0])!r}"
    if not bool(other_bits(result, operand).any()):
        return f"it is {label}, handed back"
    if before is not None and not bool(other_bits(result, getattr(before, name)).any()):
        return "it is the result of the call before, on other operands"
    return ""
