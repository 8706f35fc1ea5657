"""Program orders in the interpreter: every program runs once, in an order that a seed decides, and only while asked."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from properties import interpreter
from properties.shuffle import can_shuffle, permutation, shuffled

PROGRAMS = (3, 2, 2)
COUNT = 12


@pytest.fixture(autouse=True)
def _interpreted(msda_device: str) -> None:
    if msda_device == "cuda":
        pytest.skip("only Triton's interpreter runs programs in an order that can be chosen")


@triton.jit
def note_turn(turn_ptr, order_ptr):
    """Write down when each program has its turn; programs of an interpreted launch run one at a time."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    turn = tl.atomic_add(turn_ptr, 1)
    tl.store(order_ptr + (x * tl.num_programs(1) + y) * tl.num_programs(2) + z, turn)


def order_of_launch():
    turn = torch.zeros(1, dtype=torch.int32)
    order = torch.full((COUNT,), -1, dtype=torch.int32)
    note_turn[PROGRAMS](turn, order)
    return order.tolist()


def test_orders_are_permutations_that_a_seed_decides():
    assert sorted(permutation(3, 50)) == list(range(50))
    assert permutation(3, 50) == permutation(3, 50)
    assert permutation(3, 50) != permutation(5, 50)
    assert permutation(4, 50) == permutation(5, 50)[::-1]
    # Pinned: a failing case must fail the same way on other machines and versions.
    assert permutation(1, 8) == PINNED
    assert permutation(0, 0) == []


PINNED = [1, 4, 2, 7, 5, 6, 0, 3]


def test_every_program_runs_once():
    assert order_of_launch() == list(range(COUNT))
    with shuffled(1) as shuffle:
        first, second = order_of_launch(), order_of_launch()
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != list(range(COUNT))
    assert first != second
    assert (shuffle.launches, shuffle.programs) == (2, 2 * COUNT)
    assert order_of_launch() == list(range(COUNT))
    with shuffled(1):
        assert order_of_launch() == first


def test_the_order_returns_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), shuffled(1):
        raise RuntimeError("inside")
    assert order_of_launch() == list(range(COUNT))


def test_contexts_nest():
    with shuffled(1):
        with shuffled(2):
            assert sorted(order_of_launch()) == list(range(COUNT))
        assert sorted(order_of_launch()) == list(range(COUNT))
    assert order_of_launch() == list(range(COUNT))


def test_works_beside_the_faster_launch():
    assert interpreter.patch_once_per_launch()
    assert can_shuffle()
    with shuffled(1):
        assert order_of_launch() != list(range(COUNT))
