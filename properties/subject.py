"""Subject: the implementation under test, and what it declares about itself.

The only place of the harness that imports `msda`, and only when the shipped kernels are the subject.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor

from reference.inputs import Inputs
from reference.model import Accumulate, Arithmetic

from . import declaration, interpreter
from .casefile import SHIPPED
from .cells import CELLS, DtypeCell
from .declaration import (
    DEVICES,
    OPERANDS,
    Declaration,
    Determinism,
    Device,
    Engine,
    Layouts,
    NonFinite,
    Operand,
    Support,
)
from .limits import Limits
from .recipe import Recipe

INT32_LIMIT = 2**31
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
        accumulators: accumulators of grad_value that it can be told to use; with one alone it is told nothing.
        determinisms: likewise, what it can promise about repeated runs.
        determinism: what it promises as it is: "run_to_run" means the same bits of grad_value in every run.
        lacks: accumulator and value dtype that do not go together where it runs, and why.
        triton_atomics: whether it accumulates by Triton's atomics, so that what `probe` measures holds for it.
        uniform: whether it computes each (batch, query, head), and the gradients of each sample, by the same operations
            wherever it lies in the call and whatever else the call holds, so that those results have the same bits.
        engine: "kernels" where kernels of its own compute every shape, with no arithmetic left to PyTorch.
        gradients: operands that get a gradient; none where it has no backward.
        layouts: "contiguous" where it takes no other operands.
        empty: whether it takes empty operands.
        devices: where it runs.
        nonfinite: not "skip" where what is not finite in a skipped sample may appear in the results.
        supports: what it heeds of PyTorch's requests around a call.
        variants: the same operator with other blocks, or other numbers of warps, to be compared with it.
    """

    name: str
    call: Operator
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    cells: tuple[DtypeCell, ...] = CELLS
    block_edges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    validates: bool = False
    accumulators: tuple[Accumulate, ...] = ("float32",)
    determinisms: tuple[Determinism, ...] = ("not_guaranteed",)
    determinism: Determinism = "not_guaranteed"
    lacks: Mapping[tuple[Accumulate, torch.dtype], str] = field(default_factory=dict)
    triton_atomics: bool = False
    uniform: bool = False
    engine: Engine = "any"
    gradients: tuple[Operand, ...] = OPERANDS
    layouts: Layouts = "any"
    empty: bool = True
    devices: tuple[Device, ...] = DEVICES
    nonfinite: NonFinite = "skip"
    supports: tuple[Support, ...] = ()
    variants: tuple[Subject, ...] = ()

    @property
    def backward(self) -> bool:
        """Whether any operand gets a gradient."""
        return bool(self.gradients)

    def limits(self, device: str) -> Limits:
        """Return what cases may be drawn for it on "cuda" or "cpu"."""
        limits = Limits.cuda(self.block_edges) if device == "cuda" else Limits.cpu(self.block_edges)
        return replace(
            limits,
            contiguous=self.layouts == "contiguous",
            finite=self.nonfinite != "skip",
            moderate=self.nonfinite == "overflow",
        )

    def lacking(self, device: str, *, everything: bool) -> str | None:
        """Return why a property is not tested on a device, or None when it is.

        Args:
            device: "cuda" or "cpu".
            everything: whether the property needs all three gradients.
        """
        if device not in self.devices:
            return f"{self.name} does not declare that it runs on {device}"
        missing = [operand for operand in OPERANDS if operand not in self.gradients]
        if not everything or not missing:
            return None
        return f"{self.name} does not declare " + (
            "a backward" if not self.gradients else f"gradients of {' and '.join(missing)}"
        )

    def declines(self, recipe: Recipe) -> str | None:
        """Return why a case is not tested, or None when it is.

        Drawn cases are never declined: `limits` and the properties see to it. Cases from files may be.
        """
        refusal = self.refuses(recipe.cell)
        if refusal is not None:
            return refusal
        if not self.empty and recipe.empty:
            return f"{self.name} does not declare empty operands"
        if self.layouts == "contiguous" and not recipe.contiguous:
            return f"{self.name} declares contiguous operands alone"
        largest = recipe.largest_location
        if self.nonfinite != "skip" and largest == math.inf:
            return f"{self.name} declares that locations which are not finite propagate"
        sides = [side for level in recipe.levels for side in level]
        if self.nonfinite == "overflow" and largest * max(sides, default=0) >= INT32_LIMIT:
            return f"{self.name} declares that pixel coordinates outside the range of int32 propagate"
        return None

    def refuses(
        self, cell: DtypeCell, accumulate: Accumulate | None = None, determinism: Determinism | None = None
    ) -> str | None:
        """Return why this dtype cell is not tested, with this accumulator and promise, or None when it is."""
        if cell not in self.cells:
            return f"{self.name} does not declare {cell.name}"
        if accumulate is not None and accumulate not in self.accumulators:
            return f"{self.name} does not declare {accumulate} accumulation"
        if determinism is not None and determinism not in self.determinisms:
            return f"{self.name} does not declare {determinism} results"
        return None if accumulate is None else self.lacks.get((accumulate, cell.value))

    def with_accumulate(self, accumulate: Accumulate) -> Subject:
        """Return the subject told to accumulate grad_value so, with the arithmetic that goes with it.

        Raises:
            ValueError: it does not declare this accumulator.
        """
        if accumulate not in self.accumulators:
            raise ValueError(f"accumulate is {accumulate!r}; {self.name} declares {', '.join(self.accumulators)}")
        told = _told(self.call, accumulate=accumulate) if len(self.accumulators) > 1 else self.call
        return replace(self, call=told, arithmetic=replace(self.arithmetic, accumulate=accumulate))

    def with_determinism(self, determinism: Determinism) -> Subject:
        """Return the subject told to keep this promise.

        Raises:
            ValueError: it does not declare this promise.
        """
        if determinism not in self.determinisms:
            raise ValueError(f"determinism is {determinism!r}; {self.name} declares {', '.join(self.determinisms)}")
        told = _told(self.call, determinism=determinism) if len(self.determinisms) > 1 else self.call
        return replace(self, call=told, determinism=determinism)

    def varied(self, seed: int) -> Subject:
        """Return the subject, in one case of four told to keep another of the promises that it can.

        Args:
            seed: of the case.
        """
        others = self.determinisms[1:]
        return self if seed % 4 != 3 or not others else self.with_determinism(others[seed // 4 % len(others)])

    def observe(
        self, inputs: Inputs, *, gradients: bool = True, wanted: tuple[bool, bool, bool] | None = None
    ) -> Observation:
        """Run the forward, and the backward of sum(out * grad_output) unless told not to.

        The operands are passed with the layout they have; each is a leaf of its own.

        Args:
            inputs: the operands.
            gradients: run the backward.
            wanted: which of value, locations and weights require a gradient; the others get None. Default: those that
                the subject declares.
        """
        asked = wanted or tuple(operand in self.gradients for operand in OPERANDS)
        shapes, starts = inputs.level_table()
        if not gradients:
            with torch.no_grad():
                return Observation(out=self.call(inputs.value, shapes, starts, inputs.locations, inputs.weights))
        operands = [tensor.detach() for tensor in (inputs.value, inputs.locations, inputs.weights)]
        leaves = [leaf.requires_grad_() for leaf, wants in zip(operands, asked, strict=True) if wants]
        out = self.call(operands[0], shapes, starts, *operands[1:])
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if out.requires_grad:
            found = torch.autograd.grad(out, leaves, inputs.grad_output, allow_unused=True)
        if inputs.weights.numel() == 0 or inputs.channels == 0:
            # Where nothing is sampled, an operator may well never touch its operands.
            found = tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))
        remaining = iter(found)
        grads = [next(remaining) if wants else None for wants in asked]
        return Observation(
            out=out.detach(),
            grad_value=grads[0],
            grad_sampling_locations=grads[1],
            grad_attention_weights=grads[2],
        )


