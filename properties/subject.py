"""Subject: the implementation under test, and what it declares about itself.

The only place of the harness that imports `msda`, and only when the shipped kernels are the subject.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from reference.inputs import Inputs
from reference.model import Accumulate, Arithmetic, CoordinateDtype, Coordinates, CornerSum, Interpolation

from . import interpreter
from .cells import CELLS, DtypeCell

SHIPPED = "msda:multi_scale_deformable_attention"
# (value, spatial_shapes, level_start_index, sampling_locations, attention_weights) -> out
Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What a subject returned for one `Inputs`; gradients are None when only the forward ran."""

    out: Tensor
    grad_value: Tensor | None = None
    grad_sampling_locations: Tensor | None = None
    grad_attention_weights: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An operator under test.

    Attributes:
        name: shown in headers and failures.
        call: the operator: value, spatial_shapes, level_start_index, sampling_locations, attention_weights -> out.
        arithmetic: what its error bounds rest on.
        cells: dtype combinations that it accepts; others are skipped.
        block_edges: sizes around which its code takes other paths, by dimension: "queries", "samples" (L * K),
            "channels". The strategies draw around their multiples.
        validates: whether it promises the errors of the shipped operator for bad arguments.
    """

    name: str
    call: Operator
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    cells: tuple[DtypeCell, ...] = CELLS
    block_edges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    validates: bool = False

    def refuses(self, cell: DtypeCell) -> str | None:
        """Return why this dtype cell is not tested, or None when it is."""
        return None if cell in self.cells else f"{self.name} does not declare {cell.name}"

    def observe(self, inputs: Inputs, *, gradients: bool = True) -> Observation:
        """Run the forward, and the backward of sum(out * grad_output) unless told not to.

        The operands are passed with the layout they have; each is a leaf of its own.
        """
        shapes, starts = inputs.level_table()
        if not gradients:
            with torch.no_grad():
                return Observation(out=self.call(inputs.value, shapes, starts, inputs.locations, inputs.weights))
        leaves = [tensor.detach().requires_grad_() for tensor in (inputs.value, inputs.locations, inputs.weights)]
        value, locations, weights = leaves
        out = self.call(value, shapes, starts, locations, weights)
        grads = torch.autograd.grad(out, leaves, inputs.grad_output)
        return Observation(
            out=out.detach(),
            grad_value=grads[0],
            grad_sampling_locations=grads[1],
            grad_attention_weights=grads[2],
        )


def load(spec: str = SHIPPED, *, device: str = "cpu") -> Subject:
    """Load the subject named "package.module:callable".

    A plain callable declares what differs from the default by attributes: `accumulate`, `interpolation`,
    `coordinates`, `coordinate_dtype`, `corner_sum` ("flat" unless declared), `dtypes` (names of value dtypes),
    `mixed_dtypes` (bool) and `block_edges`.

    Args:
        spec: module and callable.
        device: "cuda" or "cpu", where the subject will run; the shipped kernels have other blocks in the interpreter.

    Raises:
        ValueError: the spec has no colon, or names something that is not there or cannot be called.
    """
    module_name, separator, attribute = spec.partition(":")
    if not separator or not module_name or not attribute:
        raise ValueError(f"subject: {spec!r} given, expected 'package.module:callable'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"subject: cannot import {module_name!r} of {spec!r}: {error}") from error
    operator = getattr(module, attribute, None)
    if not callable(operator):
        raise ValueError(f"subject: {module_name!r} has no callable {attribute!r}")
    if spec == SHIPPED:
        return shipped(module_name, device=device)
    return from_callable(operator, name=spec)


def shipped(package: str = "msda", *, device: str) -> Subject:
    """Return the kernels of an operator package: the shipped one, or a copy of it under another name."""
    if device == "cpu":
        interpreter.patch_once_per_launch()
    plan = importlib.import_module(f"{package}.plan")
    operator = cast(Operator, importlib.import_module(package).multi_scale_deformable_attention)
    architecture = "cuda" if device == "cuda" else "interpreter"
    return Subject(
        name=package,
        call=operator,
        arithmetic=Arithmetic(corner_sum="nested"),
        block_edges=plan.block_edges(architecture),
        validates=True,
    )


def from_callable(operator: Operator, *, name: str) -> Subject:
    """Wrap a callable with the operator's signature, reading its declarations from its attributes."""
    arithmetic = Arithmetic(
        accumulate=cast(Accumulate, getattr(operator, "accumulate", "float32")),
        interpolation=cast(Interpolation, getattr(operator, "interpolation", "weights")),
        coordinates=cast(Coordinates, getattr(operator, "coordinates", "pixel")),
        coordinate_dtype=cast(CoordinateDtype, getattr(operator, "coordinate_dtype", "float32")),
        # Nothing is known of a stranger's order of addition.
        corner_sum=cast(CornerSum, getattr(operator, "corner_sum", "flat")),
    )
    dtypes = getattr(operator, "dtypes", ("float64", "float32", "float16", "bfloat16"))
    mixed = getattr(operator, "mixed_dtypes", True)
    cells = tuple(
        cell
        for cell in CELLS
        if str(cell.value).removeprefix("torch.") in dtypes and (mixed or cell.value == cell.locations == cell.weights)
    )
    edges = getattr(operator, "block_edges", {})
    return Subject(name=name, call=operator, arithmetic=arithmetic, cells=cells, block_edges=edges)
