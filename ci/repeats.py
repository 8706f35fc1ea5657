"""Repeat the backward of one large case in which many samples collide, and hold every run against the bounds.

    python -m ci.repeats --count 10000 --json FILE

Needs a GPU. Exit status: 0 if both modes keep their promise, 1 if one does not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

import msda
from properties.probe import atomics_flush
from reference.expect import expect
from reference.inputs import Inputs
from reference.model import Arithmetic
from reference.repeat import run_to_run

from .backward_bench import environment

LEVELS = ((64, 96), (16, 24))
BATCH, QUERIES, HEADS, CHANNELS, POINTS = 2, 2048, 8, 32, 4
PLACES = 64


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How grad_value differed over runs of one call, float32.

    Attributes:
        determinism: mode of the operator.
        runs: runs after the first one.
        differing_runs: runs with any element whose bits are not those of the first.
        unequal_elements: such elements, summed over the runs.
        elements: elements of grad_value.
        collisions: largest number of contributions to one element.
        spread: largest max - min of an element over all runs.
        spread_ratio: largest (max - min) / bound of an element; the bound is that of `reference.repeat`.
        error_ratio: largest |result - exact| / bound of any element of any run; that of `reference.bounds`.
    """

    determinism: str
    runs: int
    differing_runs: int
    unequal_elements: int
    elements: int
    collisions: int
    spread: float
    spread_ratio: float
    error_ratio: float

    @property
    def kept(self) -> bool:
        """Whether every run was within its bounds, and bitwise equal where the mode promises it."""
        return self.spread_ratio <= 1.0 and self.error_ratio <= 1.0


def colliding(device: torch.device, *, queries: int = QUERIES, seed: int = 0) -> Inputs:
    """Inputs whose samples lie at 64 places of each level, so that a sampled pixel gets hundreds of contributions."""
    generator = torch.Generator(device).manual_seed(seed)
    pixels = sum(height * width for height, width in LEVELS)
    places = torch.rand((PLACES, 2), device=device, generator=generator)
    grid = (BATCH, queries, HEADS, len(LEVELS), POINTS)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator)

    return Inputs(
        value=normal(BATCH, pixels, HEADS, CHANNELS),
        levels=LEVELS,
        locations=places[torch.randint(PLACES, grid, device=device, generator=generator)],
        weights=normal(*grid),
        grad_output=normal(BATCH, queries, HEADS * CHANNELS),
    )


def repeat(inputs: Inputs, determinism: str, count: int) -> Repeats:
    """Repeat the backward and compare grad_value with that of the first run and with the reference.

    Args:
        inputs: float32 operands.
        determinism: mode of the operator.
        count: runs after the first one.
    """
    shapes, starts = inputs.level_table()
    leaves = [tensor.detach().requires_grad_() for tensor in (inputs.value, inputs.locations, inputs.weights)]
    out = msda.multi_scale_deformable_attention(
        leaves[0], shapes, starts, leaves[1], leaves[2], determinism=determinism
    )

    def backward() -> torch.Tensor:
        return torch.autograd.grad(out, leaves[:1], inputs.grad_output, retain_graph=True)[0]

    first = backward()
    low, high = first.clone(), first.clone()
    runs, elements = (torch.zeros((), dtype=torch.int64, device=first.device) for _ in range(2))
    differs = torch.zeros_like(first, dtype=torch.bool)
    for _ in track(range(count), description=determinism):
        again = backward()
        # As integers: 0 and -0 differ, and a NaN equals itself.
        unequal = again.view(torch.int32) != first.view(torch.int32)
        elements += unequal.sum()
        runs += unequal.any()
        differs |= unequal
        low, high = torch.minimum(low, again), torch.maximum(high, again)

    arithmetic = Arithmetic(corner_sum="nested", flush_atomics=atomics_flush(first.device))
    expectation = expect(inputs, arithmetic)
    allowed = run_to_run(expectation, arithmetic, first.dtype, deterministic=determinism == "run_to_run")
    assert expectation.contributions is not None
    return Repeats(
        determinism=determinism,
        runs=count,
        differing_runs=int(runs),
        unequal_elements=int(elements),
        elements=first.numel(),
        collisions=int(expectation.contributions.max()),
        spread=(high - low).max().item(),
        spread_ratio=allowed.ratio(low, high, differs).max().item(),
        error_ratio=max(allowed.bounded.ratio(extreme).max().item() for extreme in (low, high)),
    )


def main(arguments: list[str] | None = None) -> int:
    """Repeat both modes, print what was found, write JSON on request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10000, metavar="N", help="runs per mode (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write("ci.repeats: no GPU found; expected a CUDA device\n")
        return 2
    console = Console(width=160)
    inputs = colliding(torch.device("cuda"))
    found = []
    for determinism in ("run_to_run", "not_guaranteed"):
        found.append(repeat(inputs, determinism, options.count))
        console.print(asdict(found[-1]))
    if options.json is not None:
        results = {"environment": environment(), "repeats": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(one.kept for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
