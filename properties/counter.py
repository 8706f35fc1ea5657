"""Counter-based random bits: the same on every device and version, in as few tensor operations as possible.

Draw number i of stream s is splitmix64's finaliser applied to the counter (s, i) and a key made from the seed. Only
int64 addition, multiplication, shifts and logic are used, all of which wrap and agree bitwise on every device. Floats
come from the integers by exact conversions and single correctly rounded multiplications: `log` or `cos` would tie the
data to one machine's libm, and a fused multiply-add to one compiler, so no expression here offers a compiler either.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_STREAM_BITS = 40  # a stream holds 2^40 draws, far more than any tensor; 2^23 streams fit above it

_FIELD = (1 << 21) - 1
# Three uniform fields of 21 bits have a sum of variance 2^40. The odd factor next to 2^-20 gives float64 values all of
# their significand: with a power of two only the leading 24 bits would ever be used, and float64 products be exact.
_NORMAL_SCALE = float.fromhex("0x1.f1e2d3c4b5a69p-21")
_NORMAL_CENTRE = 1.5 * _FIELD


def _signed(word: int) -> int:
    """Two's complement of a 64-bit word: torch takes int64 constants only."""
    word &= _MASK64
    return word - (1 << 64) if word >> 63 else word


def _key(seed: int) -> int:
    word = (seed + _GAMMA) & _MASK64
    word = ((word ^ (word >> 30)) * _MIX1) & _MASK64
    word = ((word ^ (word >> 27)) * _MIX2) & _MASK64
    return _signed(word ^ (word >> 31))


def _fold(word: Tensor, shift: int) -> Tensor:
    """In place `word ^ (word >>> shift)`; the mask turns torch's arithmetic shift into a logical one."""
    return word.bitwise_xor_((word >> shift).bitwise_and_((1 << (64 - shift)) - 1))


def bits_of(seed: int, counts: Sequence[int], device: torch.device | str) -> tuple[Tensor, ...]:
    """Draw the first `counts[s]` words of each stream s, all streams in one pass.

    One pass costs 14 operations for any number of streams, which is what a small input spends most of its time on.

    Args:
        seed: any integer; its lowest 64 bits count.
        counts: draws per stream, stream 0 first.
        device: where the words go.

    Returns:
        One int64 tensor of shape (count,) per stream, uniform over all 2^64 words.
    """
    starts = [stream << _STREAM_BITS for stream in range(len(counts))]
    pieces = [
        torch.arange(start, start + count, dtype=torch.int64, device=device)
        for start, count in zip(starts, counts, strict=True)
    ]
    word = torch.cat(pieces)
    word.mul_(_signed(_GAMMA)).add_(_key(seed))
    _fold(word, 30).mul_(_signed(_MIX1))
    _fold(word, 27).mul_(_signed(_MIX2))
    return tuple(torch.split(_fold(word, 31), list(counts)))


def bits(seed: int, stream: int, count: int, device: torch.device | str) -> Tensor:
    """Draw the first `count` words of one stream: int64, shape (count,)."""
    return bits_of(seed, [0] * stream + [count], device)[stream]


def uniform(word: Tensor) -> Tensor:
    """Turn words into float64 in [0, 1), multiples of 2^-53. The lowest 11 bits of the words stay unused."""
    return (word >> 11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)


def normal_like(word: Tensor) -> Tensor:
    """Turn words into float64 of mean 0 and standard deviation about 1 in (-3, 3), bell-shaped and never 0."""
    total = (word & _FIELD).add_((word >> 21).bitwise_and_(_FIELD)).add_((word >> 42).bitwise_and_(_FIELD))
    return total.to(torch.float64).sub_(_NORMAL_CENTRE).mul_(_NORMAL_SCALE)


def below(word: Tensor, limit: int) -> Tensor:
    """Turn words into int64 in [0, limit), limit < 2^31, from the highest 31 bits."""
    return (word >> 33).bitwise_and_((1 << 31) - 1).mul_(limit) >> 31


def signs(word: Tensor) -> Tensor:
    """Turn words into int64 -1 or 1, from the highest bit."""
    return (word >> 63).bitwise_or_(1)


def integer(seed: int, stream: int) -> int:
    """Return word 0 of a stream as a Python integer in [0, 2^64): for choices that concern a whole tensor."""
    word = ((stream << _STREAM_BITS) * _GAMMA + _key(seed)) & _MASK64
    word = ((word ^ (word >> 30)) * _MIX1) & _MASK64
    word = ((word ^ (word >> 27)) * _MIX2) & _MASK64
    return word ^ (word >> 31)
