"""Counts in AMD's assembly, which is one to one what the GPU executes, and the resources it declares."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .counts import Counts

INSTRUCTION = re.compile(r"^\s+((?:s|v|ds|global|flat|buffer|scratch|image|tbuffer)_\w+)", re.MULTILINE)
COMMENT = re.compile(r";[^\n]*")
ACCESS = re.compile(r"(?:global|flat|buffer)_(load|store)_(?:dwordx4|b128)")
TYPE = "x2|bf16|f16|f32|f64|u32|u64|i32|i64|b32|b64"
ATOMIC = re.compile(rf"(?:global|flat|buffer)_atomic_(?:(pk)_)?([a-z]+)(?:_({TYPE}))?")
# Writing back and invalidating caches is what a release and an acquire cost. Waiting (s_waitcnt) is no sign of either:
# without it no result of a load could be used.
FENCE = re.compile(r"buffer_(?:wbl2|inv|wbinvl1\w*|gl[01]_inv)|global_(?:wb|inv|wbinv)|s_dcache_\w+")
# "f32" in global_atomic_add_f32; integers are not always told.
ELEMENTS = {None: "u32", "x2": "u64", "b32": "u32", "b64": "u64", "i32": "s32", "i64": "s64"}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one kernel takes.

    Attributes:
        vector_registers: of a lane, accumulation registers included.
        scalar_registers: of a wave.
        spills: 32-bit registers that do not fit, or words of private memory where those are more. Scalar registers
            that do not fit go to lanes of vector registers: that is no memory, and not counted unless it becomes some.
    """

    vector_registers: int
    scalar_registers: int
    spills: int


def counts(text: str) -> Counts:
    """Count in the assembly of one kernel."""
    found = Counts()
    for opcode in INSTRUCTION.findall(COMMENT.sub("", text)):
        # Code is padded with these.
        if opcode not in ("s_nop", "s_code_end"):
            found.instructions += 1
            _take(found, opcode)
    return found


def resources(text: str) -> Resources:
    """Read the metadata at the end of the assembly of one kernel.

    Raises:
        ValueError: there is none, or not of one kernel.
    """

    def declared(name: str) -> int:
        found = re.findall(rf"^\s+\.{name}:\s+(\d+)\s*$", text, re.MULTILINE)
        if len(found) != 1:
            raise ValueError(f"amdgcn: .{name} is there {len(found)} times, expected once")
        return int(found[0])

    return Resources(
        vector_registers=declared("vgpr_count"),
        scalar_registers=declared("sgpr_count"),
        spills=max(declared("vgpr_spill_count"), -(-declared("private_segment_fixed_size") // 4)),
    )


def _take(found: Counts, opcode: str) -> None:
    if access := ACCESS.fullmatch(opcode):
        found.access(store=access[1] == "store")
    elif FENCE.fullmatch(opcode):
        found.fences += 1
    elif atomic := ATOMIC.fullmatch(opcode):
        packed, operation, element = atomic.groups()
        if operation in ("cmpswap", "fcmpswap"):
            found.cas_loops += 1
        else:
            found.atomic(operation, ELEMENTS.get(element, str(element)), lanes=2 if packed else 1)
