"""DeformOps (`deformops` on PyPI, Python >= 3.12): its eager backend, and Triton with either accumulator."""

from __future__ import annotations

from typing import Any, cast

from deformops.registry import Backend, msda
from torch import Tensor


def _eager(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """PyTorch operators alone."""
    out: Tensor = msda(value, shapes, starts, locations, weights, backend=Backend.EAGER)
    return out


def _native(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Triton, grad_value accumulated in value's dtype: a choice that many kernels make for speed."""
    out: Tensor = msda(value, shapes, starts, locations, weights, backend=Backend.TRITON, fp32acc=False)
    return out


def _float32(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Triton, grad_value accumulated in float32."""
    out: Tensor = msda(value, shapes, starts, locations, weights, backend=Backend.TRITON, fp32acc=True)
    return out


eager, triton_native, triton_float32 = (cast(Any, one) for one in (_eager, _native, _float32))
eager.dtypes = ("float64", "float32")
for one in (triton_native, triton_float32):
    # Its kernels have no float64; locations may be of another dtype than value, weights may not.
    one.dtypes = ("float32", "float16", "bfloat16")
    one.devices = ("cuda",)
    one.engine = "kernels"
    one.corner_sum = "nested"
for one in (eager, triton_native, triton_float32):
    one.mixed_dtypes = False
    # It says nothing of locations that are not finite.
    one.nonfinite = "propagate"
# Skipped samples are multiplied by 0, which leaves NaN of products that overflow.
eager.nonfinite = "overflow"
triton_native.accumulate = "native"
