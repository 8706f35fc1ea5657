"""Calls whose tensors reach past what 32 bits count: a small case is placed in a large one, and must come out of it.

Nothing large is compared. The large call has the small case's samples among others that are skipped, or the small
case's pixels far apart; either way its results are those of the small case, and the rest is exactly zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume
from torch import Tensor

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.recipe import Recipe
from properties.strategies import recipes
from properties.subject import Operator
from properties.verdict import PropertyFailed

# Two bytes an element: with wider ones the tensors of one case would take more than a worker's share.
HALVES = [cell for cell in CELLS if cell.name in {"float16", "bfloat16"}]
PAST_32_BITS = 2**31
ROOM_BYTES = 13 * 2**30
# Each takes tenths of a second, and what can go wrong does so in nearly every one.
EXAMPLES = 3
# Outside of every map.
SKIPPED = -2.0
LEAST_CHANNELS = 64
# Counting makes eight bytes of every element; that many elements at a time cost half a GiB.
COUNTED_AT_ONCE = 2**26


@pytest.mark.partial
@pytest.mark.parametrize("cell", HALVES, ids=lambda cell: cell.name)
def test_pixels_far_apart(harness: Harness, cell: DtypeCell) -> None:
    """A value whose pixels are so far apart that their offsets take more than 32 bits gives the same results."""
    if harness.subject.layouts == "contiguous":
        pytest.skip(f"{harness.subject.name} declares contiguous operands alone")
    check_large(harness, cell, far_apart)


@pytest.mark.partial
@pytest.mark.parametrize("cell", HALVES, ids=lambda cell: cell.name)
def test_many_queries(harness: Harness, cell: DtypeCell) -> None:
    """Among so many queries that elements of the output take more than 32 bits, some give the results that they do."""
    check_large(harness, cell, among_many)


def check_large(harness: Harness, cell: DtypeCell, embedded: Callable[[Operator, Recipe], Operator]) -> None:
    """Check small recipes in the large calls that `embedded` makes of them."""
    require_room(harness)

    def check(recipe: Recipe) -> None:
        # The minimiser proposes narrow ones too, which need many times the memory.
        assume(broad(recipe) == recipe)
        subject = dataclasses.replace(harness.subject, call=embedded(harness.subject.call, recipe))
        try:
            harness.check(recipe, subject=subject)
        except torch.OutOfMemoryError as error:
            if harness.subject.engine == "kernels":
                raise
            pytest.skip(f"{harness.subject.name} needs more memory for it than there is: {str(error).splitlines()[0]}")
        finally:
            torch.cuda.empty_cache()

    strategy = recipes(cell, limits=harness.limits.tiny(), hot=False).map(broad)
    harness.for_all(strategy, check, examples=EXAMPLES)


def broad(recipe: Recipe) -> Recipe:
    """Few samples with many channels: the output then is large before anything else is."""
    return dataclasses.replace(
        recipe,
        channels=max(recipe.channels, LEAST_CHANNELS),
        points=min(recipe.points, 2),
        levels=(recipe.levels * 2)[:2],
    )


def require_room(harness: Harness) -> None:
    """Skip, with the reason, where such a call cannot be made."""
    if harness.device.type != "cuda":
        pytest.skip("tensors of 2^31 elements are for a GPU")
    # What earlier tests left in the allocator is free too.
    torch.cuda.empty_cache()
    try:
        torch.empty(ROOM_BYTES, dtype=torch.uint8, device=harness.device)
    except torch.OutOfMemoryError:
        pytest.skip(f"it needs {ROOM_BYTES / 2**30:.0f} GiB on the GPU, and this process may not take as much")


class _Spread(torch.autograd.Function):
    """The same elements in other places of memory."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        batch, pixels, heads, channels = value.shape
        # The entries of the batch lie in the gaps. A multiple of 64 elements, so that 16-byte accesses stay possible.
        row = heads * channels
        gap = (PAST_32_BITS // (pixels - 1) // 64 + 1) * 64
        storage = value.new_empty((pixels - 1) * gap + batch * row)
        return storage.as_strided(value.shape, (row, gap, channels, 1)).copy_(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        return grads[0]


def far_apart(call: Operator, _recipe: Recipe) -> Operator:
    """Return the operator on a value whose last pixel lies 2^31 elements behind its first."""

    def operator(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return call(_Spread.apply(value), shapes, starts, locations, weights)

    return operator


def among_many(call: Operator, recipe: Recipe) -> Operator:
    """Return the operator on its queries and as many skipped ones as make the output larger than 2^31 elements."""
    row = recipe.batch * recipe.heads * recipe.channels
    queries = PAST_32_BITS // row + recipe.queries + 1
    near = (recipe.queries + 1) // 2
    first, last = torch.arange(near), torch.arange(queries - recipe.queries + near, queries)
    places = torch.cat([first, last])

    def operator(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        rows = places.to(value.device)

        def among(operand: Tensor, rest: float) -> Tensor:
            many = operand.new_full((operand.shape[0], queries, *operand.shape[2:]), rest).index_copy(1, rows, operand)
            if many.requires_grad:
                many.register_hook(lambda grad: require_zeros(grad, rows, "the gradients of locations and weights"))
            return many

        out = call(value, shapes, starts, among(locations, SKIPPED), among(weights, 1.0))
        require_zeros(out.detach(), rows, "out")
        return out.index_select(1, rows)

    return operator


def require_zeros(result: Tensor, rows: Tensor, name: str) -> None:
    """Raise unless the skipped queries of a result are exactly zero."""
    wrong = count_nonzero(result) - count_nonzero(result.index_select(1, rows))
    if wrong:
        raise PropertyFailed(f"{name}: {wrong} elements of skipped queries are not zero")


def count_nonzero(result: Tensor) -> int:
    """Count the elements that are not zero, with little memory beside the result itself."""
    parts = result.reshape(-1).split(COUNTED_AT_ONCE)
    return int(torch.stack([part.count_nonzero() for part in parts]).sum())
