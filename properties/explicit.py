"""Explicit numbers: the operands of a small case written out, exactly, as hexadecimal floats.

A minimised case is no longer what a seed draws. Its recipe keeps the sizes, dtypes and layouts and holds the numbers
themselves, which need no counter, no pattern and no version of anything to be read again.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

OPERANDS = ("value", "locations", "weights", "grad_output")
# Numbers of all operands together that a case file may hold: more is not read by anybody.
MAX_NUMBERS = 4096
# That people read in a line.
MAX_SHOWN = 12
HEX = re.compile(r"-?0x[01](\.[0-9a-f]+)?p[+-]\d{1,4}|nan|-?inf")


@dataclass(frozen=True, kw_only=True)
class Explicit:
    """The numbers of each operand, row by row, as `float.hex` writes them.

    Strings, so that two NaN are equal and a recipe can be hashed. An operand of the layout "expanded" holds its
    repeated dimension once.

    Raises:
        ValueError: one of them is not a number.
    """

    value: tuple[str, ...]
    locations: tuple[str, ...]
    weights: tuple[str, ...]
    grad_output: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in fields(self):
            for text in getattr(self, field.name):
                if not isinstance(text, str) or not HEX.fullmatch(text):
                    raise ValueError(f"explicit {field.name} has {text!r}; expected a hexadecimal float like 0x1.8p+1")

    @classmethod
    def of(cls, **operands: Tensor) -> Explicit:
        """Write down the numbers of four tensors, whatever their layout; float16 to float64 are exact."""
        return cls(
            **{name: tuple(map(to_hex, tensor.double().reshape(-1).tolist())) for name, tensor in operands.items()}
        )

    def numbers(self, operand: str) -> list[float]:
        """Return the numbers of one operand."""
        return [float.fromhex(text) for text in getattr(self, operand)]

    def describe(self) -> str:
        """Return the numbers where they are few, and otherwise that they are given."""
        if sum(len(getattr(self, operand)) for operand in OPERANDS) > MAX_SHOWN:
            return "at given numbers"
        return " ".join(f"{operand}={self.numbers(operand)}".replace(", ", ",") for operand in OPERANDS)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {operand: list(getattr(self, operand)) for operand in OPERANDS}

    @classmethod
    def from_dict(cls, plain: object) -> Explicit:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: it is something else.
        """
        if not isinstance(plain, dict) or set(plain) != set(OPERANDS):
            raise ValueError(
                f"explicit is {str(plain)[:80]!r}; expected an object with the fields {', '.join(OPERANDS)}"
            )
        if not all(isinstance(plain[operand], list) for operand in OPERANDS):
            raise ValueError("explicit has a field that is no list; expected lists of hexadecimal floats")
        return cls(**{operand: tuple(plain[operand]) for operand in OPERANDS})


def to_hex(number: float) -> str:
    """Write a number exactly, without the zeros that `float.hex` pads with: 0x1.8p+1."""
    text = number.hex()
    if not math.isfinite(number):
        return text
    mantissa, exponent = text.split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"
