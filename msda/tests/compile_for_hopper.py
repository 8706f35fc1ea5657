"""Compile specialisations for sm_90 without a GPU and print what the code does, as JSON. Run with `python -m`.

A process of its own, because a process in which TRITON_INTERPRET was set when Triton was imported cannot compile.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from msda import ordered_specialisations as ordered
from msda import specialisations as usual

TARGET = GPUTarget("cuda", 90, 32)


def facts(source: ASTSource, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are specialised, memory instructions with their counts, registers and stack."""
    compiled = triton.compile(source, target=TARGET, options=options)
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    instructions = re.findall(r"\b((?:ld\.global|st\.global|atom|red|fence|membar)[\w.:]*)", compiled.asm["ptx"])
    parameters = [p for p in source.fn.params if not p.is_constexpr]
    return {
        "specialised": [p.name for p in parameters if not (p.do_not_specialize or p.do_not_specialize_on_alignment)],
        "instructions": Counter(instructions),
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack": int(re.findall(r"STACK:(\d+)", usage)[0]),
    }


def main() -> None:
    """Compile the specialisations whose names match a pattern."""
    pattern = sys.argv[1]
    found: dict[str, Any] = {s.name: (usual.source, usual.compiler_options, s) for s in usual.specialisations()}
    found |= {s.name: (ordered.source, ordered.compiler_options, s) for s in ordered.ordered_specialisations()}
    chosen = {name: entry for name, entry in found.items() if re.fullmatch(pattern, name)}
    json.dump({name: facts(source(s), options(s)) for name, (source, options, s) in chosen.items()}, sys.stdout)


if __name__ == "__main__":
    main()
