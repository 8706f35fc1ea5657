"""What only the device itself can say: whether its float32 atomics flush subnormals.

NVIDIA's float32 reductions on global memory were seen to turn an addition of 1e-40 into nothing, and no document says
for which devices that holds. The bounds allow for it until somebody has looked; this looks, once per process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
import triton
import triton.language as tl

from .subject import Subject

FACT = "float32 atomics flush subnormals"
# Of one vector reduction instruction and of a scalar one.
BLOCKS = (128, 1)
# (in memory, added): a subnormal operand, a subnormal in memory, a subnormal sum of two normal numbers.
TRIALS = ((0.0, 1e-40), (1e-40, 0.0), (1.5 * 2.0**-126, -(2.0**-126)))


@triton.jit
def add_atomically(totals_ptr, amounts_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Add amounts to totals as the shipped kernels do: relaxed, the old value unused."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(totals_ptr + offset, tl.load(amounts_ptr + offset), sem="relaxed")


@lru_cache(maxsize=16)
def atomics_flush(device: torch.device) -> bool:
    """Measure whether any float32 atomic addition on this device loses a subnormal."""
    before, amount = torch.tensor(TRIALS, dtype=torch.float32).T
    lost = False
    for block in BLOCKS:
        totals = before.repeat_interleave(block).to(device)
        amounts = amount.repeat_interleave(block).to(device)
        # Exact in float64, and of few enough digits to be a float32 again.
        expected = (before.double() + amount.double()).to(torch.float32).repeat_interleave(block)
        add_atomically[(len(TRIALS),)](totals, amounts, BLOCK=block)
        # Bits: a comparison of numbers may flush as well.
        lost |= not torch.equal(totals.cpu().view(torch.int32), expected.view(torch.int32))
    return lost


def informed(subject: Subject, device: torch.device) -> Subject:
    """Return the subject with what the probe found, where that concerns it.

    A subject of unknown make may accumulate by other instructions; it keeps its declaration.
    """
    if not subject.triton_atomics:
        return subject
    return replace(subject, arithmetic=replace(subject.arithmetic, flush_atomics=atomics_flush(device)))


def facts(device: torch.device) -> dict[str, str]:
    """What was measured, for the summary."""
    return {FACT: "yes" if atomics_flush(device) else "no"}
