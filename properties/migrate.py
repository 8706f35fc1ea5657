"""JSON of an older version of this tool, brought up to the present one step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# From a version to the next: what a newer reader has to change in what an older one wrote.
Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]


def migrated(plain: dict[str, Any], *, field: str, current: int, migrations: Migrations, what: str) -> dict[str, Any]:
    """Return the object as the present version would have written it.

    Args:
        plain: JSON values.
        field: holds the version.
        current: the present one.
        migrations: from each older one to its successor.
        what: the field's name in messages.

    Raises:
        ValueError: a newer version of this tool wrote it, or none did.
    """
    version: Any = plain.get(field)
    if isinstance(version, int) and version > current:
        raise ValueError(f"{what} is {version}, expected at most {current}: a newer version of this tool wrote it")
    while version != current:
        if isinstance(version, bool) or version not in migrations:
            raise ValueError(f"{what} is {version!r}, expected {min(migrations)} to {current}")
        plain = {**migrations[version](plain), field: version + 1}
        version += 1
    return plain
