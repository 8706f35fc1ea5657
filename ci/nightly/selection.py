"""Which tests a run is about, and what `--quick` leaves out."""

from __future__ import annotations

from pathlib import Path

PROPERTIES = Path(__file__).resolve().parents[2] / "properties"
# What holds every element against the reference, and what repeats runs: most faults show there, in the fewest
# launches. Relations between calls, PyTorch's contracts, finite differences and calls of gigabytes are left to the
# night.
QUICK = (
    "test_corpus.py",
    "test_forward.py",
    "test_gradients.py::test_gradients_within_bound",
    "test_exact_float64.py",
    "test_lattice.py",
    "test_accumulators.py",
    "test_empty.py",
    "test_skipped.py",
    "test_determinism.py::test_runs_agree",
)


def arguments(*, quick: bool, only: str) -> list[str]:
    """Return the arguments of pytest that select the tests.

    Args:
        quick: leave the dear properties out.
        only: expression as of pytest's `-k`, "" for all.
    """
    chosen = [str(PROPERTIES / name) for name in QUICK] if quick else [str(PROPERTIES)]
    chosen.append(f"--ignore={PROPERTIES / 'tests'}")
    return [*chosen, "-k", only] if only else chosen