def _told(call: Operator, **choice: str) -> Operator:
    """Fix a keyword argument that `Operator` does not show."""
    return cast(Operator, partial(cast(Callable[..., Tensor], call), **choice))


GROUP = "msda.subjects"
"""Entry points of installed packages that name a subject."""


def load(spec: str = SHIPPED, *, device: str = "cpu") -> Subject:
    """Load the subject named "package.module:callable", or the entry point of that name in the group "msda.subjects".

    What is named is a callable with the operator's signature, whose attributes declare what differs from the defaults
    (see `declaration.Declaration`), or a `Subject`. "@FILE" behind it names a file of declarations, which go before the
    attributes: "package.module:callable@declaration.toml".

    Args:
        spec: module and callable.
        device: "cuda" or "cpu", where the subject will run; the shipped kernels have other blocks in the interpreter.

    Raises:
        ValueError: the spec names something that is not there, cannot be called, or declares what cannot be.
    """
    name, at, file = spec.partition("@")
    if name == SHIPPED and not at:
        return shipped(device=device)
    found = _find(name)
    if isinstance(found, Subject):
        if at:
            raise ValueError(f"subject: {name!r} is a Subject; expected a callable before '@{file}'")
        return replace(found, name=spec)
    if not callable(found):
        raise ValueError(f"subject: {name!r} is {type(found).__name__}, expected a callable or a Subject")
    return from_callable(found, name=spec, file=Path(file) if at else None)


