"""Counts in SASS, the machine code of NVIDIA GPUs: what the assembler made of the PTX."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .counts import WIDE_BYTES, Counts

# "        /*0100*/              @!P0 RED.E.ADD.F16x2.RN.STRONG.GPU desc[UR4][R2.64], R5 ;"
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)[^;]*;", re.MULTILINE)
REAL = re.compile(r"(BF16|F16|F32|F64)(?:(?:x|_V)(\d))?")
INTEGER = re.compile(r"([US]?)(32|64)")
OPERATIONS = {"ADD", "MIN", "MAX", "AND", "OR", "XOR", "EXCH", "INC", "DEC"}
INSTRUCTION_BYTES = 16


def counts(text: str) -> Counts:
    """Count in the disassembly of one kernel."""
    return _counts(opcode for _, opcode in LINE.findall(text))


def of_cubins(cubins: Sequence[bytes], *, disassembler: str, machine: str) -> list[Counts]:
    """Count in several cubins at once: most of a disassembler's time is its start.

    Args:
        cubins: one kernel each.
        disassembler: path of nvdisasm.
        machine: as nvdisasm calls it, "SM90a".

    Raises:
        RuntimeError: what came out of the disassembler is not all of what went in.
    """
    code = [instructions(cubin) for cubin in cubins]
    with TemporaryDirectory(prefix="msda-codegen-") as folder:
        raw = Path(folder) / "raw.bin"
        raw.write_bytes(b"".join(code))
        # Without data flow: that only adds names to the targets of jumps.
        command = [disassembler, "-ndf", "-b", machine, str(raw)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm: {done.stderr.strip()[:300]}")
    found = LINE.findall(done.stdout)
    expected = sum(map(len, code)) // INSTRUCTION_BYTES
    if len(found) != expected:
        raise RuntimeError(f"nvdisasm: {len(found)} instructions came out, expected {expected}")
    results, start = [], 0
    for one in code:
        end = start + len(one) // INSTRUCTION_BYTES
        results.append(_counts(opcode for _, opcode in found[start:end]))
        start = end
    return results


def instructions(cubin: bytes) -> bytes:
    """Return the machine code in a cubin, which is a 64-bit ELF file.

    Raises:
        ValueError: it is none, or holds no code.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError(f"cubin starts with {cubin[:5]!r}, expected a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, number, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(number)]
    start_of_names = sections[names][4]
    code = b""
    for name, _kind, _flags, _address, offset, length in sections:
        begin = start_of_names + name
        if cubin[begin : begin + 6] == b".text.":
            code += cubin[offset : offset + length]
    if not code:
        raise ValueError("cubin has no section .text.*, expected one for its kernel")
    return code


def _counts(opcodes: Iterable[str]) -> Counts:
    found = Counts()
    for opcode in opcodes:
        # Blocks of code are padded with these.
        if opcode != "NOP":
            found.instructions += 1
            _take(found, opcode)
    return found


def _take(found: Counts, opcode: str) -> None:
    name, *modifiers = opcode.split(".")
    if name in ("LDG", "STG"):
        if any(m.isdecimal() and int(m) // 8 >= WIDE_BYTES for m in modifiers):
            found.access(store=name == "STG")
    # An acquire ends with an invalidation of the first cache level, CCTL.IVALL; ERRBAR only accompanies MEMBAR.
    elif name in ("MEMBAR", "FENCE") or (name == "CCTL" and "IVALL" in modifiers):
        found.fences += 1
    elif name.startswith("ATOM") and any(m.startswith("CAS") for m in modifiers):
        found.cas_loops += 1
    elif name in ("RED", "REDG", "ATOM", "ATOMG"):
        operation = next((m.lower() for m in modifiers if m in OPERATIONS), "?")
        element, lanes = _operand(modifiers)
        found.atomic(operation, element, lanes=lanes)


def _operand(modifiers: Iterable[str]) -> tuple[str, int]:
    """The type of one number and how many there are; without any it is a 32-bit integer."""
    for modifier in modifiers:
        if real := REAL.fullmatch(modifier):
            return real[1].lower(), int(real[2] or 1)
        if integer := INTEGER.fullmatch(modifier):
            return f"{(integer[1] or 'U').lower()}{integer[2]}", 1
    return "u32", 1
