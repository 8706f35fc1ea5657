"""Launch plans: pure functions from shapes, strides, dtypes and the architecture to block sizes and buffer dtypes.

Plans are fixed, not tuned: an autotuner runs every candidate on the live buffers, and a kernel that accumulates would
then count its contributions several times. They are also few, so that random shapes do not mean random compilations:
per dtype cell narrow and broad channel blocks with vectors, and one kernel without.

On "interpreter" (Triton's CPU interpreter) blocks of queries are larger, because time there goes by the number of
programs, and bfloat16 results are kept in float32 buffers that PyTorch rounds afterwards: the interpreter truncates
where it should round to nearest, and it has no bfloat16 atomics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

import torch

Architecture = Literal["cuda", "interpreter"]
Accumulate = Literal["float32", "native"]
Pass = Literal["forward", "backward"]

INT32_LIMIT = 2**31
VECTOR_BYTES = 16

NARROW, BROAD = 32, 64  # channels of a block
NUM_WARPS = 1
INTERPRETER_ROWS = (4, 32)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The sizes of one call.

    Attributes:
        batch: B.
        pixels: S, of all levels together.
        heads: M.
        channels: D, of one head.
        queries: Q.
        levels: L.
        points: K, of one level.
    """

    batch: int
    pixels: int
    heads: int
    channels: int
    queries: int
    levels: int
    points: int

    @property
    def samples(self) -> int:
        """L * K, the samples of one query and head."""
        return self.levels * self.points

    @property
    def empty(self) -> bool:
        """Whether the call has no output element or no sample, so that there is nothing to launch."""
        return 0 in (self.batch, self.queries, self.samples, self.heads, self.channels)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one kernel is launched.

    Attributes:
        programs: size of the one-dimensional grid.
        query_blocks: blocks of queries.
        channel_blocks: blocks of channels that the grid is split into (the backward walks them in the program: 1).
        block_q: queries of a program.
        block_p: samples of a query that are processed at once.
        block_d: channels that are processed at once.
        loop_d: whether the program may have more than one block of channels (backward only).
        vec: elements of value in one 16-byte access, or 1 where strides or addresses do not allow it.
        wide: whether offsets inside a batch entry need 64 bits.
        num_warps: warps of a program.
        compute: dtype of the arithmetic.
    """

    programs: int
    query_blocks: int
    channel_blocks: int
    block_q: int
    block_p: int
    block_d: int
    loop_d: bool
    vec: int
    wide: bool
    num_warps: int
    compute: torch.dtype


def compute_dtype(value: torch.dtype) -> torch.dtype:
    """The dtype of the arithmetic: float64 for float64 values, float32 for all others."""
    return torch.float64 if value == torch.float64 else torch.float32


def buffer_dtype(result: torch.dtype, architecture: Architecture) -> torch.dtype:
    """The dtype of the buffer that a kernel stores a result of dtype `result` in."""
    return torch.float32 if architecture == "interpreter" and result == torch.bfloat16 else result


def accumulator_dtype(value: torch.dtype, accumulate: Accumulate, architecture: Architecture) -> torch.dtype:
    """The dtype that grad_value is accumulated in.

    Raises:
        NotImplementedError: native bfloat16 accumulation in the interpreter, which has no bfloat16 atomics.
    """
    if accumulate == "float32":
        return compute_dtype(value)
    if architecture == "interpreter" and value == torch.bfloat16:
        msg = 'accumulate="native" with a bfloat16 value: Triton\'s interpreter has no bfloat16 atomics, use a GPU'
        raise NotImplementedError(msg)
    return value


def block_edges(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """The block sizes in use, where a partial block makes an edge case: "queries", "samples" and "channels"."""
    rows = {
        _rows(architecture, narrow=narrow, vectorised=vectorised, double=double)
        for narrow, vectorised, double in product((True, False), repeat=3)
    }
    queries, samples = (tuple(sorted({row[axis] for row in rows})) for axis in (0, 1))
    return {"queries": queries, "samples": samples, "channels": (NARROW, BROAD)}


@lru_cache(maxsize=1024)
def make_plan(
    kernel: Pass,
    problem: Problem,
    value_dtype: torch.dtype,
    value_strides: tuple[int, int, int, int],
    *,
    aligned: bool,
    architecture: Architecture,
) -> Plan:
    """Plan the launch of one kernel.

    Args:
        kernel: "forward" or "backward".
        problem: sizes, none of them making the call empty.
        value_dtype: dtype of value.
        value_strides: strides of value in elements; that of the channels is 1 unless there is one channel.
        aligned: whether the addresses of all tensors with a channel axis are multiples of 16 bytes.
        architecture: "cuda" or "interpreter".

    Returns:
        The plan, the same one for the same arguments.

    Raises:
        ValueError: the call needs more programs than a grid axis has, or an axis is longer than an index holds.
    """
    vec = _vector_width(problem, value_dtype, value_strides) if aligned else 1
    # Odd channel counts and addresses are slow in any case, and not worth kernels of their own for broad rows.
    narrow = problem.channels <= NARROW or vec == 1
    # The backward needs twice the registers of the forward, so it takes broad rows in several narrow blocks.
    block_d = NARROW if narrow or kernel == "backward" else BROAD
    block_q, block_p = _rows(architecture, narrow=narrow, vectorised=vec > 1, double=value_dtype == torch.float64)
    query_blocks = -(-problem.queries // block_q)
    channel_blocks = -(-problem.channels // block_d) if kernel == "forward" else 1
    programs = problem.batch * problem.heads * query_blocks * channel_blocks
    _check_limits(problem, programs)
    return Plan(
        programs=programs,
        query_blocks=query_blocks,
        channel_blocks=channel_blocks,
        block_q=block_q,
        block_p=block_p,
        block_d=block_d,
        loop_d=kernel == "backward" and (problem.channels > NARROW or vec == 1),
        vec=vec,
        wide=_needs_int64(kernel, problem, value_strides[1], block_q),
        num_warps=NUM_WARPS,
        compute=compute_dtype(value_dtype),
    )


def _rows(architecture: Architecture, *, narrow: bool, vectorised: bool, double: bool) -> tuple[int, int]:
    # (BLOCK_Q, BLOCK_P): as many samples as a warp holds without spilling registers, at best one a lane. Without
    # vectors a thread holds one channel of every row, hence fewer rows.
    if architecture == "interpreter":
        return INTERPRETER_ROWS
    if not vectorised:
        return 1, 2 if double else 4
    if double:
        return 1, 4
    return 2 if narrow else 1, 16


def _vector_width(problem: Problem, dtype: torch.dtype, strides: tuple[int, int, int, int]) -> int:
    width = VECTOR_BYTES // dtype.itemsize
    sizes = (problem.batch, problem.pixels, problem.heads)
    # The stride of an axis of length 1 is never used and may be anything.
    used = [stride for stride, size in zip(strides[:3], sizes, strict=True) if size > 1]
    return width if all(extent % width == 0 for extent in (problem.channels, *used)) else 1


def _needs_int64(kernel: Pass, problem: Problem, pixel_stride: int, block_q: int) -> bool:
    # Pixel numbers themselves must fit too: an expanded value has a pixel stride of 0.
    extent = problem.pixels * max(pixel_stride, 1) + problem.channels
    if kernel == "backward":
        # grad_value is contiguous, and so are the rows of grad_output that one program reads.
        row = problem.heads * problem.channels
        extent = max(extent, max(problem.pixels, block_q) * row + problem.channels)
    return extent >= INT32_LIMIT


def _check_limits(problem: Problem, programs: int) -> None:
    if programs >= INT32_LIMIT:
        msg = (
            f"value and sampling_locations: {problem} needs {programs} programs, more than the {INT32_LIMIT - 1} of "
            f"one launch; split the call along B or Q"
        )
        raise ValueError(msg)
    # Rounded up to whole blocks, these are 32-bit indices in the kernels.
    margin = INT32_LIMIT - BROAD
    for name, extent in (("Q", problem.queries), ("L*K", problem.samples), ("D", problem.channels)):
        if extent > margin:
            msg = f"{name} must be at most {margin}, got {extent}"
            raise ValueError(msg)
