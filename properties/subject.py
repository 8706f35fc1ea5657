"""Subject: the implementation under test, and what it declares about itself.

The only place of the harness that imports `msda`, and only when the shipped kernels are the subject.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from reference.inputs import Inputs
from reference.model import Accumulate, Arithmetic, CoordinateDtype, Coordinates, CornerSum, Interpolation

from . import interpreter
from .casefile import SHIPPED
from .cells import CELLS, DtypeCell

Determinism = Literal["not_guaranteed", "run_to_run"]
Engine = Literal["any", "kernels"]
# What a callable may declare by attributes: one word, or several.
DECLARATIONS = {
    "accumulate": get_args(Accumulate),
    "interpolation": get_args(Interpolation),
    "coordinates": get_args(Coordinates),
    "coordinate_dtype": get_args(CoordinateDtype),
    "corner_sum": get_args(CornerSum),
    "determinism": get_args(Determinism),
    "engine": get_args(Engine),
}
LISTS = {
    "dtypes": ("float64", "float32", "float16", "bfloat16"),
    "accumulators": get_args(Accumulate),
    "determinisms": get_args(Determinism),
}
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
    variants: tuple[Subject, ...] = ()

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

    def observe(
        self, inputs: Inputs, *, gradients: bool = True, wanted: tuple[bool, bool, bool] = (True, True, True)
    ) -> Observation:
        """Run the forward, and the backward of sum(out * grad_output) unless told not to.

        The operands are passed with the layout they have; each is a leaf of its own.

        Args:
            inputs: the operands.
            gradients: run the backward.
            wanted: which of value, locations and weights require a gradient; the others get None.
        """
        shapes, starts = inputs.level_table()
        if not gradients:
            with torch.no_grad():
                return Observation(out=self.call(inputs.value, shapes, starts, inputs.locations, inputs.weights))
        operands = [tensor.detach() for tensor in (inputs.value, inputs.locations, inputs.weights)]
        leaves = [leaf.requires_grad_() for leaf, wants in zip(operands, wanted, strict=True) if wants]
        out = self.call(operands[0], shapes, starts, *operands[1:])
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if out.requires_grad:
            found = torch.autograd.grad(out, leaves, inputs.grad_output, allow_unused=True)
        if inputs.weights.numel() == 0 or inputs.channels == 0:
            # Where nothing is sampled, an operator may well never touch its operands.
            found = tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))
        remaining = iter(found)
        grads = [next(remaining) if wants else None for wants in wanted]
        return Observation(
            out=out.detach(),
            grad_value=grads[0],
            grad_sampling_locations=grads[1],
            grad_attention_weights=grads[2],
        )


def _told(call: Operator, **choice: str) -> Operator:
    """Fix a keyword argument that `Operator` does not show."""
    return cast(Operator, partial(cast(Callable[..., Tensor], call), **choice))


def load(spec: str = SHIPPED, *, device: str = "cpu") -> Subject:
    """Load the subject named "package.module:callable".

    A plain callable declares what differs from the default by attributes: `accumulate`, `interpolation`,
    `coordinates`, `coordinate_dtype`, `corner_sum` ("flat" unless declared), `dtypes` (names of value dtypes),
    `mixed_dtypes` (bool), `determinism`, `uniform` (bool), `engine` and `block_edges`. Where it takes `accumulate=` or
    `determinism=` as keywords, `accumulators` and `determinisms` list what it takes.

    Args:
        spec: module and callable.
        device: "cuda" or "cpu", where the subject will run; the shipped kernels have other blocks in the interpreter.

    Raises:
        ValueError: the spec has no colon, or names something that is not there or cannot be called.
    """
    module_name, separator, attribute = spec.partition(":")
    if not separator or not module_name or not attribute or module_name.startswith("."):
        raise ValueError(f"subject: {spec!r} given, expected 'package.module:callable'")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # Whatever a stranger's module raises while it is imported.
        raise ValueError(f"subject: cannot import {module_name!r} of {spec!r}: {error!r}") from error
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
    )


def from_callable(operator: Operator, *, name: str) -> Subject:
    """Wrap a callable with the operator's signature, reading its declarations from its attributes.

    Raises:
        ValueError: a declaration is none of the words it may be.
    """
    for attribute, words in DECLARATIONS.items():
        declared = getattr(operator, attribute, words[0])
        if declared not in words:
            raise ValueError(f"subject: {name}.{attribute} is {declared!r}, expected one of {', '.join(words)}")
    for attribute, words in LISTS.items():
        declared = getattr(operator, attribute, words[:1])
        if isinstance(declared, str) or not declared or not set(declared) <= set(words):
            raise ValueError(f"subject: {name}.{attribute} is {declared!r}, expected a tuple of {', '.join(words)}")
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
    determinism = cast(Determinism, getattr(operator, "determinism", "not_guaranteed"))
    return Subject(
        name=name,
        call=operator,
        arithmetic=arithmetic,
        cells=cells,
        block_edges=getattr(operator, "block_edges", {}),
        accumulators=tuple(getattr(operator, "accumulators", (arithmetic.accumulate,))),
        determinisms=tuple(getattr(operator, "determinisms", (determinism,))),
        determinism=determinism,
        uniform=getattr(operator, "uniform", False),
        engine=cast(Engine, getattr(operator, "engine", "any")),
    )
