"""How many cases of each input class a run must have judged at least, so that a clean run says something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from properties.subject import Subject

# Of all cases that were drawn. The rarest class, a permuted grad_output, is 1.1 % of what most properties draw; some
# properties draw contiguous operands alone.
LEAST_PART = 1 / 1000
# With fewer cases a floor would be missed by chance.
FEWEST_CASES = 2500
BEYOND = ("location: infinite", "location: nan")
FAR_BEYOND = (*BEYOND, "location: huge")


def reachable(required: Iterable[str], subject: Subject) -> list[str]:
    """Return the classes that can be drawn for a subject; what it does not declare is never drawn.

    Args:
        required: classes of a run over all dtype cells and layouts.
        subject: what it declares.
    """
    cells = {f"cell: {cell.name}" for cell in subject.cells}
    left_out = {"propagate": BEYOND, "overflow": FAR_BEYOND}.get(subject.nonfinite, ())

    def fits(name: str) -> bool:
        if name.startswith("cell: "):
            return name in cells
        if name.startswith("layout ") and subject.layouts == "contiguous":
            return name.endswith(": contiguous")
        return name not in left_out

    return sorted(name for name in required if fits(name))


def floors(classes: Sequence[str], *, cases: int) -> dict[str, int]:
    """Return the least number of cases of each class.

    Args:
        classes: that can be reached.
        cases: that were drawn in all.
    """
    if cases < FEWEST_CASES:
        return dict.fromkeys(classes, 0)
    return dict.fromkeys(classes, int(cases * LEAST_PART))


def missed(counted: Mapping[str, int], wanted: Mapping[str, int]) -> list[str]:
    """Say which classes are below their floors, one line each."""
    return [
        f"class {name!r} has {counted.get(name, 0)} cases, its floor is {floor}"
        for name, floor in wanted.items()
        if counted.get(name, 0) < floor
    ]
