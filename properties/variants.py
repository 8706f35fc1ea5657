"""The variants that pytest makes of a parametrised test function, for those who run it without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any


def variants(function: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arguments of each variant that a test function is parametrised with, besides its harness."""
    choices: list[list[tuple[str, dict[str, Any]]]] = []
    for mark in getattr(function, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names, rows = mark.args[0], mark.args[1]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        arguments = [dict(zip(names, row if len(names) > 1 else (row,), strict=True)) for row in rows]
        labels = mark.kwargs.get("ids") or str
        shown = [labels(row) for row in rows] if callable(labels) else list(labels)
        choices.append(list(zip(shown, arguments, strict=True)))
    for combination in product(*choices):
        label = "-".join(label for label, _ in combination)
        yield label, {name: value for _, part in combination for name, value in part.items()}
