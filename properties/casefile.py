"""Case files: a failing recipe with where it came from, as JSON that outlives this session and these versions."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recipe import Recipe

FORMAT = 1
ORIGIN = ("property", "subject", "device", "failure")


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """One failing case.

    Attributes:
        recipe: what to build.
        property: node id of the property that failed, its variant included; "" when nobody noted it.
        subject: "package.module:callable" that failed.
        device: device type that it failed on.
        failure: first line of the failure.
    """

    recipe: Recipe
    property: str = ""
    subject: str = ""
    device: str = ""
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, as they are written."""
        origin = {name: getattr(self, name) for name in ORIGIN}
        return {"format": FORMAT, **origin, "recipe": self.recipe.to_dict()}

    def write(self, folder: Path) -> Path:
        """Write into a folder, under a name that follows from the property, the subject and the recipe."""
        plain = self.to_dict()
        identity = json.dumps([self.property, self.subject, plain["recipe"]])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        readable = re.sub(r"\W+", "-", self.property.rpartition("::")[2]).strip("-") or "case"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{readable}-{digest}.json"
        path.write_text(json.dumps(plain, indent=2) + "\n")
        return path

    def command(self, path: Path, *, root: Path, folder: Path) -> list[str]:
        """Return the command that runs this case again on the device type that it failed on.

        Args:
            path: where the case was written.
            root: folder that the property's node id starts from.
            folder: where the command will be started.
        """
        script = root / "ci" / "run"
        if script.exists():
            # It finds the environment, from wherever it is called.
            again = [os.path.relpath(script, folder), "test", self.property, "-n", "0"]
            return [*again, "--msda-case", os.path.relpath(path, folder), "--msda-device", self.device]
        file, colons, function = self.property.partition("::")
        test = os.path.relpath(root / file, folder) + colons + function
        case = ["--msda-case", os.path.relpath(path, folder)]
        return ["python", "-m", "pytest", test, *case, "--msda-device", self.device]


def read(path: Path) -> CaseFile:
    """Read a case file, or a file with nothing but a recipe.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is neither.
    """
    from .recipe import Recipe  # noqa: PLC0415 - imports torch

    try:
        plain: Any = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"case: {str(path)!r} is not JSON: {error}") from None
    if not isinstance(plain, dict) or "recipe" not in plain:
        return CaseFile(recipe=Recipe.from_dict(plain))
    if plain.get("format") != FORMAT:
        raise ValueError(f"case: {str(path)!r} has format {plain.get('format')!r}, expected {FORMAT}")
    origin = {name: str(plain.get(name, "")) for name in ORIGIN}
    return CaseFile(recipe=Recipe.from_dict(plain["recipe"]), **origin)
