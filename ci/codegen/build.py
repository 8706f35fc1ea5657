"""Compiles and counts, in a process in which TRITON_INTERPRET was not set when Triton was imported: see `worker`."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from . import amdgcn, ptx, sass
from .catalogue import ARCHITECTURES, Architecture, Entry
from .counts import Counts

# What is said for want of a backend, of an assembler that knows the GPU, or (Triton 3.4, AMD) of a linker.
WANTING = re.compile(
    r"compatible backends for target|is not defined for option 'gpu-name'|ROCm linker .* not found|Cannot find ptxas"
)


class Unavailable(RuntimeError):  # noqa: N818 - reads as a sentence
    """This Triton cannot compile for an architecture at all."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """One compiled kernel.

    Attributes:
        counts: of its instructions.
        registers: of a lane.
        scalar_registers: of a wave, on AMD GPUs.
        spills: 32-bit registers that went to memory.
        specialised: arguments whose values would compile the kernel anew.
        seconds: that it took to compile.
    """

    counts: Counts
    registers: int
    scalar_registers: int
    spills: int
    specialised: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A kernel that does not compile.

    Attributes:
        reason: what the compiler said, in a line.
    """

    reason: str


def build(name: str, entries: Sequence[Entry]) -> list[Built | Failed]:
    """Compile several kernels for one architecture and count in them.

    Args:
        name: of the architecture.
        entries: what to compile.

    Raises:
        Unavailable: this Triton cannot compile for it.
    """
    architecture = ARCHITECTURES[name]
    compiled = [_compile(architecture, entry) for entry in entries]
    good = [one for one in compiled if not isinstance(one, Failed)]
    counts = iter(_counts(architecture, [asm for asm, *_ in good]))
    return [one if isinstance(one, Failed) else _built(next(counts), *one) for one in compiled]


def _compile(architecture: Architecture, entry: Entry) -> tuple[Any, tuple[str, ...], float] | Failed:
    source = entry.module.source(entry.specialisation)
    options = entry.module.compiler_options(entry.specialisation)
    target = GPUTarget(architecture.backend, architecture.number, architecture.lanes)
    start = time.perf_counter()
    try:
        compiled = triton.compile(source, target=target, options=options)
    except Exception as error:
        # Triton raises whatever its passes raise; the caller must know which kernel it was.
        said = " ".join(str(error).split())[:200]
        if WANTING.search(said):
            msg = f"{architecture.name}: triton {triton.__version__} cannot compile for it here: {said}"
            raise Unavailable(msg) from None
        return Failed(reason=f"does not compile: {type(error).__name__}: {said}")
    seconds = time.perf_counter() - start
    parameters = [p for p in source.fn.params if not p.is_constexpr]
    specialised = (p.name for p in parameters if not (p.do_not_specialize or p.do_not_specialize_on_alignment))
    return compiled.asm, tuple(specialised), seconds


def _counts(architecture: Architecture, asms: Sequence[Any]) -> list[Counts]:
    if not asms:
        return []
    if architecture.backend == "hip":
        return [amdgcn.counts(asm["amdgcn"]) for asm in asms]
    disassembler = tool("nvdisasm")
    if disassembler is None:
        return [ptx.counts(asm["ptx"]) for asm in asms]
    number = int(architecture.number)
    # From 90 on Triton compiles for the GPU itself, not for its successors.
    machine = f"SM{number}a" if number >= 90 else f"SM{number}"
    return sass.of_cubins([asm["cubin"] for asm in asms], disassembler=disassembler, machine=machine)


def _built(counts: Counts, asm: Any, specialised: tuple[str, ...], seconds: float) -> Built:
    common: dict[str, Any] = {"counts": counts, "specialised": specialised, "seconds": seconds}
    if "amdgcn" in asm:
        resources = amdgcn.resources(asm["amdgcn"])
        return Built(
            registers=resources.vector_registers,
            scalar_registers=resources.scalar_registers,
            spills=resources.spills,
            **common,
        )
    registers, spills = _usage(asm["cubin"])
    return Built(registers=registers, scalar_registers=0, spills=spills, **common)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and 32-bit words of stack: kernels without arrays of their own have a stack for spills alone."""
    command = tool("cuobjdump")
    if command is None:
        raise Unavailable("cuobjdump is not where Triton keeps its tools: registers and spills cannot be read")
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([command, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if len(found) != 1:
        raise RuntimeError(f"cuobjdump: {text.strip()[:300]!r}, expected the resources of one kernel")
    registers, stack, local = map(int, found[0])
    return registers, -(-(stack + local) // 4)


def tool(name: str) -> str | None:
    """Find one of the NVIDIA tools that come with Triton, None without it."""
    try:
        path = Path(getattr(triton.knobs.nvidia, name).path)
    except (AttributeError, RuntimeError):
        path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return str(path) if path.is_file() else None
