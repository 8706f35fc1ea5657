"""The PTX of narrow kernels on sm_90, and how few kernels there are; `python -m ci codegen` checks the code of all."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import msda
from msda import kernels
from msda.specialisations import dtype_cells, specialisations
from msda.tests.calls import DEVICE, make_call

VECTOR_ADD = {
    "fp64": r"add\.f64",
    "fp32": r"add(\.noftz)?\.v4\.f32",
    "fp16": r"add\.noftz\.v8\.f16",
    "bf16": r"add\.noftz\.v8\.bf16",
}
LOADS_PER_TILE = {
    "fp64": "ld.global.v2.b64",
    "fp32": "ld.global.v4.b32",
    "fp16": "ld.global.v4.b32",
    "bf16": "ld.global.v4.b32",
}


def compile_for_hopper(pattern: str) -> dict[str, dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    root = Path(msda.__file__).parent.parent
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "msda.tests.compile_for_hopper", pattern]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert found
    return found


def check(name: str, facts: dict[str, Any]) -> None:
    kernel, value, *_ = name.split("-")
    instructions = facts["instructions"]
    assert facts["specialised"] == [], f"{name} is compiled anew for other values of {facts['specialised']}"
    assert facts["stack"] == 0, f"{name} spills registers: {facts}"
    assert not [i for i in instructions if i.startswith(("fence", "membar")) or ".cas" in i], f"{name}: {instructions}"
    # A tile of values takes four corners, and in the backward also the incoming gradient.
    assert instructions[LOADS_PER_TILE[value]] % (4 if kernel == "forward" else 5) == 0, f"{name}: {instructions}"
    assert LOADS_PER_TILE[value] in instructions
    atomics = [i for i in instructions if i.startswith(("atom", "red"))]
    if kernel == "forward":
        assert atomics == []
    else:
        buffer = value if "native" in name or value == "fp64" else "fp32"
        assert len(atomics) == 1, f"{name}: {instructions}"
        assert re.fullmatch(
            rf"(atom|red)\.global\.(gpu\.relaxed|relaxed\.gpu)(\.global)?\.{VECTOR_ADD[buffer]}", atomics[0]
        )


@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("value", ["fp64", "fp32", "fp16", "bf16"])
def test_narrow_vectorised_code(kernel: str, value: str):
    for name, facts in compile_for_hopper(rf"{kernel}-{value}-\w+-\w+(-native)?").items():
        check(name, facts)


def test_specialisations_are_few():
    assert len(dtype_cells()) == 10
    names = [s.name for s in specialisations()]
    assert len(set(names)) == len(names)
    assert len([s for s in specialisations() if s.kernel == "forward"]) == 10 * 3
    assert len([s for s in specialisations() if s.kernel == "backward" and s.accumulate == "float32"]) == 10 * 3


@pytest.mark.skipif(DEVICE != "cuda", reason="counts what a GPU launch compiles")
def test_random_shapes_compile_once():
    def compiled() -> int:
        return sum(len(cache[0]) for cache in kernels.backward.device_caches.values())

    make_call([(3, 5)], channels=8).run()
    before = compiled()
    for queries, heads, points, channels in ((1, 1, 1, 16), (17, 3, 4, 32), (16, 16, 16, 24)):
        make_call([(1, 1), (16, 2)], queries=queries, heads=heads, points=points, channels=channels).run()
    assert compiled() == before
