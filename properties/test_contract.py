"""What a subject promises to PyTorch around the call: traced shapes, mapped calls, its switch for determinism.

Each is tested where the subject declares it in `supports`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from properties.cells import CELLS, DtypeCell
from properties.declaration import Support
from properties.harness import Harness
from properties.recipe import Recipe
from properties.relations import small, with_two_entries
from properties.repeat import other_bits, walk_repeatedly
from properties.strategies import crowded_recipes, recipes
from properties.subject import Subject
from properties.verdict import PropertyFailed
from reference.inputs import Inputs

SHARE = 0.15
# Programs of one launch in the interpreter, where a case is run eight times or more.
REPEATED_STEPS = 6
FIELDS = ("value", "locations", "weights")
NAMES = {"value": "value", "locations": "sampling_locations", "weights": "attention_weights"}
# Where each operand is mapped over, None for one that all calls share.
MAPPED = ((0, 0, 0), (1, 0, 2), (0, None, 1), (None, 2, 0))

cells = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)


def require(subject: Subject, support: Support) -> None:
    """Skip unless the subject declares this."""
    if support not in subject.supports:
        pytest.skip(f"{subject.name} does not declare that it supports {support}")


def plain(inputs: Inputs) -> Inputs:
    """Return contiguous operands: layouts are the business of other properties."""
    return dataclasses.replace(inputs, **{name: getattr(inputs, name).contiguous() for name in FIELDS})


# ---------------------------------------------------------------- traced shapes


@cells
def test_traced_shapes_are_the_real_ones(harness: Harness, cell: DtypeCell) -> None:
    """With fake tensors, as `torch.compile` traces, results and gradients have the shapes and dtypes of real ones."""
    require(harness.subject, "fake_tensors")
    harness.for_all(recipes(cell, limits=harness.limits), lambda recipe: check_traced(harness, recipe), share=SHARE)


def check_traced(harness: Harness, recipe: Recipe) -> None:
    """Compare what is promised with what the operands imply."""
    inputs = recipe.build(harness.device)
    shapes, starts = inputs.level_table()
    mode = FakeTensorMode()
    operands = [mode.from_tensor(getattr(inputs, name)).detach().requires_grad_() for name in FIELDS]
    table = [mode.from_tensor(tensor) for tensor in (shapes, starts)]
    with mode, harness.clock("subject"):
        out = harness.subject.call(operands[0], *table, *operands[1:])
        grads = torch.autograd.grad(out, operands, mode.from_tensor(inputs.grad_output))
    expected = {"out": inputs.grad_output} | {f"grad_{NAMES[name]}": getattr(inputs, name) for name in FIELDS}
    for (name, real), traced in zip(expected.items(), (out, *grads), strict=True):
        promised, wanted = _form(traced), (tuple(real.shape), inputs.value.dtype if name == "out" else real.dtype)
        if promised != wanted:
            raise PropertyFailed(
                f"{name}: traced as {promised[0]} {promised[1]}, it is {wanted[0]} {wanted[1]}\n  on {recipe!r}"
            )
    harness.record_case(recipe)


def _form(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


# ---------------------------------------------------------------- mapped calls


@cells
def test_mapped_calls_are_single_calls(harness: Harness, cell: DtypeCell) -> None:
    """`torch.vmap` over operands on any axis, or some of them alone, gives what one call after the other gives."""
    require(harness.subject, "vmap")
    strategy = recipes(cell, limits=small(harness.limits), layouts=False).map(with_two_entries)
    harness.for_all(strategy, lambda recipe: check_mapped(harness, recipe), share=SHARE)


def check_mapped(harness: Harness, recipe: Recipe) -> None:
    """Map over two sets of operands, the second one moved; forward, and backward through the mapped call."""
    inputs = plain(recipe.build(harness.device))
    shapes, starts = inputs.level_table()
    dims = MAPPED[recipe.seed % len(MAPPED)]
    subject = harness.subject.varied(recipe.seed // len(MAPPED))
    second = {"value": inputs.value.flip(1), "locations": 1.0 - inputs.locations, "weights": inputs.weights.flip(-1)}
    pairs = [(getattr(inputs, name), second[name]) for name in FIELDS]
    stacked = [
        (one if dim is None else torch.stack([one, two], dim)).detach().requires_grad_()
        for (one, two), dim in zip(pairs, dims, strict=True)
    ]

    def call(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return subject.call(value, shapes, starts, locations, weights)

    with harness.clock("subject"):
        out = torch.vmap(call, in_dims=cast(Any, dims))(*stacked)
        grads = torch.autograd.grad(out, stacked, torch.stack([inputs.grad_output] * 2))
        singles = [_single(call, stacked, dims, which, inputs.grad_output) for which in range(2)]
    where = f"mapped over axes {dims} of value, locations and weights"
    compare(recipe, f"out: {where}", out, torch.stack([single[0] for single in singles]))
    for number, (name, dim) in enumerate(zip(FIELDS, dims, strict=True)):
        # An operand that all calls share gets the sum of their gradients, and atomics may add in another order.
        atomic = name == "value" and subject.determinism != "run_to_run"
        if dim is not None:
            wanted = torch.stack([single[1][number] for single in singles], dim)
            compare(recipe, f"grad_{NAMES[name]}: {where}", grads[number], wanted, bits=not atomic)
    harness.record_case(recipe)


def _single(
    call: Callable[..., Tensor],
    stacked: list[Tensor],
    dims: tuple[int | None, ...],
    which: int,
    grad_output: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return out and the gradients of one call of those that were mapped."""
    picked = [one if dim is None else one.select(dim, which) for one, dim in zip(stacked, dims, strict=True)]
    leaves = [one.detach().clone().requires_grad_() for one in picked]
    out = call(*leaves)
    return out, torch.autograd.grad(out, leaves, grad_output)


