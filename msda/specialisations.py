"""The specialisations in which the kernels get compiled, and how to compile each of them without a GPU.

For code generation checks: `triton.compile(source(s), target=GPUTarget("cuda", 90, 32), options=compiler_options(s))`.
Needs kernels that are not decorated for the interpreter, so a process without TRITON_INTERPRET.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import triton.language as tl
from triton.compiler import ASTSource

from . import kernels, launch
from .plan import Accumulate, Pass, Plan, Problem, accumulator_dtype, make_plan

# (broad, vectorised): without vectors a broad head is walked in narrow blocks.
WAYS = ((False, True), (True, True), (False, False))
TRITON_NAME = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, kw_only=True)
class Specialisation:
    """One kernel in one set of compile-time values.

    Attributes:
        kernel: which one.
        value: dtype of value, out and grad_output.
        locations: dtype of the sampling locations.
        weights: dtype of the attention weights.
        accumulate: accumulator of grad_value.
        broad: whether a head has more channels than one narrow block, and memory is accessed 16 bytes at a time.
        vectorised: whether memory is accessed 16 bytes at a time.
        wide: whether offsets inside a batch entry have 64 bits.
    """

    kernel: Pass
    value: torch.dtype
    locations: torch.dtype
    weights: torch.dtype
    accumulate: Accumulate = "float32"
    broad: bool = False
    vectorised: bool = True
    wide: bool = False

    @property
    def name(self) -> str:
        """All of it in one word."""
        parts = [self.kernel, *(TRITON_NAME[dtype] for dtype in (self.value, self.locations, self.weights))]
        flags = {"native": self.accumulate == "native", "broad": self.broad, "scalar": not self.vectorised}
        return "-".join([*parts, *(word for word, on in (flags | {"wide": self.wide}).items() if on)])

    @property
    def plan(self) -> Plan:
        """The plan of a call that needs this specialisation."""
        problem = Problem(batch=1, pixels=1, heads=1, channels=64 if self.broad else 32, queries=1, levels=1, points=1)
        strides = (problem.channels,) * 3 + (1,)
        plan = make_plan(self.kernel, problem, self.value, strides, aligned=self.vectorised, architecture="cuda")
        return replace(plan, wide=self.wide)


def dtype_cells() -> list[tuple[torch.dtype, torch.dtype, torch.dtype]]:
    """The accepted dtypes of (value, locations, weights)."""
    cells = [(dtype, dtype, dtype) for dtype in (torch.float64, torch.float32)]
    for half in (torch.float16, torch.bfloat16):
        cells += [(half, locations, weights) for locations, weights in product((half, torch.float32), repeat=2)]
    return cells


def specialisations() -> list[Specialisation]:
    """All specialisations with 32-bit offsets; each has a twin with `wide` for very large tensors."""
    found = []
    for (value, locations, weights), (broad, vectorised) in product(dtype_cells(), WAYS):
        common: dict[str, Any] = {"value": value, "locations": locations, "weights": weights}
        common |= {"broad": broad, "vectorised": vectorised}
        found += [Specialisation(kernel="forward", **common), Specialisation(kernel="backward", **common)]
        if value.itemsize == 2:
            found.append(Specialisation(kernel="backward", accumulate="native", **common))
    return found


def compiler_options(specialisation: Specialisation) -> dict[str, Any]:
    """The options of `triton.compile`."""
    return launch.options(specialisation.plan)


def source(specialisation: Specialisation) -> ASTSource:
    """The source of `triton.compile`, with the signature that a launch on a GPU has."""
    s = specialisation
    kernel = getattr(kernels, s.kernel)
    constants = launch.constants(s.kernel, s.plan)
    tensors = {
        **dict.fromkeys(("value_ptr", "out_ptr", "grad_out_ptr"), TRITON_NAME[s.value]),
        **dict.fromkeys(("shapes_ptr", "starts_ptr"), "i64"),
        **dict.fromkeys(("loc_ptr", "grad_loc_ptr"), TRITON_NAME[s.locations]),
        **dict.fromkeys(("attn_ptr", "grad_attn_ptr"), TRITON_NAME[s.weights]),
        "grad_value_ptr": TRITON_NAME[accumulator_dtype(s.value, s.accumulate, "cuda")],
    }
    signature = {}
    for name in kernel.arg_names:
        integer = "i64" if kernel.fn.__annotations__.get(name) is tl.int64 else "i32"
        signature[name] = "constexpr" if name in constants else f"*{tensors[name]}" if name in tensors else integer
    return ASTSource(kernel, signature, constants, {})
