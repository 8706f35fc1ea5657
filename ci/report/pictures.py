"""The pictures of the faults, drawn from their case files alone: a report must not run a subject that may crash."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from pathlib import Path

from properties import casefile
from properties.declaration import OPERANDS

from .load import Run
from .verdict import Fault

# Nobody looks at more, and each takes a third of a second and 60 KB of the page.
MOST = 12
# Case files above that are not for reading; their path is told.
MOST_CHARACTERS = 20_000
# Elements of all operands of a case that is built for its picture.
MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One fault as the page shows it.

    Attributes:
        fault: what was found.
        picture: address of the picture, with the picture in it; "" without one.
        why: there is no picture.
        text: of the case file, "" where it is long or missing.
    """

    fault: Fault
    picture: str = ""
    why: str = ""
    text: str = ""


def shown(run: Run, faults: list[Fault]) -> list[Shown]:
    """Draw what can be drawn."""
    return [_shown(run.folder, fault, number) for number, fault in enumerate(faults)]


def _shown(folder: Path, fault: Fault, number: int) -> Shown:
    if not fault.case:
        return Shown(fault=fault, why="no case file was written")
    text = ""
    try:
        path = _below(folder, fault.case)
        text = path.read_text(encoding="utf-8")
        text = text if len(text) <= MOST_CHARACTERS else ""
        if number >= MOST:
            raise ValueError(f"only the first {MOST} faults are drawn")
        return Shown(fault=fault, text=text, picture=_address(path))
    except (OSError, ValueError, IndexError) as error:
        return Shown(fault=fault, text=text, why=str(error).removeprefix("picture: "))


def _below(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"case is {name!r}, expected a path below the run's folder")
    return path


def _address(path: Path) -> str:
    from ci import picture  # noqa: PLC0415 - imports torch

    case = casefile.read(path)
    size = sum(math.prod(case.recipe.shape(operand)) for operand in OPERANDS)
    if size > MOST_ELEMENTS:
        raise ValueError(f"the case has {size} elements, expected at most {MOST_ELEMENTS}")
    drawn = picture.recorded(case)
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.encode()).decode()
