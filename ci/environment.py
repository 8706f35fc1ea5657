"""Whether an interpreter can run this project: installed versions against pyproject.toml. Standard library only.

`ci/run` calls it with the interpreter in question, before anything is installed. It reads the packages' metadata:
importing torch to see whether it is there would take seconds.

    python ci/environment.py --device cpu [--extra dev]      exit 0 when all is there, else 1 and one line for each gap
    python ci/environment.py --build-in report.json          print "cuda" or "cpu": the build of torch in a pip report
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "ci" / "requirements-cpu.txt"
REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*((?:(?:>=|==|<)\s*[0-9][0-9.]*\s*,?\s*)*)$")
CLAUSE = re.compile(r"(>=|==|<)\s*([0-9.]+)")
COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda have, want: have >= want,
    "<": lambda have, want: have < want,
    "==": lambda have, want: have[: len(want)] == want,
}


def requirements(*, extra: str | None = None, pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """Return the dependencies of the project, and of one of its extras with the extras that it names."""
    project = tomllib.loads(pyproject.read_text())["project"]
    found, extras = list(project["dependencies"]), [extra] if extra else []
    while extras:
        for requirement in project["optional-dependencies"][extras.pop()]:
            # An extra takes up another one by the project's own name.
            own = re.fullmatch(rf"{re.escape(project['name'])}\[([a-z,]+)\]", requirement)
            if own:
                extras += own.group(1).split(",")
            else:
                found.append(requirement)
    return found


def interpreter_limits(constraints: Path = CONSTRAINTS) -> list[str]:
    """Return the upper limits of the constraints for CPU machines: what the interpreter of Triton cannot live with.

    The exact versions beside them are what a new environment gets; an existing one may have others.
    """
    lines = (line.partition("#")[0].strip() for line in constraints.read_text().splitlines())
    return [line for line in lines if "<" in line]


def gaps(wanted: Iterable[str], *, device: str, version_of: Callable[[str], str | None]) -> list[str]:
    """List what is missing or has the wrong version, one line each.

    Args:
        wanted: requirements of the form "name", "name>=1.2" or "name>=1.2,<2".
        device: "cuda" asks for a torch that is no CPU build.
        version_of: installed version of a package, None when it is not installed.

    Raises:
        ValueError: a requirement is written in a form that is not understood here.
    """
    found = []
    for requirement in wanted:
        match = REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"requirement: {requirement!r} given, expected a name and clauses of >=, == or <")
        name, clauses = match.groups()
        version = version_of(name)
        if version is None:
            found.append(f"{name} is not installed")
            continue
        if not all(COMPARE[sign](_release(version), _release(limit)) for sign, limit in CLAUSE.findall(clauses)):
            found.append(f"{name} is {version}, expected {clauses.strip()}")
        if name == "torch" and device == "cuda" and version.endswith("+cpu"):
            found.append(f"torch is {version}, expected a CUDA build: this machine has a GPU")
    return found


def installed(name: str) -> str | None:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_in(report: str) -> str:
    """Return "cuda" when a pip installation report lists CUDA libraries, else "cpu"."""
    names = [entry["metadata"]["name"].lower() for entry in json.loads(report)["install"]]
    return "cuda" if any(name.startswith(("nvidia-", "nvidia_", "cuda-", "cuda_")) for name in names) else "cpu"


def _release(version: str) -> tuple[int, ...]:
    """The numbers before any suffix: (2, 13, 0) of "2.13.0+cpu" and of "2.13.0rc1"."""
    leading = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()


def main(arguments: list[str] | None = None) -> int:
    """Run one of the two checks; see the module's text."""
    parser = argparse.ArgumentParser(description="Check the Python environment of this project.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--extra")
    parser.add_argument("--build-in", type=Path, metavar="REPORT")
    options = parser.parse_args(arguments)
    if options.build_in is not None:
        sys.stdout.write(build_in(options.build_in.read_text()) + "\n")
        return 0
    wanted = requirements(extra=options.extra)
    if options.device == "cpu":
        wanted += interpreter_limits()
    missing = gaps(wanted, device=options.device, version_of=installed)
    for line in missing:
        sys.stdout.write(f"  {line}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
