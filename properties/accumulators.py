"""The accumulator of grad_value as an axis beside the dtype cells: which pairs there are, and what they are called."""

from __future__ import annotations

import torch
from hypothesis import assume

from reference.expect import expect
from reference.model import Accumulate

from .cells import CELLS, DtypeCell
from .recipe import Recipe
from .subject import Subject

HALVES = (torch.float16, torch.bfloat16)
# A native accumulator is another one only for 16-bit values.
HALF_CELLS = tuple(cell for cell in CELLS if cell.value in HALVES)
PAIRS: tuple[tuple[DtypeCell, Accumulate], ...] = (
    *((cell, "float32") for cell in CELLS),
    *((cell, "native") for cell in HALF_CELLS),
)


def name_of(cell: DtypeCell, accumulate: Accumulate) -> str:
    """Name a variant like the dtype cell, and the accumulator where it is not the default."""
    return cell.name if accumulate == "float32" else f"{cell.name}-{accumulate}"


def label(cell: DtypeCell, subject: Subject) -> str:
    """Name the dtype of value, its accumulator and a promise, as the summary does."""
    value = str(cell.value).removeprefix("torch.")
    wide = "float64" if cell.value == torch.float64 else "float32"
    accumulator = "native" if subject.arithmetic.accumulate == "native" else wide
    promise = ", run_to_run" if subject.determinism == "run_to_run" else ""
    return f"{value} {accumulator} accumulation{promise}"


def assume_supported(recipe: Recipe, subject: Subject, device: torch.device) -> None:
    """Discard what the interpreter cannot do: its float16 atomics raise OverflowError where the sum is an infinity."""
    if device.type == "cuda" or not subject.triton_atomics or subject.arithmetic.accumulate != "native":
        return
    bounded = expect(recipe.build(device), subject.arithmetic).grad_value
    assert bounded is not None
    assume(not bool(bounded.hazard.any()))
