"""Edited copies of the operator package, as modules on disk: Triton reads the file of a kernel when it compiles it."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .mutant import PACKAGE, Edit, Mutant, edited_sources, identifier

if TYPE_CHECKING:
    from properties.subject import Subject

# As the shipped subject declares itself; it has no other way to tell for a module of its own.
MODULE = '''"""The shipped operator with a fault: {title}."""

from msda_{name} import multi_scale_deformable_attention


def operator(*operands):
    """Call it."""
    return multi_scale_deformable_attention(*operands)


operator.corner_sum = "nested"
operator.uniform = True
'''


def copy(folder: Path, edits: Sequence[Edit], *, name: str) -> None:
    """Write an edited copy of `msda` into a new folder.

    Args:
        folder: the package to be; it must not exist.
        edits: applied in order.
        name: whose edits they are.

    Raises:
        ValueError: an edit does not apply.
        FileExistsError: the folder is there.
    """
    sources = edited_sources(edits, name)
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    for file, source in sources.items():
        (folder / file).write_text(source)


def write(mutant: Mutant, folder: Path) -> str:
    """Write a mutant as a module and the package that it needs, and return what names it as a subject.

    Raises:
        FileExistsError: the folder has it already.
    """
    name = identifier(mutant.name)
    copy(folder / f"msda_{name}", mutant.edits, name=mutant.name)
    (folder / f"{name}.py").write_text(MODULE.format(title=mutant.name, name=name))
    return f"{name}:operator"


@contextmanager
def edited(*edits: Edit, name: str) -> Iterator[str]:
    """Import a copy of `msda` with edits applied, and yield the name of the package.

    The copy lives until the context ends.

    Args:
        edits: applied in order.
        name: whose edits they are; made the suffix of the package's name.

    Raises:
        ValueError: an edit does not apply.
    """
    package = f"msda_{identifier(name)}"
    with TemporaryDirectory(prefix="msda-mutant-") as directory:
        copy(Path(directory) / package, edits, name=name)
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
def mutated(mutant: Mutant, *, device: str) -> Iterator[Subject]:
    """Yield the shipped operator with the edits of a mutant, as a subject.

    Args:
        mutant: whose edits.
        device: "cuda" or "cpu".

    Raises:
        ValueError: an edit does not apply.
    """
    from dataclasses import replace  # noqa: PLC0415

    from properties.subject import shipped  # noqa: PLC0415 - imports torch and triton

    with edited(*mutant.edits, name=mutant.name) as package:
        subject = shipped(package, device=device)
        if not mutant.variant:
            yield subject
            return
        with edited(*mutant.edits, *mutant.variant, name=f"{mutant.name} variant") as other:
            yield replace(subject, variants=(shipped(other, device=device),))
