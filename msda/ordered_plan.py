"""Launch plan of the backward behind determinism="run_to_run": pure functions, as in `plan`.

Workspace in bytes, of one batch entry, for n = M * Q * L * K samples, with c = 4 (8 for float64) and runs of R = 16 to
64 samples:

    16 n + 8 M (S + L * Q * K) + 4 c D M (S + L * ceil(Q * K / R))

that is 175 MiB an entry for S = Q = 22223, M = 8, D = 32, L = K = 4 and float32 sums. Batch entries are worked on
together as far as WORKSPACE_LIMIT holds them, else one after the other; one entry may exceed the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .plan import INT32_LIMIT, NARROW, VECTOR_BYTES, Architecture, Problem, compute_dtype

WORKSPACE_LIMIT = 2**30

# Items of a counter are ranked against each other, so what collides costs the square; more counters cost memory.
ITEMS_PER_COUNTER = 1
# Shorter runs mean more programs, longer ones less memory: as long as this many programs are left.
RUN_BITS = (6, 5, 4)
ENOUGH_PROGRAMS = 4096
INTERPRETER_RUN_BITS = 2
# A program costs the interpreter about 5 ms, whatever its size: small blocks, with edges between them, for few pixels,
# large ones for a million.
INTERPRETER_BLOCK_S = (128, 2048)
MANY_PIXELS = 2**14
# Indices are rounded up to whole blocks and runs before they are compared.
INDEX_LIMIT = INT32_LIMIT - 2**16


@dataclass(frozen=True, kw_only=True)
class OrderedPlan:
    """How the kernels of one call are launched.

    Attributes:
        entries: batch entries that are worked on at once.
        quota: counters that a level has at least, spread over its cells.
        per_head: counters of one (batch, head).
        run_bits: logarithm of the number of consecutive items that are summed one after the other, a run.
        runs: runs of one (batch, head, level), if all of its samples count.
        block_q: queries of a program that counts or places.
        block_p: samples of a query that it processes at once.
        block_i: items of a program that arranges.
        block_r: runs of a program that sums cells.
        block_s: pixels of a program that sums pixels.
        block_d: channels of a program.
        channel_blocks: blocks of channels that the grid is split into.
        vec: elements of value in one 16-byte access, or 1 where sizes or addresses do not allow it.
        compute: dtype of the arithmetic and of partial sums.
    """

    entries: int
    quota: int
    per_head: int
    run_bits: int
    runs: int
    block_q: int
    block_p: int
    block_i: int
    block_r: int
    block_s: int
    block_d: int
    channel_blocks: int
    vec: int
    compute: torch.dtype


def workspace_bytes(problem: Problem, run: int, compute: torch.dtype) -> int:
    """Bytes of temporary memory per batch entry, beyond inputs and gradients."""
    items = problem.queries * problem.points
    samples = problem.heads * problem.levels * items
    counters = problem.heads * _counters_per_head(problem)
    rows = problem.heads * (problem.pixels + problem.levels * -(-items // run))
    return 16 * samples + 8 * counters + 4 * problem.channels * compute.itemsize * rows


@lru_cache(maxsize=1024)
def make_ordered_plan(
    problem: Problem, value_dtype: torch.dtype, *, aligned: bool, architecture: Architecture
) -> OrderedPlan:
    """Plan the launches of one call.

    Args:
        problem: sizes, none of them making the call empty.
        value_dtype: dtype of value.
        aligned: whether the addresses of grad_output and grad_value are multiples of 16 bytes.
        architecture: "cuda" or "interpreter".

    Returns:
        The plan, the same one for the same arguments.

    Raises:
        ValueError: one batch entry has more samples, counters, rows or programs than 32-bit indices count.
    """
    compute = compute_dtype(value_dtype)
    interpreted = architecture == "interpreter"
    # With four rows a thread has four channels of one row, in loads of 16-bit values and in stores of float32 sums.
    block_r = 32 if interpreted else 4
    channel_blocks = -(-problem.channels // NARROW)
    items = problem.queries * problem.points
    run_bits = INTERPRETER_RUN_BITS
    if not interpreted:
        least = ENOUGH_PROGRAMS * block_r
        samples = problem.batch * problem.heads * problem.levels * items
        run_bits = next((bits for bits in RUN_BITS if samples >= least << bits), RUN_BITS[-1])
    run = 1 << run_bits
    entry = workspace_bytes(problem, run, compute)
    entries = max(1, min(problem.batch, WORKSPACE_LIMIT // entry))
    entries = min(entries, max(1, INDEX_LIMIT // _largest_index(problem, channel_blocks)))
    width = VECTOR_BYTES // value_dtype.itemsize
    _check_limits(problem, channel_blocks)
    return OrderedPlan(
        entries=entries,
        quota=items // ITEMS_PER_COUNTER,
        per_head=_counters_per_head(problem),
        run_bits=run_bits,
        runs=-(-items // run),
        block_q=8,
        block_p=16,
        block_i=256 if interpreted else 128,
        block_r=block_r,
        block_s=_pixels_of_a_program(problem, value_dtype, interpreted),
        block_d=NARROW,
        channel_blocks=channel_blocks,
        vec=width if aligned and problem.channels % width == 0 else 1,
        compute=compute,
    )


def _pixels_of_a_program(problem: Problem, value_dtype: torch.dtype, interpreted: bool) -> int:
    if interpreted:
        return INTERPRETER_BLOCK_S[problem.pixels >= MANY_PIXELS]
    return 16 if value_dtype == torch.float32 else 8


def _counters_per_head(problem: Problem) -> int:
    # A level has chunks * cells counters, at most the larger of its cells and the quota; it is given their sum.
    return problem.pixels + problem.levels * (problem.queries * problem.points // ITEMS_PER_COUNTER)


def _largest_index(problem: Problem, channel_blocks: int) -> int:
    # Of samples, counters, rows, programs of any kernel, and the strides of rows; for one batch entry.
    samples = problem.queries * problem.samples
    counted = max(samples, _counters_per_head(problem)) * channel_blocks
    return problem.heads * max(counted, 4 * problem.channels)


def _check_limits(problem: Problem, channel_blocks: int) -> None:
    largest = _largest_index(problem, channel_blocks)
    if largest > INDEX_LIMIT:
        msg = (
            f'determinism="run_to_run": {problem} needs {largest} indices for each entry of the batch, more than '
            f"{INDEX_LIMIT}; split the call along M or Q"
        )
        raise ValueError(msg)