def _find(spec: str) -> object:
    """Import what a spec names."""
    module_name, separator, attribute = spec.partition(":")
    if not separator and spec:
        points = entry_points(group=GROUP, name=spec)
        if points:
            module_name, _, attribute = next(iter(points)).value.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        known = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none"
        raise ValueError(
            f"subject: {spec!r} given, expected 'package.module:callable' or an entry point of {GROUP!r} ({known})"
        )
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        # Whatever a stranger's module raises while it is imported.
        raise ValueError(f"subject: cannot import {module_name!r} of {spec!r}: {error!r}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"subject: {module_name!r} has no callable {attribute!r}")
        found = getattr(found, part)
    return found


def shipped(package: str = "msda", *, device: str) -> Subject:
    """Return the kernels of an operator package: the shipped one, or a copy of it under another name."""
    if device == "cpu":
        interpreter.patch_once_per_launch()
        interpreter.skip_unread_checks()
    plan = importlib.import_module(f"{package}.plan")
    operator = cast(Operator, importlib.import_module(package).multi_scale_deformable_attention)
    architecture = "cuda" if device == "cuda" else "interpreter"
    return Subject(
        name=package,
        call=operator,
        arithmetic=Arithmetic(corner_sum="nested"),
        block_edges=plan.block_edges(architecture),
        validates=True,
        accumulators=("float32", "native"),
        determinisms=("not_guaranteed", "run_to_run"),
        lacks={("native", torch.bfloat16): "Triton's interpreter has no bfloat16 atomics"} if device == "cpu" else {},
        triton_atomics=True,
        uniform=True,
        engine="kernels",
        supports=get_args(Support),
    )


def from_callable(operator: Operator, *, name: str, file: Path | None = None) -> Subject:
    """Wrap a callable with the operator's signature, reading its declarations from its attributes, and from a file.

    Raises:
        ValueError: the file cannot be read, or a declaration is misspelt or none of the words it may be.
    """
    try:
        declared = declaration.of_attributes(operator) | (declaration.of_file(file) if file else {})
    except OSError as error:
        raise ValueError(f"declaration: {error}") from None
    return declaring(operator, declaration.checked(declared, name=name), name=name)


def declaring(operator: Operator, says: Declaration, *, name: str) -> Subject:
    """Return the subject that a declaration describes."""
    cells = tuple(
        cell
        for cell in CELLS
        if str(cell.value).removeprefix("torch.") in says.dtypes
        and (says.mixed_dtypes or cell.value == cell.locations == cell.weights)
    )
    return Subject(
        name=name,
        call=operator,
        arithmetic=Arithmetic(
            accumulate=says.accumulate,
            interpolation=says.interpolation,
            coordinates=says.coordinates,
            coordinate_dtype=says.coordinate_dtype,
            corner_sum=says.corner_sum,
        ),
        cells=cells,
        block_edges=says.block_edges,
        validates=says.validates,
        accumulators=says.accumulators or (says.accumulate,),
        determinisms=says.determinisms or (says.determinism,),
        determinism=says.determinism,
        uniform=says.uniform,
        engine=says.engine,
        gradients=says.gradients,
        layouts=says.layouts,
        empty=says.empty,
        devices=says.devices,
        nonfinite=says.nonfinite,
        supports=says.supports,
    )
