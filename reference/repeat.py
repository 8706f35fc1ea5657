"""How far two runs of one kernel on the same operands may be apart.

A compiled kernel computes the same contributions to an element of grad_value every time, bit for bit; atomics only
add them in another order. One sum of n numbers errs by at most (n - 1) u sum|t| whatever the order or the tree, so two
of them differ by at most twice that. Two numbers commute: where n <= 2 the bits are the same, except for subnormal ones
where atomics flush them (an H200 returned 0 and -0 in turn). Everything that is not accumulated by atomics has the same
bits always.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .bounds import Rounding
from .expect import Bounded, Expectation
from .model import HALF_SUBNORMAL, OVERFLOW, UNIT_ROUNDOFF, Arithmetic

# Sums of up to this many contributions come out the same in any order.
COMMUTES = 2
# Half the spacing of a float32 this large is above every subnormal: adding one changes nothing, flushed or not.
SWALLOWS_SUBNORMALS = 2.0**-98


@dataclass(frozen=True, kw_only=True, eq=False)
class RunToRun:
    """Admissible differences between runs, per element of grad_value.

    Attributes:
        bounded: what a single run may return.
        accumulation: (B, S, M, D) float64, largest difference of two sums before any cast; 0 where the bits must agree.
        same_bits: (B, S, M, 1) or (B, S, M, D) bool, where they must.
        cast: whether sums are rounded to a 16-bit dtype once they are complete.
    """

    bounded: Bounded
    accumulation: Tensor
    same_bits: Tensor
    cast: bool

    def bound(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the largest admissible `high - low` of two results, float64.

        A cast moves each of two sums by u_o |result| + half a subnormal.
        """
        if not self.cast:
            return self.accumulation
        unit, tiny = UNIT_ROUNDOFF[self.bounded.dtype], HALF_SUBNORMAL[self.bounded.dtype]
        moved = unit * (low.double().abs() + high.double().abs()) + 2.0 * tiny
        return torch.where(self.same_bits, 0.0, self.accumulation + moved)

    def ratio(self, low: Tensor, high: Tensor, differs: Tensor) -> Tensor:
        """Spread over bound per element, at most 1 where the runs agree as well as they must.

        Where an intermediate sum may overflow, so that infinities depend on the order, anything goes unless the bits
        must be the same; an infinity is admissible, too, where the exact result may round to it.

        Args:
            low: smallest result of any run, of value's shape; NaN where any run returned one.
            high: largest result of any run.
            differs: bool, where not all runs returned the same bits (two NaN count as the same).
        """
        low, high = low.double(), high.double()
        ratio = (high - low) / self.bound(low, high)
        # 0 and -0, or no bound at all: operands that are not finite.
        ratio = torch.where((low == high) | ~self.bounded.bound.isfinite(), 0.0, ratio)
        value, before = self.bounded.value, self.bounded.before_storage
        edge = OVERFLOW[self.bounded.dtype]
        overflows = ((high == torch.inf) & (value + before >= edge)) | ((low == -torch.inf) & (before - value >= edge))
        excused = self.bounded.hazard | (overflows & ~low.isnan())
        ratio = torch.where(low.isfinite() & high.isfinite(), ratio, torch.where(excused, 0.0, torch.inf))
        return torch.where(differs, torch.where(self.same_bits, torch.inf, ratio), 0.0)


def run_to_run(
    expectation: Expectation, arithmetic: Arithmetic, value_dtype: torch.dtype, *, deterministic: bool = False
) -> RunToRun:
    """Bound the difference of two runs: 2 (n - 1) u sum|t| from n = 3 on, plus what atomics flush from n = 2 on.

    u is that of the accumulator. Contributions are flushed alike in every run, so only the sums count: 2^-126 for each
    of at most n, grown by the roundings that follow, in each of two runs. Without flushing an addition that underflows
    is exact, in 16-bit formats too.

    Args:
        expectation: with gradients.
        arithmetic: the kernel's declaration.
        value_dtype: dtype of value.
        deterministic: whether the kernel promises the same bits for every element.
    """
    bounded, count, magnitude = expectation.grad_value, expectation.contributions, expectation.magnitude
    if bounded is None or count is None or magnitude is None:
        raise ValueError("expectation: it has no gradients; expected one from expect(..., gradients=True)")
    rounding = Rounding(value_dtype=value_dtype, arithmetic=arithmetic)
    n = count.unsqueeze(-1).double()
    unit = rounding.accumulator_unit
    flushes = arithmetic.flush_atomics and not rounding.native and rounding.compute == torch.float32
    flushed = 2.0 * n * rounding.atomic_underflow * (1.0 + n * unit) if flushes else torch.zeros_like(n)
    same_bits = (n <= COMMUTES) | deterministic
    if flushes:
        # 0 + t is not t where t is flushed: the order of two shows, unless the larger one swallows what is flushed.
        visible = bounded.value.abs() < SWALLOWS_SUBNORMALS
        same_bits = same_bits & (deterministic | (n <= 1.0) | ~visible)
    accumulation = torch.where(n <= COMMUTES, 0.0, 2.0 * (n - 1.0) * unit * magnitude) + flushed
    return RunToRun(
        bounded=bounded,
        accumulation=torch.where(same_bits, 0.0, accumulation),
        same_bits=same_bits,
        cast=value_dtype != rounding.compute and not rounding.native,
    )


def lossy_from(value_dtype: torch.dtype) -> int:
    """Return the number n of contributions from which native accumulation says nothing: n u_h reaches 1."""
    return round(1.0 / UNIT_ROUNDOFF[value_dtype])
