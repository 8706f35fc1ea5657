"""Twelve wrong kernels to try the harness on, as modules that can be named as a subject.

    python -m ci.faults FOLDER     write each as a module with a callable `operator`

They are mutants of the zoo that `python -m ci mutants` measures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ci.mutants.package import write
from ci.mutants.zoo import named

FAULTS = tuple(
    named(name)
    for name in (
        "half-pixel constant missing",
        "height and width swapped in one place",
        "<= for < in a bound check",
        "one corner's weight wrong",
        "a missing corner",
        "location gradient without the width",
        "sign of one gradient term",
        "store instead of atomic add",
        "bfloat16 accumulator",
        "coordinate in half precision",
        "level start off by one row",
        "last channel masked away",
    )
)


def main(arguments: list[str] | None = None) -> int:
    """Write every fault into a folder and print their names as subjects."""
    parser = argparse.ArgumentParser(description="Write the seeded faults as modules.")
    parser.add_argument("folder", type=Path, help="where to; then put it on PYTHONPATH")
    folder = parser.parse_args(arguments).folder
    for fault in FAULTS:
        sys.stdout.write(write(fault, folder) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
