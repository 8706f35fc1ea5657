"""All mutants by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import TypeVar

from . import zoo_geometry, zoo_gradients, zoo_operator, zoo_plans, zoo_precision
from .mutant import Control, Mutant

Named = TypeVar("Named", Mutant, Control)

MUTANTS: tuple[Mutant, ...] = (
    *zoo_geometry.MUTANTS,
    *zoo_gradients.MUTANTS,
    *zoo_precision.MUTANTS,
    *zoo_plans.MUTANTS,
    *zoo_operator.MUTANTS,
)
_BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def named(name: str) -> Mutant:
    """Return the mutant of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in _BY_NAME:
        raise ValueError(f"mutant: {name!r} given, expected one of those that `python -m ci mutants --list` prints")
    return _BY_NAME[name]


def matching(patterns: Iterable[str], subjects: Sequence[Named]) -> tuple[Named, ...]:
    """Return the mutants or controls whose names match any of some globs, in their usual order; all without a glob.

    Args:
        patterns: as in a shell: `*`, `?` and `[...]`.
        subjects: to choose from.

    Raises:
        ValueError: a glob matches none.
    """
    wanted = tuple(patterns)
    names = [subject.name for subject in subjects]
    found: set[str] = set()
    for pattern in wanted:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise ValueError(f"only: {pattern!r} matches none of the {len(names)} names that --list prints")
        found.update(matches)
    return tuple(subject for subject in subjects if not wanted or subject.name in found)
