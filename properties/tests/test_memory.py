"""Fresh memory is full of NaN wherever a subject takes it, and a result that was left unwritten is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from properties.cells import CELLS
from properties.memory import poisoned
from properties.recipe import Recipe
from properties.subject import from_callable, shipped
from properties.walk import walk

FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")
LIBRARY = "msda_test_memory"


@torch.library.custom_op(f"{LIBRARY}::unwritten", mutates_args=())
def unwritten(value: Tensor) -> Tensor:
    """Return memory that nobody wrote."""
    memory: Tensor = torch.empty_like(value)
    return memory


@torch.library.custom_op(f"{LIBRARY}::outer", mutates_args=())
def outer(value: Tensor) -> Tensor:
    """Call an operator from inside of an operator."""
    memory: Tensor = unwritten(value)
    return memory


@unwritten.register_autograd
def _gradient(ctx: object, grad: Tensor) -> Any:
    del ctx
    return unwritten(grad)


@pytest.mark.parametrize(
    "take",
    [
        lambda like: torch.empty(like.shape, device=like.device),
        torch.empty_like,
        lambda like: like.new_empty(3),
        lambda like: torch.empty_strided((3,), (2,), device=like.device),
        unwritten,
        outer,
    ],
    ids=["empty", "empty_like", "new_empty", "empty_strided", "inside an operator", "two operators deep"],
)
def test_unwritten_memory_is_nan(take, msda_device: str):
    like = torch.ones(3, device=msda_device)
    with poisoned():
        taken = take(like)
    assert taken.isnan().all()


def test_memory_of_a_registered_backward_is_nan(msda_device: str):
    leaf = torch.ones(3, device=msda_device, requires_grad=True)
    with poisoned():
        unwritten(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isnan().all()


def test_the_shipped_buffers_are_nan_before_they_are_written(msda_device: str, monkeypatch: pytest.MonkeyPatch):
    """Inside of its registered operators, where results are allocated."""
    subject = shipped(device=msda_device)
    recipe = Recipe(cell=FLOAT32, queries=3, channels=5, levels=((2, 2),))
    inputs = recipe.build(torch.device(msda_device))
    seen: list[bool] = []
    empty: Any = torch.empty

    def spy(*arguments: object, **options: object) -> Any:
        memory = empty(*arguments, **options)
        if memory.is_floating_point():
            seen.append(bool(memory.isnan().all()))
        return memory

    monkeypatch.setattr(torch, "empty", spy)
    with poisoned():
        subject.observe(inputs)
    assert seen
    assert all(seen)


def test_a_registered_operator_that_leaves_a_result_unwritten_is_found(msda_device: str):
    def operator(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Any:
        del shapes, starts, locations, weights
        return unwritten(value[:, :1].flatten(2))

    recipe = Recipe(cell=FLOAT32, channels=2, weights="zero")
    device = torch.device(msda_device)
    subject = from_callable(operator, name="unwritten")
    verdict = walk(recipe, subject, device, gradients=False, around=poisoned()).verdict
    assert [evidence.failure for evidence in verdict.evidence] == ["not finite"]
