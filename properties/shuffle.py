"""Triton's interpreter runs the programs of a launch one after the other, in ascending order. Here: in any order.

On a GPU programs run in whatever order the hardware likes. A kernel that leans on the order (a program that prepares
what a later one uses, two programs that store to one place, a store where an atomic add belongs) is right in the
interpreter all the same, until the order changes. Each program still runs to its end before the next one starts, so a
read and a write that belong together are never torn apart: that takes a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from . import counter

# Where Triton keeps the state of an interpreted launch; these two are called by its loop, in all versions so far.
HOOKS = ("set_grid_dim", "set_grid_idx")


@dataclass(kw_only=True)
class Shuffle:
    """What happened inside `shuffled`.

    Attributes:
        launches: launches that were permuted.
        programs: programs that ran.
    """

    launches: int = 0
    programs: int = 0


def can_shuffle() -> bool:
    """Whether this Triton's interpreter has the parts that `shuffled` takes hold of."""
    builder = _builder()
    return builder is not None and all(callable(getattr(builder, hook, None)) for hook in HOOKS)


@contextmanager
def shuffled(seed: int) -> Iterator[Shuffle]:
    """Run the programs of every interpreted launch in an order that follows from a seed.

    The loop over the grid stays Triton's own; only the indices that it announces are exchanged. Compiled kernels are
    not affected.

    Args:
        seed: of the orders; each launch has another one.

    Raises:
        RuntimeError: the interpreter lacks the parts.
    """
    if not can_shuffle():
        raise RuntimeError(f"Triton's interpreter has no {' and '.join(HOOKS)}; expected Triton 3.4 or a later 3.x")
    builder = _builder()
    # Usually methods of the class; inside another `shuffled` they are that one's functions.
    outer = {hook: vars(builder)[hook] for hook in HOOKS if hook in vars(builder)}
    set_dim: Callable[..., None] = builder.set_grid_dim
    set_index: Callable[..., None] = builder.set_grid_idx
    shuffle = Shuffle()
    grid = (1, 1, 1)
    order: list[int] = [0]

    def announce_grid(x: int, y: int, z: int) -> None:
        nonlocal grid, order
        grid = (int(x), int(y), int(z))
        order = permutation(seed + shuffle.launches, grid[0] * grid[1] * grid[2])
        shuffle.launches += 1
        set_dim(x, y, z)

    def announce_program(x: int, y: int, z: int) -> None:
        number = order[(x * grid[1] + y) * grid[2] + z]
        shuffle.programs += 1
        rest, z = divmod(number, grid[2])
        set_index(*divmod(rest, grid[1]), z)

    builder.set_grid_dim, builder.set_grid_idx = announce_grid, announce_program
    try:
        yield shuffle
    finally:
        for hook in HOOKS:
            delattr(builder, hook)
        for hook, function in outer.items():
            setattr(builder, hook, function)


def permutation(seed: int, length: int) -> list[int]:
    """Return 0..length-1 in an order that is the same for a seed on every machine and version.

    An even seed reverses the order of an odd one, so that two runs with neighbouring seeds have every pair of programs
    in both orders.
    """
    words = counter.bits(seed // 2, 0, length, "cpu")
    order: list[int] = torch.argsort(words, stable=True).tolist()
    return order if seed % 2 else order[::-1]


def _builder() -> Any:
    # Imported here: importing Triton decides for this process whether kernels are interpreted.
    from triton.runtime import interpreter  # noqa: PLC0415

    return getattr(interpreter, "interpreter_builder", None)
