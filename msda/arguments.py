"""Validation of the operator's arguments and the messages it gives. Nothing here launches or writes anything."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from .plan import Architecture, Problem

VALUE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TABLE_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ACCUMULATE = ("float32", "native")
DETERMINISM = (None, "not_guaranteed", "run_to_run")
LAYOUTS = {
    "value": "(B, S, M, D)",
    "spatial_shapes": "(L, 2)",
    "level_start_index": "(L,)",
    "sampling_locations": "(B, Q, M, L, K, 2)",
    "attention_weights": "(B, Q, M, L, K)",
}


def check(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    sampling_locations: Any,
    attention_weights: Any,
    *,
    accumulate: Any,
    determinism: Any,
) -> Problem:
    """Check everything that needs no element of a tensor.

    Args:
        value: (B, S, M, D).
        spatial_shapes: (L, 2).
        level_start_index: (L,) or None.
        sampling_locations: (B, Q, M, L, K, 2).
        attention_weights: (B, Q, M, L, K).
        accumulate: "float32" or "native".
        determinism: None, "not_guaranteed" or "run_to_run".

    Returns:
        The sizes of the call.

    Raises:
        TypeError: an argument is no tensor, or of a dtype that is not supported.
        ValueError: a shape, a device or a mode is wrong.
    """
    tensors = {
        "value": value,
        "spatial_shapes": spatial_shapes,
        "sampling_locations": sampling_locations,
        "attention_weights": attention_weights,
    }
    if level_start_index is not None:
        tensors["level_start_index"] = level_start_index
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
    _check_modes(accumulate, determinism)
    _check_shapes(tensors)
    _check_dtypes(tensors)
    _check_devices(tensors)
    return problem_of(value, sampling_locations)


def problem_of(value: Tensor, sampling_locations: Tensor) -> Problem:
    """The sizes of a call whose shapes are known to agree."""
    batch, pixels, heads, channels = value.shape
    _, queries, _, levels, points, _ = sampling_locations.shape
    return Problem(
        batch=batch,
        pixels=pixels,
        heads=heads,
        channels=channels,
        queries=queries,
        levels=levels,
        points=points,
    )


def check_level_table(spatial_shapes: Tensor, level_start_index: Tensor, value: Tensor) -> None:
    """Check the values of the level table, which a kernel would otherwise follow out of bounds.

    On a CUDA device this waits for one small copy to the host. While a CUDA graph is captured no copy can be waited
    for, so the values are then trusted: check them with a call before the capture.

    Args:
        spatial_shapes: (L, 2).
        level_start_index: (L,).
        value: (B, S, M, D).

    Raises:
        ValueError: H or W below 1, sizes that do not add up to S, or starts that are not their exclusive sums.
    """
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        for name, table in (("spatial_shapes", spatial_shapes), ("level_start_index", level_start_index)):
            if not table.is_cuda:
                msg = f"{name} must be on {value.device} while a CUDA graph is captured, got {table.device}"
                raise ValueError(msg)
        return
    starts = level_start_index.to(device=spatial_shapes.device)[:, None]
    rows = torch.cat([spatial_shapes.long(), starts.long()], dim=1).tolist()
    pixels = value.shape[1]
    start = 0
    for level, (height, width, given) in enumerate(rows):
        if height < 1 or width < 1:
            msg = f"spatial_shapes[{level}] must be (H, W) with H >= 1 and W >= 1, got ({height}, {width})"
            raise ValueError(msg)
        if given != start:
            msg = (
                f"level_start_index[{level}] must be {start}, the number of pixels of the levels before it, got {given}"
            )
            raise ValueError(msg)
        start += height * width
    if start != pixels:
        shapes = [tuple(row[:2]) for row in rows]
        msg = f"spatial_shapes must add up to S = {pixels} pixels of value, got {shapes}, which is {start} pixels"
        raise ValueError(msg)


def _check_tensor(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        msg = f"{name} must be a tensor of shape {LAYOUTS[name]}, got {type(tensor).__name__}"
        raise TypeError(msg)
    if tensor.layout != torch.strided:
        msg = f"{name} must be a dense tensor, got layout {tensor.layout}"
        raise TypeError(msg)


def _check_modes(accumulate: object, determinism: object) -> None:
    if accumulate not in ACCUMULATE:
        msg = f"accumulate must be one of {ACCUMULATE}, got {accumulate!r}"
        raise ValueError(msg)
    if determinism not in DETERMINISM:
        msg = f"determinism must be one of {DETERMINISM}, got {determinism!r}"
        raise ValueError(msg)


def _check_shapes(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        rank = LAYOUTS[name].count(",") + (not LAYOUTS[name].endswith(",)"))
        if tensor.dim() != rank:
            msg = f"{name} must have shape {LAYOUTS[name]}, got {tuple(tensor.shape)}"
            raise ValueError(msg)
    value, locations = tensors["value"], tensors["sampling_locations"]
    batch, _, heads, _ = value.shape
    _, queries, _, levels, points, _ = locations.shape
    expected = {
        "sampling_locations": (batch, queries, heads, levels, points, 2),
        "attention_weights": (batch, queries, heads, levels, points),
        "spatial_shapes": (levels, 2),
        "level_start_index": (levels,),
    }
    origin = f"value is {tuple(value.shape)} and sampling_locations {tuple(locations.shape)}"
    for name, shape in expected.items():
        if name in tensors and tuple(tensors[name].shape) != shape:
            msg = f"{name} must have shape {LAYOUTS[name]} = {shape}, got {tuple(tensors[name].shape)} ({origin})"
            raise ValueError(msg)


def _check_dtypes(tensors: dict[str, Tensor]) -> None:
    value = tensors["value"].dtype
    if value not in VALUE_DTYPES:
        msg = f"value must be float64, float32, float16 or bfloat16, got {value}"
        raise TypeError(msg)
    allowed = (torch.float64,) if value == torch.float64 else tuple(dict.fromkeys((value, torch.float32)))
    for name in ("sampling_locations", "attention_weights"):
        if tensors[name].dtype not in allowed:
            words = " or ".join(str(dtype) for dtype in allowed)
            msg = f"{name} must be {words} when value is {value}, got {tensors[name].dtype}"
            raise TypeError(msg)
    for name in ("spatial_shapes", "level_start_index"):
        if name in tensors and tensors[name].dtype not in TABLE_DTYPES:
            msg = f"{name} must have an integer dtype, got {tensors[name].dtype}"
            raise TypeError(msg)


def _check_devices(tensors: dict[str, Tensor]) -> None:
    device = tensors["value"].device
    for name, tensor in tensors.items():
        # The level table may stay on the host, where it is read anyway.
        on_host = name in {"spatial_shapes", "level_start_index"} and tensor.device.type == "cpu"
        if tensor.device != device and not on_host:
            msg = f"{name} must be on {device} like value, got {tensor.device}"
            raise ValueError(msg)


def check_device(device: torch.device, architecture: Architecture) -> None:
    """Check that kernels can run on a device.

    Raises:
        ValueError: the device is neither a GPU nor, with the interpreter, the CPU.
        RuntimeError: the interpreter cannot run with the installed NumPy.
    """
    problem = interpreter_problem(np.__version__, triton.__version__) if architecture == "interpreter" else None
    if problem is not None:
        raise RuntimeError(problem)
    if device.type == "cuda" or (device.type == "cpu" and architecture == "interpreter"):
        return
    msg = f"value must be on a CUDA device, got {device}"
    if device.type == "cpu":
        msg += "; to run on the CPU, set TRITON_INTERPRET=1 in the environment before Triton is imported"
    raise ValueError(msg)


def is_run_to_run(determinism: str | None) -> bool:
    """Whether grad_value has to be the same in every run: on request, else when PyTorch is told so for everything."""
    return torch.are_deterministic_algorithms_enabled() if determinism is None else determinism == "run_to_run"


def alert_not_deterministic() -> None:
    """Do for a grad_value by atomics what PyTorch's own operators do when deterministic algorithms are asked for.

    Raises:
        RuntimeError: `torch.use_deterministic_algorithms(True)` is on; with `warn_only=True` it is a warning.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return
    msg = (
        'determinism="not_guaranteed" accumulates grad_value with atomics, but '
        'torch.use_deterministic_algorithms(True) is on; pass determinism=None or "run_to_run", use warn_only=True, '
        "or compute no gradient of value"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(msg)
    warnings.warn(msg, stacklevel=2)


@cache
def interpreter_problem(numpy: str, triton: str) -> str | None:
    """Return why Triton's interpreter of one version cannot run with NumPy of another, or None."""

    def release(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split(".")[:2])

    if release(numpy) < (2, 4) or release(triton) >= (3, 9):
        return None
    return (
        f"Triton {triton}'s interpreter does not work with NumPy {numpy}: its loops over runtime bounds fail; "
        f"install numpy<2.4 or triton>=3.9"
    )
