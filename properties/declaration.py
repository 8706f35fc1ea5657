"""What a subject declares about itself, read from the attributes of a callable or from a file.

What is not declared is not tested, and said so; what is declared is held to the bounds.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from reference.model import Accumulate, CoordinateDtype, Coordinates, CornerSum, Interpolation

Determinism = Literal["not_guaranteed", "run_to_run"]
Engine = Literal["any", "kernels"]
NonFinite = Literal["skip", "propagate", "overflow"]
Layouts = Literal["any", "contiguous"]
Operand = Literal["value", "sampling_locations", "attention_weights"]
Device = Literal["cuda", "cpu"]
Support = Literal[
    "fake_tensors", "vmap", "deterministic_algorithms", "refuses_second_derivatives", "infinite_gradients"
]

DTYPES = ("float64", "float32", "float16", "bfloat16")
OPERANDS: tuple[Operand, ...] = get_args(Operand)
DEVICES: tuple[Device, ...] = get_args(Device)
# One word of several, the default first.
WORDS: dict[str, tuple[str, ...]] = {
    "accumulate": get_args(Accumulate),
    "interpolation": get_args(Interpolation),
    "coordinates": get_args(Coordinates),
    "coordinate_dtype": get_args(CoordinateDtype),
    "corner_sum": get_args(CornerSum),
    "determinism": get_args(Determinism),
    "engine": get_args(Engine),
    "nonfinite": get_args(NonFinite),
    "layouts": get_args(Layouts),
}
LISTS: dict[str, tuple[str, ...]] = {
    "dtypes": DTYPES,
    "accumulators": get_args(Accumulate),
    "determinisms": get_args(Determinism),
    "gradients": OPERANDS,
    "devices": DEVICES,
    "supports": get_args(Support),
}
FLAGS = ("mixed_dtypes", "empty", "validates", "uniform")
DIMENSIONS = ("queries", "samples", "channels")
# So close to a declaration that it was meant to be one.
SIMILAR = 0.8


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a callable says about itself; the defaults are what holds where it says nothing.

    Attributes:
        dtypes: dtypes of value that it takes.
        mixed_dtypes: whether float32 locations and weights may go with a 16-bit value.
        gradients: operands that get a gradient, none for an operator without a backward.
        layouts: "any" strides, or "contiguous" operands alone.
        empty: whether B, Q, L, K, M or D may be 0.
        devices: where it runs.
        nonfinite: "skip": a sample that is outside or not finite contributes nothing, whatever its weight; "propagate":
            NaN and infinite locations, and such weights of skipped samples, may appear in the results; "overflow": so
            may finite locations whose pixel coordinates are outside the range of int32.
        validates: whether it promises the errors of the shipped operator for bad arguments.
        engine: "kernels" when kernels of its own compute all results, "any" when PyTorch may.
        accumulate, interpolation, coordinates, coordinate_dtype, corner_sum: see `reference.model.Arithmetic`. Nothing
            is known of a stranger's order of addition, so "flat" is the default for the last one.
        accumulators, determinisms: what its keywords `accumulate=` and `determinism=` take; empty: it has none.
        determinism: what it promises about repeated runs.
        supports: of what PyTorch asks around a call: tracing with fake tensors, `torch.vmap`,
            `torch.use_deterministic_algorithms`, that a second derivative raises; and that infinite gradients of the
            output reach no corner outside of the map, where autograd alone makes NaN of them.
        uniform: see `properties.subject.Subject`.
        block_edges: block sizes by dimension: "queries", "samples" and "channels".
    """

    dtypes: tuple[str, ...] = DTYPES
    mixed_dtypes: bool = True
    gradients: tuple[Operand, ...] = OPERANDS
    layouts: Layouts = "any"
    empty: bool = True
    devices: tuple[Device, ...] = DEVICES
    nonfinite: NonFinite = "skip"
    validates: bool = False
    engine: Engine = "any"
    accumulate: Accumulate = "float32"
    interpolation: Interpolation = "weights"
    coordinates: Coordinates = "pixel"
    coordinate_dtype: CoordinateDtype = "float32"
    corner_sum: CornerSum = "flat"
    accumulators: tuple[Accumulate, ...] = ()
    determinisms: tuple[Determinism, ...] = ()
    determinism: Determinism = "not_guaranteed"
    supports: tuple[Support, ...] = ()
    uniform: bool = False
    block_edges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


NAMES = tuple(one.name for one in fields(Declaration))


def of_attributes(operator: object) -> dict[str, Any]:
    """Return what a callable declares by attributes.

    Raises:
        ValueError: an attribute is so close to a declaration that it must be a misspelt one.
    """
    own = [name for name in getattr(operator, "__dict__", {}) if not name.startswith("_")]
    _refuse_unknown([name for name in own if difflib.get_close_matches(name, NAMES, 1, SIMILAR)], "attribute")
    return {name: getattr(operator, name) for name in NAMES if hasattr(operator, name)}


def of_file(path: Path) -> dict[str, Any]:
    """Return what a TOML file declares, one declaration a line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no TOML, or declares something that there is not.
    """
    try:
        declared = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"declaration: {str(path)!r} is no TOML: {error}") from None
    _refuse_unknown(list(declared), "key")
    lists = {name: tuple(value) for name, value in declared.items() if isinstance(value, list)}
    return declared | lists


def checked(declared: Mapping[str, Any], *, name: str) -> Declaration:
    """Build a declaration from what was declared.

    Args:
        declared: by name.
        name: of the subject, for error messages.

    Raises:
        ValueError: a value is none that it may be.
    """
    for attribute, value in declared.items():
        expected = _expected(attribute, value)
        if expected is not None:
            raise ValueError(f"subject: {name}.{attribute} is {value!r}, expected {expected}")
    lists = {one: tuple(value) for one, value in declared.items() if one in LISTS}
    return Declaration(**(dict(declared) | lists))


def to_toml(declared: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Return the text of a declaration file.

    Args:
        declared: by name.
        notes: a comment for each declaration that has one.
    """
    lines = []
    for name, value in declared.items():
        lines += [f"# {notes[name]}"] if name in notes else []
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _refuse_unknown(names: list[str], what: str) -> None:
    for name in names:
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, 1, 0.0)
            raise ValueError(f"subject: {what} {name!r} is no declaration; did you mean {close[0]!r}?")


def _expected(name: str, value: object) -> str | None:
    """Say what a declaration may be, or None when it is that."""
    if name in WORDS:
        return None if value in WORDS[name] else f"one of {', '.join(WORDS[name])}"
    if name in FLAGS:
        return None if isinstance(value, bool) else "True or False"
    if name in LISTS:
        words = LISTS[name]
        # No gradient and no keyword is something to say; no dtype is not.
        some = bool(value) or name not in {"dtypes", "devices"}
        ok = some and isinstance(value, list | tuple | set | frozenset) and all(one in words for one in value)
        return None if ok else f"a tuple of {', '.join(words)}"
    ok = isinstance(value, Mapping) and all(
        dimension in DIMENSIONS and all(isinstance(size, int) and size > 0 for size in sizes)
        for dimension, sizes in value.items()
    )
    return None if ok else f"positive block sizes for {', '.join(DIMENSIONS)}"