def compare(recipe: Recipe, what: str, got: Tensor, wanted: Tensor, *, bits: bool = True) -> None:
    """Raise unless two results have the same shape and dtype, and the same bits if asked for."""
    if _form(got) != _form(wanted):
        raise PropertyFailed(f"{what}, it is {_form(got)}, one call after the other {_form(wanted)}\n  on {recipe!r}")
    if bits and bool(other_bits(got.detach(), wanted.detach()).any()):
        raise PropertyFailed(f"{what}, it has other bits than one call after the other\n  on {recipe!r}")


# ---------------------------------------------------------------- PyTorch's switch, and second derivatives


@cells
def test_deterministic_algorithms_are_heeded(harness: Harness, cell: DtypeCell) -> None:
    """Under `torch.use_deterministic_algorithms(True)` runs have the same bits, with nothing said in the call."""
    require(harness.subject, "deterministic_algorithms")
    # What it promises by itself while the switch is on.
    subject = dataclasses.replace(harness.subject, determinism="run_to_run")
    limits = harness.limits.at_most(REPEATED_STEPS)
    strategy = st.one_of(crowded_recipes(cell, limits=limits), recipes(cell, limits=limits))
    harness.for_all(strategy, lambda recipe: check_switch(harness, recipe, subject), share=SHARE)


@contextmanager
def switch(on: bool | None) -> Iterator[None]:
    """Leave the switch for deterministic algorithms as it was, whatever happens inside.

    Args:
        on: how it is inside; None to leave it alone.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if on is not None:
            torch.use_deterministic_algorithms(on)
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def asking(subject: Subject) -> Subject:
    """Return the subject called with the switch on; the harness' own work is not."""

    def call(*operands: Tensor) -> Tensor:
        with switch(True):
            return _Switched.apply(subject.call(*operands))  # type: ignore[no-any-return]

    return dataclasses.replace(subject, call=call)


class _Switched(torch.autograd.Function):
    """Passes results on; its backward turns the switch on for what follows, until the engine is done."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        del ctx
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True)
        # Private, and the one way to hear of the end of a backward.
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        )
        return grads[0]


def check_switch(harness: Harness, recipe: Recipe, subject: Subject) -> None:
    """Run one recipe repeatedly with the switch on."""
    __tracebackhide__ = True
    # A backward that raises never comes to the callback that turns the switch off.
    with switch(None):
        repetition = walk_repeatedly(recipe, asking(subject), harness.device, clock=harness.clock)
    harness.record(ratio={}, collisions=repetition.agreement.collisions)
    if repetition.story:
        told = repetition.story + "\n  while     torch.use_deterministic_algorithms(True)"
        raise PropertyFailed(told, evidence=repetition.verdict.evidence)


@cells
def test_second_derivatives_are_refused(harness: Harness, cell: DtypeCell) -> None:
    """A second derivative raises, whatever operand it is of, and never is a number."""
    require(harness.subject, "refuses_second_derivatives")
    strategy = recipes(cell, limits=small(harness.limits), layouts=False)
    harness.for_all(strategy, lambda recipe: check_second(harness, recipe), share=SHARE)


def check_second(harness: Harness, recipe: Recipe) -> None:
    """Differentiate the gradient of one operand by another one."""
    inputs = plain(recipe.build(harness.device))
    shapes, starts = inputs.level_table()
    leaves = [getattr(inputs, name).detach().requires_grad_() for name in FIELDS]
    grad_output = inputs.grad_output.contiguous().detach().requires_grad_()
    with harness.clock("subject"):
        out = harness.subject.call(leaves[0], shapes, starts, *leaves[1:])
        first = torch.autograd.grad(out, leaves, grad_output, create_graph=True)
        number = recipe.seed % len(first)
        if not first[number].requires_grad:
            raise PropertyFailed(
                f"grad_{NAMES[FIELDS[number]]}: of a gradient with create_graph=True nothing can be differentiated, "
                f"and nothing is refused\n  on {recipe!r}",
                kind="accepted wrongly",
            )
        try:
            found = torch.autograd.grad(first[number].sum(), [*leaves, grad_output], allow_unused=True)
        except RuntimeError:
            harness.record_case(recipe)
            return
    told = "0" if all(one is None for one in found) else "a number"
    raise PropertyFailed(
        f"grad_{NAMES[FIELDS[number]]}: its derivative is {told}, where a refusal is declared\n  on {recipe!r}",
        kind="accepted wrongly",
    )
