"""The bound of grad_value: sums of contributions that collide, in any order and in any accumulator.

A part of `bounds`, whose machine model it shares. Nothing here is per sample: contributions are summed over all chunks
of a call before anything can be said about a pixel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bounds import NATIVE_UNDERFLOW, Rounding, Terms
from .float64 import Chunk
from .model import OVERFLOW, UNIT_ROUNDOFF

# Of a contribution, before it is added to others.
CONTRIBUTION_ROUNDINGS = 5


class GradValueSums:
    """Accumulates over chunks, per pixel row and channel, what the bound of grad_value needs.

    Attributes:
        sums: (rows, 4 D) float64: sum of t, of |t|, of |g a| d, of (1 + |g|)(1 + |a|), where t = g a w is a
            contribution and d bounds the error of its factor w.
        count: (rows,) int64, n: contributions that may be other than 0.
    """

    def __init__(self, rows: int, channels: int, rounding: Rounding, device: torch.device) -> None:
        self.rounding = rounding
        self.channels = channels
        self.sums = torch.zeros((rows, 4 * channels), dtype=torch.float64, device=device)
        self.count = torch.zeros(rows, dtype=torch.int64, device=device)

    def add(self, chunk: Chunk) -> None:
        """Add one chunk's contributions.

        The factor max(0, 1 - |x - column|) is 1-Lipschitz in x, so the error of a product of two is at most
        ex hat(y) + ey hat(x) + ex ey, anywhere in the window.
        """
        hat, touched, error = chunk.stencil.hat, chunk.stencil.touched, chunk.stencil.error
        ex, ey = error[..., 0, None, None], error[..., 1, None, None]
        drift = ex * hat[..., 1, :, None] + ey * hat[..., 0, None, :] + ex * ey
        if self.rounding.arithmetic.interpolation != "weights":
            # g - g lx and the like, in a forward by differences or in the derivative of a lerp.
            drift = drift + 2.0 * self.rounding.unit * (1.0 + 8.0 * self.rounding.unit)
        weight = chunk.weight[..., None, None]
        absolute = weight.abs()
        grad = chunk.grad[:, None, None, None, :]
        one_plus = (1.0 + absolute).expand_as(drift)
        factors = torch.stack([weight * chunk.blend, absolute * chunk.blend, absolute * drift, one_plus], dim=-1)
        grads = torch.stack([grad, grad.abs(), grad.abs(), 1.0 + grad.abs()], dim=-2)
        terms = torch.where(touched[..., None, None], factors.unsqueeze(-1) * grads, 0.0)
        index = chunk.pixel_row.reshape(-1)
        self.sums.index_add_(0, index, terms.reshape(index.shape[0], -1))
        # A contribution of exactly 0 is added without rounding, so it does not count.
        contributes = touched & (absolute != 0.0) & (chunk.blend + drift != 0.0)
        self.count.index_add_(0, index, contributes.reshape(-1).long())

    def split(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the four sums of `sums`, each (rows, D)."""
        value, magnitude, drift, tiny = self.sums.reshape(self.count.shape[0], 4, self.channels).unbind(1)
        return value, magnitude, drift, tiny

    def magnitude(self) -> Tensor:
        """Bound the sum of |contributions| as the kernel adds them, (rows, D).

        (T' (1 + gamma_5) + 2 eta (1 + |g|)(1 + |a|)), T' = sum of |t| + |g a| d; with native 16-bit accumulation each
        contribution is rounded once more, to u_h and half a subnormal.
        """
        _, magnitude, drift, tiny = self.split()
        rounding = self.rounding
        computed = (magnitude + drift) * (
            1.0 + rounding.gamma(CONTRIBUTION_ROUNDINGS)
        ) + 2.0 * rounding.underflow * tiny
        if rounding.native:
            half = UNIT_ROUNDOFF[rounding.value_dtype]
            lost = self.count.unsqueeze(-1).double() * NATIVE_UNDERFLOW[rounding.value_dtype]
            computed = computed * (1.0 + half) + lost
        return computed

    def terms(self) -> Terms:
        """Bound grad_value, (rows, D): [gamma_5 + (n-1)u(1+gamma_5)] T' + sum |g a| d, for any order of addition.

        T' = sum of |t| + |g a| d. With native 16-bit accumulation the contribution is rounded to u_h too, and every
        addition is: n u_h (1 + u_h) takes the place of (n-1) u. Float32 atomics may flush subnormals. No partial sum
        exceeds T' (1 + gamma_5)(1 + n u_h (1 + u_h)): a finite result is required where that does not overflow.
        """
        value, magnitude, drift, tiny = self.split()
        rounding = self.rounding
        count = self.count.unsqueeze(-1).double()
        reach = magnitude + drift
        gamma = rounding.gamma(CONTRIBUTION_ROUNDINGS)
        flushed = 2.0 * rounding.underflow * tiny
        if rounding.native:
            half = UNIT_ROUNDOFF[rounding.value_dtype]
            each = count * half * (1.0 + half)
            flushed = flushed + count * NATIVE_UNDERFLOW[rounding.value_dtype]
            largest = OVERFLOW[rounding.value_dtype]
        else:
            each = (count - 1.0).clamp_min(0.0) * rounding.unit
            flushed = flushed + 2.0 * count * rounding.atomic_underflow
            largest = rounding.largest
        partial = (reach * (1.0 + gamma) + flushed) * (1.0 + each)
        return Terms(
            value=value,
            arithmetic=(gamma + each * (1.0 + gamma)) * reach,
            coordinate=drift,
            underflow=flushed,
            reached=(count > 0).expand_as(value),
            hazard=~(partial < largest) | ~(tiny < rounding.largest),
        )
