"""One row for each kernel and architecture: what it was compiled to, and what of that is not as expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .catalogue import Entry
from .counts import Counts
from .expectations import Expectation, problems

SCHEMA = 1
# What of a row is written to the file, in this order.
WRITTEN = (
    "kernel",
    "dtype",
    "arch",
    "registers",
    "spills",
    "instructions",
    "loads_16_byte",
    "vector_reductions",
    "cas_loops",
    "fences",
    "seconds",
    "problems",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel on one architecture; counts are None where it does not compile.

    Attributes:
        kernel: with its ways.
        dtype: of value, locations and weights.
        arch: name of the architecture.
        registers: of a lane.
        scalar_registers: of a wave, 0 where there are none.
        spills: 32-bit registers that went to memory.
        instructions: of the machine code.
        loads_16_byte: from global memory.
        vector_reductions: atomics of several numbers.
        cas_loops: compare-and-swap loops.
        fences: of memory.
        seconds: that it took to compile.
        problems: what is not as expected, a line each.
    """

    kernel: str
    dtype: str
    arch: str
    registers: int | None = None
    scalar_registers: int = 0
    spills: int | None = None
    instructions: int | None = None
    loads_16_byte: int | None = None
    vector_reductions: int | None = None
    cas_loops: int | None = None
    fences: int | None = None
    seconds: float | None = None
    problems: Sequence[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What it is a row of."""
        return f"{self.arch} {self.kernel} {self.dtype}"


def make(arch: str, entry: Entry, result: Mapping[str, Any], expectations: Iterable[Expectation]) -> Row:
    """Judge what a worker answered for one kernel.

    Args:
        arch: name of the architecture.
        entry: the kernel.
        result: the answer.
        expectations: all of the file.
    """
    if "failed" in result:
        return Row(kernel=entry.kernel, dtype=entry.dtype, arch=arch, problems=[result["failed"]])
    counts = Counts(**result["counts"])
    where = {"arch": arch, "kernel": entry.kernel, "dtype": entry.dtype}
    wrong = problems(where, {**vars(counts), "spills": result["spills"]}, expectations)
    if result["specialised"]:
        wrong.append(f"compiled anew for other values of {', '.join(result['specialised'])}")
    return Row(
        kernel=entry.kernel,
        dtype=entry.dtype,
        arch=arch,
        registers=result["registers"],
        scalar_registers=result["scalar_registers"],
        spills=result["spills"],
        instructions=counts.instructions,
        loads_16_byte=counts.loads_16_byte,
        vector_reductions=counts.vector_reductions,
        cas_loops=counts.cas_loops,
        fences=counts.fences,
        seconds=round(result["seconds"], 3),
        problems=wrong,
    )


def as_json(rows: Iterable[Row], versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of the JSON file."""
    written = [{name: getattr(row, name) for name in WRITTEN} for row in rows]
    return {"schema": SCHEMA, "versions": dict(versions), "rows": written}
