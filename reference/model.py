"""What a kernel declares about its arithmetic: the part of a subject that the bounds depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Accumulate = Literal["float32", "native"]
Interpolation = Literal["weights", "difference", "lerp"]
Coordinates = Literal["pixel", "grid"]
CoordinateDtype = Literal["float32", "storage"]
CornerSum = Literal["nested", "flat"]

# Unit roundoff (half the spacing of 1) and half the smallest positive subnormal, per storage format.
UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
HALF_SUBNORMAL = {torch.float64: 0.0, torch.float32: 2.0**-150, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}
# Smallest magnitude that rounds to infinity (ties go to even, and the largest finite value has an odd significand).
OVERFLOW = {
    torch.float64: 1.7976931348623157e308,
    torch.float32: 2.0**128 - 2.0**103,
    torch.float16: 65520.0,
    torch.bfloat16: 2.0**128 - 2.0**119,
}


class UnboundedError(ValueError):
    """Nothing can be said of an input: what is declared leaves errors that no bound here covers."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How a kernel computes, where the operator leaves a choice. The defaults are those of the shipped kernels.

    Attributes:
        accumulate: accumulator of grad_value; "float32" (float64 for float64 values) or "native", value's dtype.
        interpolation: form of the bilinear sum (numerics E.3, E.3a).
        coordinates: "pixel" computes loc * W - 1/2, "grid" goes through [-1, 1] as grid_sample does (E.1).
        coordinate_dtype: "float32" or "storage", the dtype of the locations.
        corner_sum: "nested" adds the four corners of a sample before the samples are added; "flat" says nothing of the
            order, so that every product may go through 4 L K additions.
        flush_to_zero: whether float32 arithmetic may flush subnormals. True is the safe declaration.
        flush_atomics: whether float32 atomics may. A property of the device, True where nobody has measured it.
    """

    accumulate: Accumulate = "float32"
    interpolation: Interpolation = "weights"
    coordinates: Coordinates = "pixel"
    coordinate_dtype: CoordinateDtype = "float32"
    corner_sum: CornerSum = "nested"
    flush_to_zero: bool = True
    flush_atomics: bool = True


def compute_dtype(value_dtype: torch.dtype) -> torch.dtype:
    """The dtype that kernels compute in: float64 for float64 values, float32 for all others."""
    return torch.float64 if value_dtype == torch.float64 else torch.float32
