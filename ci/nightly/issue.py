"""Writes the text of an issue about a nightly run that failed: the verdict, and a line to replay each failure.

    python -m ci.nightly.issue REPORT_DIR

It needs nothing but the standard library, so that it can tell of a run that could not even be set up.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST = 100
LONGEST = 300
# GitHub takes 65536 characters; some are left for what the workflow adds.
ROOM = 60000
COULD_NOT_RUN = "could not run"


def text(folder: Path) -> str:
    """Return the text.

    Args:
        folder: of the report; it may be damaged, or not there.
    """
    nightly, wrong = _nightly(folder / "nightly.json")
    failures = _faults(nightly) if nightly is not None else []
    named = {case for _, case in failures}
    # A run that was ended before it could write its result has left its cases all the same.
    failures += [entry for entry in _cases(folder / "failures") if entry[1] not in named]
    lines = [f"**{_line(nightly.get('verdict', COULD_NOT_RUN)) if nightly is not None else COULD_NOT_RUN}**"]
    lines[0] += f": {_line(nightly.get('subject', 'unknown subject'))}" if nightly is not None else f": {_line(wrong)}"
    lines += ["", *_rows(failures)] if failures else []
    others = _others(nightly, len(failures)) if nightly is not None else []
    lines += ["", *(f"- {_line(reason)}" for reason in others)] if others else []
    kept: list[str] = []
    room = ROOM
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            kept.append("- more is in the report")
            break
        kept.append(line)
    return "\n".join(kept) + "\n"


def _rows(failures: Sequence[tuple[str, str]]) -> list[str]:
    rows = []
    for told, case in failures[:MOST]:
        replay = _code(f"python -m ci replay {shlex.quote(case)}") if case else "no case file"
        rows.append(f"- {told}: {replay}")
    if len(failures) > MOST:
        rows.append(f"- {len(failures) - MOST} more are in the report")
    return rows


def _nightly(path: Path) -> tuple[Mapping[str, Any] | None, str]:
    plain, wrong = _object(path)
    if plain is not None and plain.get("kind") != "nightly":
        return None, f"{path.name} is not what a nightly run writes"
    return plain, wrong


def _object(path: Path) -> tuple[Mapping[str, Any] | None, str]:
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None, f"there is no {path.name}"
    except (ValueError, RecursionError):
        return None, f"{path.name} is damaged"
    return (plain, "") if isinstance(plain, dict) else (None, f"{path.name} is damaged")


def _faults(nightly: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What each fault is, and its case file."""
    found = []
    for fault in _objects(nightly, "faults"):
        where = str(fault.get("property", "unknown property"))
        where += f"[{fault['variant']}]" if fault.get("variant") else ""
        kind = str(fault.get("class", "unknown class"))
        kind += f" in {fault['output']}" if fault.get("output") else ""
        found.append((f"{_code(where)}, {_line(kind)}", str(fault.get("case") or "")))
    return found


def _cases(folder: Path) -> list[tuple[str, str]]:
    found = []
    for path in sorted(folder.glob("*.json")):
        plain, wrong = _object(path)
        known = plain or {}
        kind = _line(known.get("kind") or wrong or "unknown class")
        found.append((f"{_code(str(known.get('property') or 'unknown property'))}, {kind}", f"failures/{path.name}"))
    return found


def _others(nightly: Mapping[str, Any], faults: int) -> list[str]:
    """Reasons for the verdict that are no faults: those of the faults are in their own lines."""
    reasons = nightly.get("reasons")
    if not isinstance(reasons, list):
        return []
    named = [f"{fault.get('class')} in " for fault in _objects(nightly, "faults")]
    others = [str(reason) for reason in reasons if not str(reason).startswith(tuple(named))]
    left = max(0, MOST - min(faults, MOST))
    more = [f"{len(others) - left} more reasons are in the report"] if len(others) > left else []
    return others[:left] + more


def _objects(of: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = of.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _line(value: Any) -> str:
    """Plain text in one line: neither markup nor a mention of somebody."""
    flat = " ".join(str(value).split())
    short = flat if len(flat) <= LONGEST else flat[: LONGEST - 3] + "..."
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", short).replace("@", "@\u200b")


def _code(value: str) -> str:
    flat = " ".join(value.split())[:LONGEST].replace("`", "'")
    return f"`{flat}`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the text."""
    parser = argparse.ArgumentParser(prog="python -m ci.nightly.issue", description="Text of an issue about a run.")
    parser.add_argument("folder", type=Path, metavar="REPORT_DIR", help="folder of the report")
    sys.stdout.write(text(parser.parse_args(arguments).folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
