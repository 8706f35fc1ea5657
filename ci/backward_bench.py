"""Time the backward passes against each other. Needs a GPU.

    python -m ci.backward_bench --json FILE       both modes, and DeformOps where it is installed

Times are medians of device time over replays of a CUDA graph of the whole backward as autograd calls it, fills and
copies included. "cold" flushes the L2 cache before every replay, "warm" does not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from rich.console import Console
from rich.table import Table
from torch import Tensor

import msda

PYRAMID = ((100, 167), (50, 84), (25, 42), (13, 21))
HEADS, CHANNELS, POINTS = 8, 32, 4
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FLUSH_BYTES = 2**28
REPLAYS = 20

Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The shape of a call and how its locations are drawn: uniform in [0, 1], or around the pixel of the query."""

    name: str
    batch: int
    queries: int
    local: bool = False


PIXELS = sum(height * width for height, width in PYRAMID)
PRESETS = (
    Preset(name="decoder", batch=4, queries=300),
    Preset(name="encoder uniform", batch=2, queries=PIXELS),
    Preset(name="encoder local", batch=2, queries=PIXELS, local=True),
)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median device time of one backward in microseconds; None where it could not run, with the reason."""

    preset: str
    dtype: str
    backward: str
    cold: float | None
    warm: float | None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """Operands of one call and the gradient that enters its backward."""

    value: Tensor
    shapes: Tensor
    starts: Tensor
    locations: Tensor
    weights: Tensor
    grad_output: Tensor

    def prepare(self, operator: Operator) -> Callable[[], tuple[Tensor, ...]]:
        """Run the forward and return the backward, which can be called many times."""
        leaves = [t.detach().requires_grad_() for t in (self.value, self.locations, self.weights)]
        out = operator(leaves[0], self.shapes, self.starts, leaves[1], leaves[2])
        return lambda: torch.autograd.grad(out, leaves, self.grad_output, retain_graph=True)


def make_call(preset: Preset, dtype: torch.dtype, *, seed: int = 0) -> Call:
    """Draw the operands of a preset on the GPU, all of one dtype."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = torch.tensor(PYRAMID, device="cuda")
    sizes = shapes.prod(dim=1)
    grid = (preset.batch, preset.queries, HEADS, len(PYRAMID), POINTS)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    if preset.local:
        centres = torch.cat([_pixel_centres(height, width) for height, width in PYRAMID])
        # Two pixels of the level that is sampled; (x, y) against (H, W).
        offsets = 2 * normal(*grid, 2) / shapes.flip(1)[:, None, :]
        locations = centres[None, :, None, None, None, :] + offsets
    else:
        locations = torch.rand((*grid, 2), device="cuda", generator=generator)
    weights = normal(*grid[:3], len(PYRAMID) * POINTS).softmax(dim=-1).view(grid)
    return Call(
        value=normal(preset.batch, PIXELS, HEADS, CHANNELS).to(dtype),
        shapes=shapes,
        starts=sizes.cumsum(0) - sizes,
        locations=locations.to(dtype),
        weights=weights.to(dtype),
        grad_output=normal(preset.batch, preset.queries, HEADS * CHANNELS).to(dtype),
    )


def _pixel_centres(height: int, width: int) -> Tensor:
    y = (torch.arange(height, device="cuda") + 0.5) / height
    x = (torch.arange(width, device="cuda") + 0.5) / width
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1).reshape(-1, 2)


def operators(dtype: torch.dtype) -> dict[str, Operator]:
    """The backward passes to compare, by name."""

    def ours(**modes: Any) -> Operator:
        return lambda *operands: msda.multi_scale_deformable_attention(*operands, **modes)

    found = {"atomic": ours(determinism="not_guaranteed"), "run_to_run": ours(determinism="run_to_run")}
    if dtype.itemsize == 2:
        found["atomic native"] = ours(determinism="not_guaranteed", accumulate="native")
    try:
        registry: Any = importlib.import_module("deformops.registry")
    except ImportError:
        return found

    def theirs(float32: bool) -> Operator:
        return lambda *operands: registry.msda(*operands, backend=registry.Backend.TRITON, fp32acc=float32)

    found["DeformOps"] = theirs(True)
    if dtype.itemsize == 2:
        found["DeformOps native"] = theirs(False)
    return found


def time_backward(call: Call, operator: Operator) -> tuple[float, float]:
    """Median device time of the backward in microseconds, after a flush of the L2 cache and without one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        backward = call.prepare(operator)
        for _ in range(3):  # compiles, and lets an autotuner finish
            backward()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        backward()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def median(before: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(REPLAYS):
            before()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1e3 * start.elapsed_time(end))
        return statistics.median(times)

    median(flush.zero_)
    return median(flush.zero_), median(lambda: None)


def timings() -> Iterator[Timing]:
    """Time every preset, dtype and backward."""
    for preset in PRESETS:
        for name, dtype in DTYPES.items():
            call = make_call(preset, dtype)
            for backward, operator in operators(dtype).items():
                common: dict[str, Any] = {"preset": preset.name, "dtype": name, "backward": backward}
                try:
                    cold, warm = time_backward(call, operator)
                except Exception as error:  # a peer that cannot run must not end the comparison
                    yield Timing(cold=None, warm=None, error=f"{type(error).__name__}: {error}"[:300], **common)
                else:
                    yield Timing(cold=cold, warm=warm, **common)


def table(found: list[Timing]) -> Table:
    """One row per preset and dtype, one column per backward: cold / warm."""
    columns = list(dict.fromkeys(timing.backward for timing in found))
    result = Table(title="backward, device time in microseconds, cold / warm L2")
    for column in ("preset", "dtype", *columns):
        result.add_column(column, justify="left" if column in {"preset", "dtype"} else "right")
    cells = {(t.preset, t.dtype, t.backward): t for t in found}
    for preset, dtype in dict.fromkeys((t.preset, t.dtype) for t in found):
        row = [cells.get((preset, dtype, column)) for column in columns]
        shown = ["" if t is None else "failed" if t.cold is None else f"{t.cold:.1f} / {t.warm:.1f}" for t in row]
        result.add_row(preset, dtype, *shown)
    return result


def environment() -> dict[str, str]:
    """GPU and versions."""
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    return {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), **versions}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write JSON on request."""
    parser = argparse.ArgumentParser(description="Compare backward passes on this GPU.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write("ci.backward_bench: no GPU found; expected a CUDA device\n")
        return 2
    console = Console(width=160)
    where = environment()
    console.print(where)
    found: list[Timing] = []

    def save() -> None:
        # After every step: a run on a borrowed machine may be cut short.
        if options.json is not None:
            results = {"environment": where, "timings": [asdict(t) for t in found]}
            options.json.write_text(json.dumps(results, indent=1) + "\n")

    for timing in timings():
        found.append(timing)
        save()
    console.print(table(found))
    for timing in found:
        if timing.error is not None:
            console.print(f"{timing.preset} {timing.dtype} {timing.backward}: {timing.error}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
