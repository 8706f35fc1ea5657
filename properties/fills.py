"""What the value, grad_output and weights tensors hold: one function per kind, from random words to stored numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from properties import counter

_MANTISSA_AND_SIGN = (1 << 52) - 1 - (1 << 63)
_EXPONENT_BIAS = 1023
_EXPONENT_BITS = 11

# Significand bits that are stored, and log2 of the smallest subnormal.
_FRACTION_BITS = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
_SUBNORMAL_EXPONENT = {torch.float64: -1074, torch.float32: -149, torch.float16: -24, torch.bfloat16: -133}
_WIDE_EXPONENT = 20
_MAX_EXPONENT = {torch.float64: 1023, torch.float32: 127, torch.float16: 15, torch.bfloat16: 127}

_HUGE_OCTAVES = 8
_REFERENCE_MARGIN = 20

_CONSTANTS = (1.0, -1.0, 0.5, 3.0, 1.0 / 3.0, -0.1)
_DENSITY_MASK = 7  # one element in eight of a sparse tensor is not zero


def store(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 to a storage dtype.

    The detour over float32 is what torch does inside for 16-bit dtypes; in the open it cannot differ between devices.
    """
    if dtype in (torch.float16, torch.bfloat16):
        exact = exact.to(torch.float32)
    return exact.to(dtype)


def _floats(word: Tensor, low: int, high: int) -> Tensor:
    """Float64 of either sign, exponents uniform in [low, high], all 52 bits of the fraction random."""
    exponent = (word >> 52).bitwise_and_((1 << _EXPONENT_BITS) - 1).mul_(high - low + 1) >> _EXPONENT_BITS
    exponent.add_(low + _EXPONENT_BIAS).bitwise_left_shift_(52)
    return (word & _MANTISSA_AND_SIGN).bitwise_or_(exponent).view(torch.float64)


def _normal(word: Tensor, _dtype: torch.dtype, _seed: int) -> Tensor:
    return counter.normal_like(word)


def _wide(word: Tensor, dtype: torch.dtype, _seed: int) -> Tensor:
    # One below the top exponent: a fraction of all ones would round up into infinity there.
    return _floats(word, -_WIDE_EXPONENT, min(_WIDE_EXPONENT, _MAX_EXPONENT[dtype] - 1))


def _sparse(word: Tensor, _dtype: torch.dtype, _seed: int) -> Tensor:
    return counter.normal_like(word).mul_((word & _DENSITY_MASK) == 0)


def _integers(word: Tensor, largest: int) -> Tensor:
    """Float64 integers, uniform from -largest to largest, which is below 2^30."""
    return counter.below(word, 2 * largest + 1).sub_(largest).to(torch.float64)


def _constant(word: Tensor, _dtype: torch.dtype, seed: int) -> Tensor:
    constant = _CONSTANTS[seed % len(_CONSTANTS)]
    return torch.full(word.shape, constant, dtype=torch.float64, device=word.device)


def _huge(word: Tensor, dtype: torch.dtype, _seed: int) -> Tensor:
    # Over a few octaves: where every number is within a factor 2 of overflow, hardly a sum must be finite. The float64
    # reference needs a margin of its own for the sums behind its bounds.
    top = _MAX_EXPONENT[dtype] - (_REFERENCE_MARGIN if dtype == torch.float64 else 0)
    largest = torch.finfo(dtype).max
    return _floats(word, top - _HUGE_OCTAVES, top).clamp_(-largest, largest)


def _subnormal(word: Tensor, dtype: torch.dtype, _seed: int) -> Tensor:
    # Odd multiples of the smallest subnormal: never zero, and always using the last bit there is.
    multiple = (word & ((1 << _FRACTION_BITS[dtype]) - 1)).bitwise_or_(1).mul_(counter.signs(word))
    return multiple.to(torch.float64).mul_(math.ldexp(1.0, _SUBNORMAL_EXPONENT[dtype]))


_FILLS: dict[str, Callable[[Tensor, torch.dtype, int], Tensor]] = {
    "normal": _normal,
    "wide": _wide,
    "sparse": _sparse,
    "constant": _constant,
    "huge": _huge,
    "subnormal": _subnormal,
}


def fill(pattern: str, word: Tensor, dtype: torch.dtype, seed: int, *, bits: int = 0) -> Tensor:
    """Fill a value or grad_output tensor.

    Args:
        pattern: one of recipe.VALUE_PATTERNS, or "integer": from -2^bits to 2^bits.
        word: int64 random words, one per element, any shape.
        dtype: of the result; its range decides what is wide, huge and subnormal.
        seed: chooses the number of a "constant" tensor.
        bits: of "integer".

    Returns:
        Tensor of word's shape and `dtype`; always finite.
    """
    if pattern == "integer":
        return store(_integers(word, 1 << bits), dtype)
    return store(_FILLS[pattern](word, dtype, seed), dtype)


def _softmax_like(word: Tensor, points: int) -> Tensor:
    """Positive weights whose sum over (L, K) is 1 up to rounding, with ratios of up to 2^27.

    The sum is one of integers, so exact in any order; one division then rounds each weight once.
    """
    parts = (word & ((1 << 20) - 1)).add_(1).bitwise_left_shift_((word >> 20).bitwise_and_(7))
    # Weights that are expanded along K count once per point.
    repeats = points // max(1, word.shape[-1])
    total = parts.sum(dim=(-2, -1), keepdim=True).mul_(max(1, repeats))
    return parts.to(torch.float64).div_(total.to(torch.float64))


def fill_weights(
    pattern: str, word: Tensor, dtype: torch.dtype, points: int, *, step: int = 0, bits: int = 0
) -> Tensor:
    """Fill the attention weights.

    Args:
        pattern: one of recipe.WEIGHT_PATTERNS. "raw" is signed and not normalised, "negative" has no positive weight,
            "zero" is softmax-like with three in four weights, and the first one for certain, exactly 0. Or "dyadic":
            multiples of 2^-step from -2^bits to 2^bits.
        word: int64 random words (B, Q, M, L, K), with 1 for a dimension that will be expanded.
        dtype: of the result.
        points: K, also if the last dimension of `word` is 1 because the weights will be expanded along it.
        step: of "dyadic".
        bits: of "dyadic".

    Returns:
        Tensor of word's shape and `dtype`.
    """
    if pattern == "dyadic":
        exact = _integers(word, 1 << (step + bits)).mul_(2.0**-step)
    elif pattern == "softmax":
        exact = _softmax_like(word, points)
    elif pattern == "raw":
        exact = counter.normal_like(word).mul_(2.0)
    elif pattern == "negative":
        exact = counter.uniform(word).sub_(1.0)
    else:
        exact = _softmax_like(word, points).mul_((word >> 40).bitwise_and_(3) == 0)
        exact.view(-1)[:1].zero_()
    return store(exact, dtype)
