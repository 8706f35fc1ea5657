"""Seeded faults: the shipped operator with one small named edit of its source, to show that the properties catch it.

A fault that no longer applies to the source fails loudly. The edited package is a copy under another name, so both can
run in one process.

    python -m ci.faults FOLDER     write every fault as a module with a callable `operator`, to name as a subject
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from properties.subject import Subject, shipped

PACKAGE = Path(__file__).parent.parent / "msda"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One edit.

    Attributes:
        name: what was done, in a few words.
        before: source text that stands at least `occurrence` + 1 times in the file.
        after: its replacement.
        occurrence: which of the places is edited, counted from 0.
        file: module of `msda` that is edited.
    """

    name: str
    before: str
    after: str
    occurrence: int = 0
    file: str = "kernels.py"

    def apply(self, source: str) -> str:
        """Edit a module's source.

        Raises:
            ValueError: the text is not there as often as the fault says.
        """
        pieces = source.split(self.before)
        if len(pieces) < self.occurrence + 2:
            raise ValueError(
                f"fault {self.name!r}: {self.before!r} stands {len(pieces) - 1} times in msda/{self.file}, "
                f"expected at least {self.occurrence + 1}; the kernel has changed, so must the fault"
            )
        head = self.before.join(pieces[: self.occurrence + 1])
        tail = self.before.join(pieces[self.occurrence + 1 :])
        return head + self.after + tail


COORDINATE = "x = position.to(COMPUTE) * extent - 0.5"

# Edits that might reach past the end of a tensor are in the forward, or clamped: a fault must be caught by its
# numbers, not by chance.
FAULTS = [
    Fault(name="half-pixel constant missing", before=COORDINATE, after="x = position.to(COMPUTE) * extent"),
    Fault(
        name="height and width swapped in one place",
        before="grad_y = height.to(COMPUTE) * weight",
        after="grad_y = width.to(COMPUTE) * weight",
    ),
    Fault(
        name="<= for < in a bound check",
        before="in_right = live & (left + 1 < width)",
        # Only where a row follows: one past the last pixel of all is not ours to read.
        after="in_right = live & (left + 1 <= width - (top + 2 >= height).to(width.dtype))",
    ),
    Fault(name="one corner's weight wrong", before="(ly * lx)[:, None] * v11", after="(ly * hx)[:, None] * v11"),
    Fault(name="a missing corner", before=" + (ly * lx)[:, None] * v11", after=""),
    Fault(
        name="location gradient without the width",
        before="grad_x = width.to(COMPUTE) * weight",
        after="grad_x = weight",
    ),
    Fault(
        name="sign of one gradient term",
        before="hx * (d10 - d00) + lx * (d11 - d01)",
        after="hx * (d10 - d00) - lx * (d11 - d01)",
    ),
    Fault(
        name="store instead of atomic add",
        before='tl.atomic_add(pointers, contribution, mask=mask, sem="relaxed")',
        after="tl.store(pointers, contribution, mask=mask)",
    ),
    Fault(
        name="bfloat16 accumulator",
        before="(BLOCK_Q, BLOCK_P, BLOCK_D)), axis=1)",
        after="(BLOCK_Q, BLOCK_P, BLOCK_D)), axis=1)\n        acc = acc.to(tl.bfloat16).to(COMPUTE)",
    ),
    Fault(
        name="coordinate in half precision",
        before=COORDINATE,
        after="x = (position.to(tl.float16) * size.to(tl.float16) - 0.5).to(COMPUTE)",
    ),
    Fault(
        name="level start off by one row",
        before="pixel = start + top * width + left",
        after="pixel = tl.maximum(start - width, 0) + top * width + left",
    ),
    Fault(
        name="last channel masked away", before="channel_valid = channel < D", after="channel_valid = channel < D - 1"
    ),
]


def identifier(fault: Fault) -> str:
    """Return the name of a fault as Python writes names."""
    spelled = fault.name.replace("<=", "less or equal").replace("<", "less")
    return "".join(c if c.isalnum() else "_" for c in spelled)


def _copy(folder: Path, edits: Iterable[Fault]) -> None:
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    for edit in edits:
        path = folder / edit.file
        path.write_text(edit.apply(path.read_text()))


# As the shipped subject declares itself; it has no other way to tell for a module of its own.
MODULE = '''"""The shipped operator with a fault: {fault.name}."""

from msda_{name} import multi_scale_deformable_attention


def operator(*operands):
    """Call it."""
    return multi_scale_deformable_attention(*operands)


operator.corner_sum = "nested"
operator.uniform = True
'''


def write(fault: Fault, folder: Path) -> str:
    """Write a fault as a module and the package that it needs, and return what names it as a subject.

    Raises:
        FileExistsError: the folder has it already.
    """
    name = identifier(fault)
    _copy(folder / f"msda_{name}", [fault])
    (folder / f"{name}.py").write_text(MODULE.format(fault=fault, name=name))
    return f"{name}:operator"


@contextmanager
def edited(*edits: Fault, name: str) -> Iterator[str]:
    """Import a copy of `msda` with edits applied, and yield the name of the package.

    Triton reads the source file when it compiles, so the copy lives until the context ends.

    Args:
        edits: applied in order.
        name: suffix of the package's name, letters, digits and underscores.
    """
    package = f"msda_{name}"
    with TemporaryDirectory() as directory:
        _copy(Path(directory) / package, edits)
        sys.path.insert(0, directory)
        importlib.invalidate_caches()
        try:
            importlib.import_module(package)
            yield package
        finally:
            sys.path.remove(directory)
            for module in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
                del sys.modules[module]


@contextmanager
def faulty(fault: Fault, *, device: str) -> Iterator[Subject]:
    """Yield the shipped operator with one fault, as a subject."""
    name = f"fault_{identifier(fault)}"
    with edited(fault, name=name) as package:
        yield shipped(package, device=device)


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
