"""From what a run has written down to `nightly.json`, `cases.jsonl` and the verdict."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from properties.report import ItemStats, Summary, plain

from . import floors
from .faults import Faults, fault_line
from .plan import Plan
from .state import Folder, RunState, read_json
from .turns import CORPUS, Record, records, split

FORMAT = 1
CLEAN, FAULTS, BROKEN = "clean", "faults", "could not run"
STATUS = {CLEAN: 0, FAULTS: 1, BROKEN: 2}


@dataclass(kw_only=True)
class Tally:
    """All turns of a run, added up.

    Attributes:
        items: figures by node id.
        turns: that are over, by node id.
        faults: each once.
        errors: what the harness itself failed at, one line each.
        crashes: turns that ended their worker.
        skipped: reason by node id.
        corpus_cases: cases of the corpus that were replayed.
        corpus_failures: those that failed.
        compiles: by kernel: how many, their seconds, and those of the slowest.
    """

    items: dict[str, ItemStats] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    errors: list[str] = field(default_factory=list)
    crashes: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    corpus_cases: int = 0
    corpus_failures: int = 0
    compiles: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Take up one turn."""
        nodeid = record.nodeid
        item = record.item
        before = self.items.get(nodeid)
        self.turns[nodeid] = self.turns.get(nodeid, 0) + 1
        self.faults.hear(record, cases=before.cases if before is not None else 0)
        if CORPUS in nodeid and record.outcome in ("passed", "failed", "crashed"):
            self.corpus_cases += 1
            self.corpus_failures += record.outcome != "passed"
        if record.outcome == "skipped":
            self.skipped[nodeid] = record.reason
        elif record.outcome == "error":
            self.errors.append(f"{nodeid}: the harness failed: {record.reason}")
        elif record.outcome == "crashed":
            case = record.stats.get("failure", {}).get("case") if record.stats else None
            name = f"failures/{Path(case).name}" if case else ""
            self.crashes.append({"nodeid": nodeid, "message": record.reason, "case": name})
        for kernel, seconds in record.compiles:
            self.compiled(kernel, count=1, seconds=seconds, slowest=seconds)
        if item is None:
            return
        item.outcome = "failed" if record.outcome in ("failed", "crashed", "error") else record.outcome
        if before is None:
            self.items[nodeid] = item
        else:
            before.add(item)

    def compiled(self, kernel: str, *, count: int, seconds: float, slowest: float) -> None:
        """Take up compiles of one kernel.

        Args:
            kernel: its name.
            count: how many.
            seconds: of all of them.
            slowest: of the slowest one.
        """
        row = self.compiles.setdefault(kernel, {"kernel": kernel, "count": 0, "seconds": 0.0, "slowest": 0.0})
        row["count"] += count
        row["seconds"] = round(row["seconds"] + seconds, 3)
        row["slowest"] = max(row["slowest"], slowest)


def tally(turns: Iterable[Record]) -> Tally:
    """Add up turns."""
    total = Tally()
    for record in turns:
        total.add(record)
    return total


