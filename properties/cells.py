"""The dtype cells: every legal combination of value, locations and weights dtypes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_NAMES = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class DtypeCell:
    """Storage dtypes of one call. The output and grad_output have the dtype of value.

    Attributes:
        value: float64, float32, float16 or bfloat16.
        locations: value's dtype or float32; float64 goes with float64 alone.
        weights: like `locations`, independently.

    Raises:
        ValueError: for a combination that the operator does not define.
    """

    value: torch.dtype
    locations: torch.dtype
    weights: torch.dtype

    def __post_init__(self) -> None:
        if self.value not in _NAMES:
            raise ValueError(f"value dtype is {self.value}; expected one of {', '.join(_NAMES.values())}")
        allowed = {torch.float64} if self.value == torch.float64 else {self.value, torch.float32}
        for argument, dtype in (("locations", self.locations), ("weights", self.weights)):
            if dtype not in allowed:
                expected = " or ".join(sorted(_NAMES[one] for one in allowed))
                raise ValueError(f"{argument} dtype is {dtype} with value {_NAMES[self.value]}; expected {expected}")

    @property
    def name(self) -> str:
        """Short stable name: "float32", or "float16-float32-float16" where the dtypes differ."""
        names = (_NAMES[self.value], _NAMES[self.locations], _NAMES[self.weights])
        return names[0] if len(set(names)) == 1 else "-".join(names)

    def __repr__(self) -> str:
        return f"DtypeCell({self.name})"


def _legal() -> tuple[DtypeCell, ...]:
    cells = [DtypeCell(dtype, dtype, dtype) for dtype in (torch.float64, torch.float32)]
    for half in (torch.float16, torch.bfloat16):
        cells += [DtypeCell(half, loc, weight) for loc in (half, torch.float32) for weight in (half, torch.float32)]
    return tuple(cells)


CELLS: tuple[DtypeCell, ...] = _legal()
"""The ten legal cells. The order is part of the interface: parametrised test names follow it."""

_BY_NAME = {cell.name: cell for cell in CELLS}


def cell_named(name: object) -> DtypeCell:
    """Return the cell of that name.

    Raises:
        ValueError: if there is none.
    """
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ValueError(f"cell is {name!r}; expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
