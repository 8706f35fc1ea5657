"""Case files: a failing recipe with where it came from, as JSON that outlives this session and these versions."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .explicit import to_hex
from .migrate import Migrations, migrated

if TYPE_CHECKING:
    from .recipe import Recipe
    from .verdict import Evidence

# What a subject is called; here because reading a case must not import torch.
SHIPPED = "msda:multi_scale_deformable_attention"
WIDTH = 120
FORMAT = 2
# Format 2 added what was found: `kind`, `evidence`, `versions`, `seed` and the rest.
MIGRATIONS: Migrations = {1: lambda plain: plain}
TEXTS = ("property", "subject", "device", "gpu", "failure", "kind", "origin")


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """One case and what is known of it. Everything but the recipe may be missing.

    Attributes:
        recipe: what to build; the numbers themselves where they are few, see `properties.explicit`.
        property: node id of the property that failed, its variant included; "" when nobody noted it.
        subject: "package.module:callable" that failed.
        device: device type that it failed on.
        gpu: name of the device.
        failure: first line of the failure.
        kind: class of the failure, one of `kinds.Kind`.
        evidence: the worst element of each output that failed: output, index, expected, got, bound, its parts, ratio
            and the numbers of wrong elements and of all. Numbers that are compared are hexadecimal floats.
        versions: of Python and of the packages, by name.
        seed: of the session that drew the case.
        origin: where the case comes from, for one that is kept for good.
        right: elements whose exact value is known by other means than the reference: output, index and value.
    """

    recipe: Recipe
    property: str = ""
    subject: str = ""
    device: str = ""
    gpu: str = ""
    failure: str = ""
    kind: str = ""
    evidence: tuple[dict[str, Any], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    origin: str = ""
    right: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, as they are written: what happened first, what to build after it."""
        plain: dict[str, Any] = {"format": FORMAT, **{name: getattr(self, name) for name in TEXTS}}
        plain |= {"evidence": list(self.evidence), "versions": self.versions, "seed": self.seed}
        return {**plain, "right": list(self.right), "recipe": self.recipe.to_dict()}

    def to_json(self) -> str:
        """Return JSON text with one field a line, so that two cases compare well in a diff."""
        return dump(self.to_dict()) + "\n"

    def write(self, folder: Path) -> Path:
        """Write into a folder, under a name that follows from the property, the subject and the recipe."""
        plain = self.to_dict()
        identity = json.dumps([self.property, self.subject, plain["recipe"]])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        readable = re.sub(r"\W+", "-", self.property.rpartition("::")[2]).strip("-") or "case"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{readable}-{digest}.json"
        path.write_text(self.to_json())
        return path

    def command(self, path: Path, *, root: Path, folder: Path) -> list[str]:
        """Return the command that runs this case again; its property, subject and device are in the file.

        Args:
            path: where the case was written.
            root: of the run, where `ci/run` stands in this project.
            folder: where the command will be started.
        """
        script = root / "ci" / "run"
        # It finds the environment, from wherever it is called.
        program = [os.path.relpath(script, folder)] if script.exists() else ["python", "-m", "ci"]
        return [*program, "replay", os.path.relpath(path, folder)]


def read(path: Path) -> CaseFile:
    """Read a case file, or a file with nothing but a recipe.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is neither.
    """
    try:
        plain: Any = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"case: {str(path)!r} is damaged, it is not JSON: {error}") from None
    try:
        return from_dict(plain)
    except ValueError as error:
        raise ValueError(f"case: {str(path)!r} cannot be read: {error}") from None


def from_dict(plain: Any) -> CaseFile:
    """Read what `to_dict` wrote, in this format or an older one, or a recipe alone.

    Raises:
        ValueError: it is neither.
    """
    from .recipe import Recipe  # noqa: PLC0415 - imports torch

    try:
        if not isinstance(plain, dict) or "recipe" not in plain:
            return CaseFile(recipe=Recipe.from_dict(plain))
        return _checked(migrated(plain, field="format", current=FORMAT, migrations=MIGRATIONS, what="its format"))
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{error}") from None


def _checked(plain: dict[str, Any]) -> CaseFile:
    from .recipe import Recipe  # noqa: PLC0415 - imports torch

    known = {one.name for one in fields(CaseFile)}
    unknown = sorted(set(plain) - known - {"format"})
    if unknown:
        raise ValueError(f"it has unknown fields {', '.join(map(repr, unknown))}")
    for name in ("evidence", "right"):
        rows = plain.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"its {name} is no list of objects")
    seed = plain.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ValueError(f"its seed is {seed!r}, expected an integer")
    return CaseFile(
        recipe=Recipe.from_dict(plain["recipe"]),
        **{name: str(plain.get(name, "")) for name in TEXTS},
        evidence=tuple(plain.get("evidence", ())),
        versions={str(name): str(version) for name, version in dict(plain.get("versions", {})).items()},
        seed=seed,
        right=tuple(plain.get("right", ())),
    )


def evidence_to_dict(evidence: Evidence) -> dict[str, Any]:
    """Return one piece of evidence as a case file holds it; a shape or dtype stays a word."""

    def exact(value: float | str) -> str:
        return value if isinstance(value, str) else to_hex(value)

    plain: dict[str, Any] = {"output": evidence.output, "failure": evidence.failure, "index": list(evidence.index)}
    plain |= {name: exact(getattr(evidence, name)) for name in ("expected", "got", "bound")}
    plain["parts"] = {name: to_hex(size) for name, size in evidence.parts.items()}
    # Not a number that JSON has where it is infinite or NaN.
    plain["ratio"] = evidence.ratio if math.isfinite(evidence.ratio) else str(evidence.ratio)
    return plain | {"wrong": evidence.wrong, "elements": evidence.elements}


def evidence_from_dict(plain: Mapping[str, Any]) -> Evidence:
    """Read what `evidence_to_dict` wrote.

    Raises:
        ValueError: it is something else.
    """
    from .verdict import Evidence  # noqa: PLC0415 - imports torch

    try:
        # Without an index a shape or a dtype was wrong, and the values are words.
        value = float.fromhex if plain["index"] else str
        return Evidence(
            output=str(plain["output"]),
            failure=plain["failure"],
            index=tuple(map(int, plain["index"])),
            expected=value(plain["expected"]),
            got=value(plain["got"]),
            bound=float.fromhex(plain["bound"]),
            parts={str(name): float.fromhex(size) for name, size in dict(plain["parts"]).items()},
            ratio=float(plain["ratio"]),
            wrong=int(plain["wrong"]),
            elements=int(plain["elements"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"evidence cannot be read: {type(error).__name__}: {error}") from None


def dump(plain: Any, *, indent: str = "") -> str:
    """Return JSON text that breaks lines between the fields of objects, and between numbers only where it must.

    Args:
        plain: JSON values.
        indent: of the line that the text begins on.
    """
    flat = json.dumps(plain)
    deeper = indent + "  "
    if len(indent) + len(flat) <= WIDTH and not (isinstance(plain, dict) and not indent):
        return flat
    if isinstance(plain, dict) and plain:
        rows = [f"{deeper}{json.dumps(key)}: {dump(value, indent=deeper)}" for key, value in plain.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(plain, list) and plain:
        items = [dump(value, indent=deeper) for value in plain]
        rows = []
        for item in items:
            if rows and "\n" not in item and len(rows[-1]) + len(item) + 2 <= WIDTH:
                rows[-1] += f", {item}"
            else:
                rows.append(deeper + item)
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return flat
