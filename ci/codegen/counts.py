"""What is counted in machine code, in words that are the same for every architecture."""

from __future__ import annotations

from dataclasses import dataclass, field

# Bytes of an access that counts as wide.
WIDE_BYTES = 16


@dataclass(kw_only=True)
class Counts:
    """Instructions of one kernel.

    Attributes:
        instructions: all of them, padding excluded.
        loads_16_byte: from global memory, of 16 bytes or more a lane.
        stores_16_byte: to global memory, of 16 bytes or more a lane.
        atomics: those in global memory by what they add ("f32", "f32x4", "f16x2", "u32"; other operations come with
            their name, "max-u32"), compare-and-swap excluded.
        cas_loops: compare-and-swap instructions. Nothing but an emulated atomic needs them here, one loop each.
        fences: instructions that order or publish memory beyond what a relaxed atomic needs.
    """

    instructions: int = 0
    loads_16_byte: int = 0
    stores_16_byte: int = 0
    atomics: dict[str, int] = field(default_factory=dict)
    cas_loops: int = 0
    fences: int = 0

    @property
    def vector_reductions(self) -> int:
        """Atomics that add several numbers at once."""
        return sum(count for kind, count in self.atomics.items() if "x" in kind.rpartition("-")[2])

    def access(self, *, store: bool) -> None:
        """Count a wide access."""
        if store:
            self.stores_16_byte += 1
        else:
            self.loads_16_byte += 1

    def atomic(self, operation: str, element: str, *, lanes: int = 1) -> None:
        """Count an atomic.

        Args:
            operation: "add" is not mentioned in its kind.
            element: type of one number.
            lanes: numbers that one instruction adds.
        """
        operand = f"{element}x{lanes}" if lanes > 1 else element
        kind = operand if operation == "add" else f"{operation}-{operand}"
        self.atomics[kind] = self.atomics.get(kind, 0) + 1
