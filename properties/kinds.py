"""The class of a failure: what kind of fault a reader should look for first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from .journal import DeviceLost

if TYPE_CHECKING:
    from .verdict import Evidence

Kind = Literal[
    "logic fault",
    "precision loss",
    "determinism",
    "memory",
    "crash",
    "refused wrongly",
    "accepted wrongly",
    "fallback",
]
MEANING: dict[Kind, str] = {
    "logic fault": "an error that no rounding explains",
    "precision loss": "an error that arithmetic in a 16-bit format would explain",
    "determinism": "runs on the same operands differ",
    "memory": "memory was written, read or taken that should not have been",
    "crash": "the process or the device did not survive the call",
    "refused wrongly": "a call that the operator defines raised an error",
    "accepted wrongly": "a call that the operator does not define raised no error",
    "fallback": "something else than the subject's own kernels computed the result",
}
assert set(MEANING) == set(get_args(Kind))
# From the unit roundoff of float32 to that of bfloat16, the coarsest format in use.
COARSER = 2.0**16
# Results stored in 16 bits are rounded so once already: from the unit roundoff of float16 to that of bfloat16.
COARSER_STORAGE = 2.0**3
NO_MEMORY = "can't allocate memory"
ROUNDED = {"arithmetic": COARSER, "coordinate": COARSER, "storage": COARSER_STORAGE}


def kind_of(error: BaseException) -> Kind:
    """Classify what a property raised."""
    declared = getattr(error, "kind", None)
    if declared in MEANING:
        return declared  # type: ignore[no-any-return]
    evidence = getattr(error, "evidence", ())
    if evidence:
        return kind_of_evidence(evidence[0])
    if isinstance(error, DeviceLost):
        return "crash"
    # PyTorch's allocator on the CPU raises a plain RuntimeError.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or NO_MEMORY in str(error):
        return "memory"
    return "logic fault" if isinstance(error, AssertionError) else "refused wrongly"


def kind_of_evidence(evidence: Evidence) -> Kind:
    """Classify one inadmissible output by its worst element."""
    if evidence.failure == "written":
        return "memory"
    if evidence.failure == "not repeatable":
        return "determinism"
    if evidence.failure not in ("out of bound", "not exact"):
        return "logic fault"
    if not (isinstance(evidence.got, float) and isinstance(evidence.expected, float)):
        return "logic fault"
    error = abs(evidence.got - evidence.expected)
    # Without parts nothing may round at all; what would a coarse format have done to the result itself?
    coarse = sum(factor * evidence.parts.get(part, 0.0) for part, factor in ROUNDED.items())
    if not evidence.parts:
        coarse = abs(evidence.expected) * COARSER / 2**24
    return "precision loss" if error <= coarse else "logic fault"
