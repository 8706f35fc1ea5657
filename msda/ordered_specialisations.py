"""The specialisations of the kernels behind determinism="run_to_run", as `specialisations` has those of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import triton.language as tl
from triton.compiler import ASTSource

from . import launch, ordered, ordered_kernels
from .ordered_plan import OrderedPlan, make_ordered_plan
from .plan import Problem, compute_dtype, make_plan
from .specialisations import TRITON_NAME, WAYS, dtype_cells


@dataclass(frozen=True, kw_only=True)
class OrderedSpecialisation:
    """One kernel in one set of compile-time values; what a kernel does not depend on is left at its default.

    Attributes:
        kernel: name in `ordered_kernels`.
        value: dtype of value and grad_output.
        locations: dtype of the sampling locations.
        weights: dtype of the attention weights.
        broad: whether a head has more channels than one block (`count_and_differentiate` only).
        vectorised: whether memory is accessed 16 bytes at a time.
        wide: whether offsets inside a batch entry have 64 bits (`count_and_differentiate` only).
    """

    kernel: str
    value: torch.dtype = torch.float32
    locations: torch.dtype = torch.float32
    weights: torch.dtype = torch.float32
    broad: bool = False
    vectorised: bool = True
    wide: bool = False

    @property
    def name(self) -> str:
        """All of it in one word."""
        parts = [self.kernel, *(TRITON_NAME[dtype] for dtype in (self.value, self.locations, self.weights))]
        flags = {"broad": self.broad, "scalar": not self.vectorised, "wide": self.wide}
        return "-".join([*parts, *(word for word, on in flags.items() if on)])

    @property
    def problem(self) -> Problem:
        """The sizes of a call that needs this specialisation."""
        channels = 64 if self.broad else 32
        return Problem(batch=1, pixels=1, heads=1, channels=channels, queries=1, levels=1, points=1)

    @property
    def plan(self) -> OrderedPlan:
        """The plan of such a call."""
        return make_ordered_plan(self.problem, self.value, aligned=self.vectorised, architecture="cuda")

    @property
    def constants(self) -> dict[str, Any]:
        """The values that the kernel is compiled with."""
        if self.kernel != "count_and_differentiate":
            return ordered.constants(self.kernel, self.plan)
        problem = self.problem
        strides = (problem.channels,) * 3 + (1,)
        plan = make_plan("backward", problem, self.value, strides, aligned=self.vectorised, architecture="cuda")
        return launch.constants("backward", replace(plan, wide=self.wide))


def ordered_specialisations() -> list[OrderedSpecialisation]:
    """All specialisations with 32-bit offsets; `count_and_differentiate` has a twin of each with `wide`."""
    found = [OrderedSpecialisation(kernel="place"), OrderedSpecialisation(kernel="arrange")]
    for value, locations in dict.fromkeys((compute_dtype(cell[0]), cell[1]) for cell in dtype_cells()):
        found.append(OrderedSpecialisation(kernel="count", value=value, locations=locations, weights=value))
    for cell, vectorised in product(dtype_cells(), (True, False)):
        common: dict[str, Any] = dict(zip(("value", "locations", "weights"), cell, strict=True))
        common["vectorised"] = vectorised
        found.append(OrderedSpecialisation(kernel="sum_cells", **common))
    for cell, (broad, vectorised) in product(dtype_cells(), WAYS):
        common = dict(zip(("value", "locations", "weights"), cell, strict=True))
        common |= {"broad": broad, "vectorised": vectorised}
        found.append(OrderedSpecialisation(kernel="count_and_differentiate", **common))
    for value, vectorised in product(dict.fromkeys(cell[0] for cell in dtype_cells()), (True, False)):
        dtypes = dict.fromkeys(("value", "locations", "weights"), value)
        found.append(OrderedSpecialisation(kernel="sum_pixels", vectorised=vectorised, **dtypes))
    return found


def compiler_options(specialisation: OrderedSpecialisation) -> dict[str, Any]:
    """The options of `triton.compile`."""
    return ordered.options(specialisation.kernel)


def source(specialisation: OrderedSpecialisation) -> ASTSource:
    """The source of `triton.compile`, with the signature that a launch on a GPU has."""
    s = specialisation
    kernel = getattr(ordered_kernels, s.kernel)
    constants = s.constants
    tensors = {
        **dict.fromkeys(("value_ptr", "grad_out_ptr", "grad_value_ptr"), TRITON_NAME[s.value]),
        **dict.fromkeys(("shapes_ptr", "starts_ptr", "placed_ptr"), "i64"),
        **dict.fromkeys(("counts_ptr", "counter_ptr", "ticket_ptr", "offsets_ptr", "order_ptr"), "i32"),
        **dict.fromkeys(("loc_ptr", "grad_loc_ptr"), TRITON_NAME[s.locations]),
        **dict.fromkeys(("attn_ptr", "grad_attn_ptr"), TRITON_NAME[s.weights]),
        "partial_ptr": TRITON_NAME[compute_dtype(s.value)],
    }
    signature = {}
    for name in kernel.arg_names:
        integer = "i64" if kernel.fn.__annotations__.get(name) is tl.int64 else "i32"
        signature[name] = "constexpr" if name in constants else f"*{tensors[name]}" if name in tensors else integer
    return ASTSource(kernel, signature, constants, {})
