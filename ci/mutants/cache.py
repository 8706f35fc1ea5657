"""Attempts that are known already: kept by a hash of everything that they depend on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .mutant import Control, Mutant, edited_sources
from .results import Attempt

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".msda" / "mutants"
# Tests of the harness decide nothing; of this package, what draws and judges does.
SOURCES = ("msda/*.py", "reference/*.py", "properties/*.py", "properties/corpus/*.json")
OURS = ("hunter.py", "schedule.py", "worker.py", "package.py", "operators.py", "results.py")


def digest_of_sources(root: Path = ROOT) -> str:
    """Hash the operator, the reference, the properties and what hunts with them.

    Args:
        root: of the repository.
    """
    files = [path for pattern in SOURCES for path in sorted(root.glob(pattern))]
    return _digest(files + [root / "ci" / "mutants" / name for name in OURS], root)


def _digest(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


class Cache:
    """Attempts by key, one small file each.

    Attributes:
        folder: where they are.
        context: what all of them depend on besides the mutant: sources, device, versions.
        enabled: whether anything is read.
    """

    def __init__(self, context: Mapping[str, Any], *, folder: Path = FOLDER, enabled: bool = True) -> None:
        self.folder = folder
        self.context = json.dumps(context, sort_keys=True)
        self.enabled = enabled

    def key(self, subject: Mutant | Control, **how: object) -> str:
        """Hash one attempt's subject and circumstances.

        Args:
            subject: its edits count, what is told of it does not.
            how: seed, time to minimise, number of cases.
        """
        variant = subject.variant if isinstance(subject, Mutant) else ()
        parts: dict[str, Any] = {
            "edits": edited_sources(subject.edits, subject.name),
            "variant": [dataclasses.asdict(edit) for edit in variant],
            "how": how,
        }
        if isinstance(subject, Control):
            parts |= {"operator": subject.operator, "declares": dict(subject.declares), "uniform": subject.uniform}
        text = self.context + json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Attempt | None:
        """Return the attempt of a key, or None where there is none that can be read."""
        if not self.enabled:
            return None
        try:
            return Attempt.from_dict(json.loads((self.folder / f"{key}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def put(self, key: str, attempt: Attempt) -> None:
        """Keep an attempt. One that took too long is not kept: that is about the machine too."""
        if attempt.kind == "timeout":
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}.json"
        part = path.with_suffix(f".{id(attempt)}.part")
        part.write_text(json.dumps(attempt.as_dict()))
        part.replace(path)