def nightly(
    folder: Folder, run: RunState, *, commit: str | None, reasons: Sequence[str] = (), notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the content of `nightly.json`, and put `cases.jsonl` beside it.

    Args:
        folder: of the run.
        run: what was run.
        commit: of the repository, None where nothing tells.
        reasons: why it could not run, one line each; then it has no other verdict.
        notes: what a reader should know beside the verdict.
    """
    header = read_json(folder.header) or {}
    end = read_json(folder.state / "end.json") or {}
    turns = list(records(folder.turns))
    total = tally(turns)
    gather_cases(folder)
    confirmed = read_json(folder.confirmed) or {}
    for fault in total.faults:
        if fault.kind == "crash":
            fault.story = tuple(confirmed.get(fault.nodeid, fault.story))
    plain_run = {
        "format": FORMAT,
        "kind": "nightly",
        "subject": header.get("subject", run.subject),
        "device": header.get("device", {"type": run.device, "gpus": []}),
        "device_name": header.get("device_name", run.device),
        "versions": header.get("versions", {}),
        "seed": run.seed,
        "workers": header.get("workers", 0),
        "commit": commit,
        "shard": None if run.shard is None else list(run.shard),
        "merged": None,
        "quick": run.quick,
        "only": run.only,
        "profile": "nightly",
        "started": run.started,
        "budget_seconds": run.budget,
        "elapsed_seconds": round(run.elapsed, 1),
        "resumed": max(0, run.sessions - 1),
    }
    told = read_json(folder.state / "classes.json") or {"reachable": []}
    return finished(
        plain_run,
        total,
        wall=max((one.at for one in turns), default=0.0) - min((one.at - one.seconds for one in turns), default=0.0),
        reachable=told["reachable"],
        bandit=bandit_rows(turns, run, header.get("workers", 1)),
        broken=[*reasons, *([end["hopeless"]] if end.get("hopeless") else [])],
        notes=[*notes, *end.get("notes", ())],
    )


def finished(
    header: Mapping[str, Any],
    total: Tally,
    *,
    wall: float,
    reachable: Sequence[str],
    bandit: Sequence[Mapping[str, Any]],
    broken: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Judge a run, or several that were added up.

    Args:
        header: first fields of the result.
        total: of all turns.
        wall: seconds from the first turn to the end of the last, without the time between sessions.
        reachable: classes that could be drawn.
        bandit: who got time.
        broken: why it could not run; then it has no other verdict.
        notes: what a reader should know beside the verdict.
    """
    summary = Summary(header={}, items=list(total.items.values()), skipped=total.skipped, required=reachable)
    totals = summary.totals()
    # The clock of the cases goes on while a run that was killed waits to be started again.
    paused = sum(item.compile_seconds + item.compile_waited for item in summary.items) / max(1, header["workers"])
    totals = replace(totals, wall=wall, rate=totals.cases / (wall - paused) if wall > paused else 0.0)
    full = not header["quick"] and not header["only"]
    # A shard has a part of the properties; the floors are for what all shards have drawn together.
    alone = header["shard"] is None
    wanted = floors.floors(reachable, cases=totals.cases) if full and alone else {}
    reasons = [fault_line(fault) for fault in total.faults]
    reasons += total.errors + floors.missed(summary.classes, wanted)
    if broken:
        reasons = [*broken, *reasons]
    verdict = BROKEN if broken else FAULTS if reasons else CLEAN
    result = {
        **header,
        "verdict": verdict,
        "reasons": reasons,
        "corpus": {"cases": total.corpus_cases, "failed": total.corpus_failures},
        "items": [item.as_dict() | {"turns": total.turns[nodeid]} for nodeid, item in sorted(total.items.items())],
        "totals": dataclasses.asdict(totals),
        "classes": summary.classes,
        "reachable": list(reachable),
        "floors": wanted,
        "determinism": summary.agreement,
        "lossy": summary.lossy,
        "facts": summary.facts,
        "skipped": total.skipped,
        "faults": [fault.as_dict() for fault in total.faults],
        "crashes": total.crashes,
        "errors": total.errors,
        "notes": list(notes),
        "compiles": [row for _, row in sorted(total.compiles.items())],
        "bandit": list(bandit),
    }
    return plain(result)  # type: ignore[no-any-return]


def bandit_rows(turns: Sequence[Record], run: RunState, workers: int) -> list[dict[str, Any]]:
    """Say who got time and what came of it, by running the bandit over the turns once more."""
    fuzzed = [record for record in turns if record.stage == "fuzz"]
    nodeids = list(dict.fromkeys(record.nodeid for record in fuzzed))
    plan = Plan(nodeids=nodeids, shard=None, budget=run.budget, workers=workers, left=lambda: 0.0)
    ratios: dict[str, float] = {}
    for record in fuzzed:
        plan.hear(record)
        found = (
            [ratio for ratio in dict(record.stats.get("ratio", {})).values() if ratio <= 1.0] if record.stats else []
        )
        ratios[record.nodeid] = max([ratios.get(record.nodeid, 0.0), *found])
    arms = {**plan.bandit.dropped, **plan.bandit.arms}
    whole = sum(arm.seconds for arm in arms.values()) or 1.0
    rows = []
    for nodeid, arm in arms.items():
        test, variant = split(nodeid)
        rows.append(
            {
                "test": test,
                "variant": variant,
                "turns": arm.turns,
                "cases": arm.cases,
                "seconds": round(arm.seconds, 2),
                "share": round(arm.seconds / whole, 5),
                "new_classes": arm.new,
                "ratio": ratios.get(nodeid, 0.0),
            }
        )
    return sorted(rows, key=lambda row: -row["seconds"])


def gather_cases(folder: Folder) -> None:
    """Put the lines of all workers into one file; a line that a killed process left unfinished is left out."""
    fresh = folder.root / "cases.jsonl.part"
    with fresh.open("wb") as whole:
        for path in folder.all_cases():
            with path.open("rb") as lines:
                shutil.copyfileobj(lines, whole, 1 << 20)
            if path.stat().st_size and not _ends_whole(path):
                _cut_last_line(whole)
    fresh.replace(folder.root / "cases.jsonl")


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"


def _cut_last_line(file: Any) -> None:
    with Path(file.name).open("rb") as written:
        file.flush()
        end = written.seek(0, 2)
        start = max(0, end - (1 << 16))
        written.seek(start)
        keep = start + written.read().rfind(b"\n") + 1
    file.truncate(keep)
    file.seek(keep)
