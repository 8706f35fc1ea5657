"""The single cases of a run as arrays: for each output and dtype, ratio, error, magnitude, bounds and collisions."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DTYPES = ("float64", "float32", "float16", "bfloat16")
OTHER = "other"
OUTPUTS = ("out", "grad_value", "grad_sampling_locations", "grad_attention_weights")
# Keys of a line, in the order of the columns: error over bound, error, magnitude, proven and probabilistic bound.
COLUMNS = ("r", "e", "m", "b", "q")
# A name that is not the operator's comes from the subject or its properties; nobody reads a page of hundreds of them.
MOST_OUTPUTS = 12

Column = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """All cases of one output and dtype; NaN where a line does not tell.

    Attributes:
        ratio: error over bound.
        error: at the worst element.
        magnitude: of the exact result there, or of what is summed in it.
        bound: proven, there.
        likely: probabilistic, there.
        collisions: largest number of samples that met in one pixel.
    """

    ratio: Column
    error: Column
    magnitude: Column
    bound: Column
    likely: Column
    collisions: Column

    def __len__(self) -> int:
        return len(self.ratio)


@dataclass(frozen=True, kw_only=True)
class Points:
    """The cases of a run.

    Attributes:
        cases: lines that were read.
        unreadable: lines that were not.
        clouds: by output, then by dtype of value.
    """

    cases: int = 0
    unreadable: int = 0
    clouds: Mapping[str, Mapping[str, Cloud]] = field(default_factory=dict)

    @property
    def outputs(self) -> list[str]:
        """The operator's outputs first, in their order, then what else was compared."""
        known = [name for name in OUTPUTS if name in self.clouds]
        return (known + sorted(name for name in self.clouds if name not in OUTPUTS))[:MOST_OUTPUTS]

    @property
    def dtypes(self) -> list[str]:
        """Dtypes of value that have cases, in the usual order."""
        return [name for name in (*DTYPES, OTHER) if any(name in by_dtype for by_dtype in self.clouds.values())]


def dtype_of(variant: str) -> str:
    """The dtype of value that a variant is about: the first of its words that is one."""
    return next((word for word in variant.split("-") if word in DTYPES), OTHER)


def read_points(path: Path) -> Points:
    """Read `cases.jsonl`; lines that are no case, as a run that was killed leaves, are counted.

    Raises:
        OSError: it cannot be read.
    """
    rows: dict[str, dict[str, array[float]]] = {}
    cases = unreadable = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                case = json.loads(line)
                found = list(_rows(case))
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                unreadable += 1
                continue
            cases += 1
            dtype = dtype_of(str(case.get("v", "")))
            for output, row in found:
                rows.setdefault(output, {}).setdefault(dtype, array("d")).extend(row)
    clouds = {
        output: {dtype: _cloud(values) for dtype, values in by_dtype.items()} for output, by_dtype in rows.items()
    }
    return Points(cases=cases, unreadable=unreadable, clouds=clouds)


def _rows(case: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """One row for each output of a case. Raises what a line of another shape raises."""
    collisions = _float(case.get("c"))
    parts = [case.get(key) or {} for key in COLUMNS]
    *_, bounds, likely = parts
    for output in parts[0]:
        row = [_float(part.get(output)) for part in parts]
        # It is told only where it is less than what is proven.
        row[-1] = _float(likely.get(output, bounds.get(output)))
        yield str(output), [*row, collisions]


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _cloud(values: array[float]) -> Cloud:
    ratio, error, magnitude, bound, likely, collisions = np.frombuffer(values).reshape(-1, len(COLUMNS) + 1).T.copy()
    return Cloud(ratio=ratio, error=error, magnitude=magnitude, bound=bound, likely=likely, collisions=collisions)
