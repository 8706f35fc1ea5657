"""Counts in PTX: what Triton asks of the assembler, for installations that have no disassembler."""

from __future__ import annotations

import re

from .counts import WIDE_BYTES, Counts

# Not preceded by a dot (a directive), not followed by a colon (a label).
INSTRUCTION = re.compile(r"^[\s{]*(?:@!?%\w+\s+)?([a-z]\w*(?:[.:]+\w+)*)(?=[\s;])(?!:)", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
VECTOR = re.compile(r"v(\d)")
ELEMENT = re.compile(r"(bf|[fbsu])(\d+)(?:x(\d))?")
ORDERED = {"acquire", "release", "acq_rel", "sc"}
# No GPU so far adds a single 16-bit number in memory: the assembler makes compare-and-swap loops of these.
EMULATED = {"f16", "bf16"}


def counts(text: str) -> Counts:
    """Count in the PTX of one kernel."""
    found = Counts()
    for opcode in INSTRUCTION.findall(COMMENT.sub("", text)):
        found.instructions += 1
        _take(found, opcode)
    return found


def _take(found: Counts, opcode: str) -> None:
    name, *modifiers = re.split(r"[.:]+", opcode)
    if name in ("membar", "fence"):
        found.fences += 1
    elif name in ("ld", "st") and "global" in modifiers and _bytes(modifiers) >= WIDE_BYTES:
        found.access(store=name == "st")
    elif name in ("atom", "red") and "shared" not in modifiers:
        # An ordered atomic is a relaxed one between fences.
        found.fences += bool(ORDERED & set(modifiers))
        if "cas" in modifiers:
            found.cas_loops += 1
            return
        element, lanes = _operand(modifiers)
        operation = next((m for m in modifiers if m in ("add", "min", "max", "and", "or", "xor", "exch", "inc")), "?")
        if lanes == 1 and element in EMULATED:
            found.cas_loops += 1
        else:
            found.atomic(operation, element, lanes=lanes)


def _bytes(modifiers: list[str]) -> int:
    element, lanes = _operand(modifiers)
    return int(re.sub(r"\D", "", element) or 0) * lanes // 8


def _operand(modifiers: list[str]) -> tuple[str, int]:
    """The type of one number and how many there are: ("f16", 8) for .v4.f16x2."""
    lanes, element = 1, ""
    for modifier in modifiers:
        if vector := VECTOR.fullmatch(modifier):
            lanes *= int(vector[1])
        elif typed := ELEMENT.fullmatch(modifier):
            element = typed[1] + typed[2]
            lanes *= int(typed[3] or 1)
    return element, lanes
