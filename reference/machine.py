"""Arithmetic with exactly one rounding an operation: the machine that `reference.emulate` runs a kernel on.

numpy evaluates `a * b` and `a + b` on arrays as separate operations, each rounded once to nearest even, so only the
fused multiply-add, bfloat16 and the flushing of subnormals are made by hand here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Order = Literal["random", "sequential", "tree", "reversed"]

# Veltkamp's constant for float64: splits a 53-bit significand into two halves whose products are exact.
SPLITTER = 2.0**27 + 1.0


class Machine:
    """One format's arithmetic: one rounding an operation, fused or not, flushing or not.

    Attributes:
        dtype: np.float32 or np.float64.
        contract: whether `mul_add` rounds once instead of twice.
        flush: whether subnormal results become zero (float32 only). Inputs are flushed where they are loaded.
    """

    def __init__(self, dtype: Any, *, contract: bool, flush: bool) -> None:
        self.dtype = dtype
        self.contract = contract
        self.flush = flush and dtype == np.float32

    def flushed(self, x: Array) -> Array:
        """Return x with subnormals replaced by zero, if this machine flushes."""
        if not self.flush:
            return x
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, self.dtype(0), x)

    def add(self, a: Array, b: Array) -> Array:
        """Return fl(a + b)."""
        return self.flushed(np.add(a, b, dtype=self.dtype))

    def sub(self, a: Array, b: Array) -> Array:
        """Return fl(a - b)."""
        return self.flushed(np.subtract(a, b, dtype=self.dtype))

    def mul(self, a: Array, b: Array) -> Array:
        """Return fl(a * b)."""
        return self.flushed(np.multiply(a, b, dtype=self.dtype))

    def mul_add(self, a: Array, b: Array, c: Array) -> Array:
        """Return fl(a * b + c) when contracting, else fl(fl(a * b) + c)."""
        if not self.contract:
            return self.add(self.mul(a, b), c)
        fused = fma32 if self.dtype == np.float32 else fma64
        return self.flushed(fused(a, b, c))

    def negative_mul_add(self, a: Array, b: Array, c: Array) -> Array:
        """Return c - a * b, rounded like `mul_add` (negation is exact)."""
        return self.mul_add(np.negative(a), b, c)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Return the correctly rounded float32 a * b + c of float32 arrays.

    The product of two float32 is exact in float64. The sum is rounded to odd there (an inexact result gets an odd last
    bit), which makes the second rounding, to float32, the only one that counts, subnormal results included.
    """
    product = np.multiply(a, b, dtype=np.float64)
    return add_to_odd(product, np.asarray(c, dtype=np.float64)).astype(np.float32)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Return the correctly rounded float64 a * b + c, by Boldo and Melquiond's algorithm.

    Exact product and exact sums as unevaluated pairs, and one sum rounded to odd. Where a step overflows, two
    roundings are made instead; where the product's low half underflows (below 2^-968), the last bit may be off.
    """
    a, b, c = (np.asarray(x, dtype=np.float64) for x in (a, b, c))
    high = a * b
    low = _product_error(a, b, high)
    inner = c + low
    inner_low = _sum_error(c, low, inner)
    outer = high + inner
    outer_low = _sum_error(high, inner, outer)
    fused = outer + add_to_odd(inner_low, outer_low)
    return np.where(np.isfinite(fused), fused, high + c)


def add_to_odd(a: Array, b: Array) -> Array:
    """Return a + b in float64, rounded to odd: an inexact sum becomes its neighbour with an odd significand."""
    total = np.asarray(a + b)
    error = _sum_error(a, b, total)
    even = (total.view(np.int64) & 1) == 0
    # The sum was rounded to nearest; if that is even and inexact, the odd neighbour lies on the error's side.
    adjust = np.isfinite(error) & (error != 0) & even
    return np.where(adjust, np.nextafter(total, np.copysign(np.inf, error)), total)


def _sum_error(a: Array, b: Array, total: Array) -> Array:
    """Knuth's error-free sum: a + b - total exactly, where total = fl(a + b)."""
    part = total - a
    return np.asarray((a - (total - part)) + (b - part))


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """Dekker's error-free product: a * b - product exactly, where product = fl(a * b)."""
    a_high, b_high = ((SPLITTER * x) - ((SPLITTER * x) - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return np.asarray(((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low)


def round_to_storage(x: Array, dtype: torch.dtype) -> Array:
    """Round float32 or float64 numbers once to the values of a storage dtype.

    To nearest, ties to even, gradual underflow, overflow to infinity.

    Returns:
        The rounded numbers, as float64 for float64 storage and as float32 (exactly) for the others.
    """
    x = np.asarray(x)
    if dtype == torch.float64:
        return x.astype(np.float64)
    if dtype == torch.float16:
        return x.astype(np.float16).astype(np.float32)
    if dtype == torch.float32:
        return x.astype(np.float32)
    single = _odd_float32(x) if x.dtype == np.float64 else np.ascontiguousarray(x, dtype=np.float32)
    bits = single.view(np.uint32)
    # Adding half an ulp less one, plus the last kept bit, carries exactly when the value rounds up.
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(single), np.float32(np.nan), kept.view(np.float32))


def _odd_float32(x: Array) -> Array:
    """Round float64 to float32, to odd, so that a further rounding to bfloat16 is the only one that counts."""
    single = x.astype(np.float32)
    even = (single.view(np.uint32) & np.uint32(1)) == 0
    adjust = (single != x) & even & np.isfinite(x)
    return np.where(adjust, np.nextafter(single, np.where(x > single, np.inf, -np.inf).astype(np.float32)), single)


class Sums:
    """Adds terms over the first axis in the declared order, with or without fusing a product into the addition."""

    def __init__(self, machine: Machine, order: Order, rng: np.random.Generator) -> None:
        self.machine = machine
        self.order = order
        self.rng = rng
        self.tree = order == "tree" or (order == "random" and bool(rng.integers(2)))

    def arranged(self, count: int) -> NDArray[np.int64]:
        """Return the positions 0..count-1 in the order in which they are added."""
        if self.order == "random":
            return self.rng.permutation(count)
        positions = np.arange(count)
        return positions[::-1] if self.order == "reversed" else positions

    def total(self, terms: Array) -> Array:
        """Sum `terms` over axis 0; zero terms give 0."""
        return self._reduce(len(terms), terms.shape[1:], lambda i: terms[i], None)

    def dot(self, a: Array, b: Array) -> Array:
        """Sum a * b over axis 0 of both, which broadcast."""
        mul_add = self.machine.mul_add
        shape = np.broadcast_shapes(a.shape[1:], b.shape[1:])
        return self._reduce(
            len(b), shape, lambda i: self.machine.mul(a[i], b[i]), lambda i, total: mul_add(a[i], b[i], total)
        )

    def _reduce(
        self,
        count: int,
        shape: tuple[int, ...],
        term: Callable[[int], Array],
        fused: Callable[[int, Array], Array] | None,
    ) -> Array:
        positions = self.arranged(count).tolist()
        if not positions:
            return np.zeros(shape, dtype=self.machine.dtype)
        if self.tree:
            level = [term(i) for i in positions]
            while len(level) > 1:
                paired = [self.machine.add(x, y) for x, y in zip(level[::2], level[1::2], strict=False)]
                level = paired + level[2 * len(paired) :]
            return level[0]
        total = term(positions[0])
        for i in positions[1:]:
            total = self.machine.add(total, term(i)) if fused is None else fused(i, total)
        return total
