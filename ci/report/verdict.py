"""What a reader wants first: whether the run was clean, what was run, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from . import text
from .load import Run, listed, mapping, number, objects, whole

State = Literal["clean", "faults", "could not run"]
HEADINGS: dict[State, str] = {"clean": "Clean", "faults": "Faults", "could not run": "Could not run"}
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, however often it was seen.

    Attributes:
        test: node id of the property, without the variant.
        variant: dtype cell or other parameter, "" without one.
        output: what was wrong.
        kind: class of the failure.
        count: how often it was seen.
        first_line: of the story.
        story: of the minimised case, as lines.
        recipe: in a line.
        case: path of the case file below the run's folder.
        replay: command that runs it again.
        found: when it was seen first, in words.
    """

    test: str
    variant: str
    output: str
    kind: str
    count: int
    first_line: str
    story: tuple[str, ...]
    recipe: str
    case: str
    replay: str
    found: str

    @property
    def title(self) -> str:
        """Property and variant in words."""
        return text.title(self.test) + (f", {self.variant}" if self.variant else "")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The head of the report.

    Attributes:
        state: of the run.
        sentence: the verdict in one sentence.
        figures: label and value of the few numbers that matter.
        reasons: what else made the run fail, one line each.
    """

    state: State
    sentence: str
    figures: tuple[Pair, ...]
    reasons: tuple[str, ...]

    @property
    def heading(self) -> str:
        """One or two words."""
        return HEADINGS[self.state]


def verdict(run: Run) -> Verdict:
    """Sum the run up."""
    nightly, totals = run.nightly, mapping(run.nightly, "totals")
    said = nightly.get("verdict")
    known = isinstance(said, str) and said in HEADINGS
    state: State = cast(State, said) if known else "could not run"
    reasons = tuple(text.one_line(reason) for reason in listed(nightly, "reasons"))
    if not known:
        reasons = (f"verdict is {said!r}, expected one of {', '.join(map(repr, HEADINGS))}", *reasons)
    missed = below_floor(nightly)
    worst = listed(totals, "worst")
    floors = mapping(nightly, "floors")
    figures = [
        ("cases", text.count(totals.get("cases", 0))),
        ("cases a second", text.rate(totals.get("rate"))),
        ("largest error / bound", text.ratio(worst[2]) if len(worst) == 3 else text.NONE),
        ("faults", text.count(len(objects(nightly, "faults")) + len(objects(nightly, "crashes")))),
        ("classes at their floor", f"{len(floors) - len(missed)} of {len(floors)}" if floors else text.NONE),
    ]
    return Verdict(state=state, sentence=_sentence(state, run, reasons), figures=tuple(figures), reasons=reasons)


def _sentence(state: State, run: Run, reasons: tuple[str, ...]) -> str:
    nightly = run.nightly
    cases = text.plural(whole(mapping(nightly, "totals").get("cases")), "case")
    if state == "could not run":
        return reasons[0] if reasons else "The run gave no reason."
    if state == "clean":
        return f"No fault in {cases}; every error is within its bound."
    faults, crashes, missed = objects(nightly, "faults"), objects(nightly, "crashes"), below_floor(nightly)
    failed = whole(mapping(nightly, "corpus").get("failed"))
    found = [text.plural(len(faults), "fault")] if faults else []
    found += [text.plural(len(crashes), "crash", many="crashes")] if crashes else []
    found += [f"{text.plural(failed, 'case')} of the corpus failed"] if failed else []
    found += [f"{text.plural(len(missed), 'input class', many='input classes')} below the floor"] if missed else []
    if not found:
        return reasons[0] if reasons else "The run gave no reason."
    return f"{_and(found)}, in {cases}."


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def below_floor(nightly: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Cases and floor of every input class that got fewer cases than it must."""
    classes, floors = mapping(nightly, "classes"), mapping(nightly, "floors")
    counts = {str(name): (whole(classes.get(name)), whole(floor)) for name, floor in floors.items()}
    return {name: pair for name, pair in counts.items() if pair[0] < pair[1]}


def device(nightly: Mapping[str, Any]) -> str:
    """Where it ran, equal GPUs counted."""
    told = mapping(nightly, "device")
    names = [str(name) for name in listed(told, "gpus")]
    if not names:
        return {"cpu": "CPU", "cuda": "CUDA device"}.get(str(told.get("type")), str(told.get("type") or text.NONE))
    return ", ".join(
        f"{names.count(name)} \N{MULTIPLICATION SIGN} {name}" if names.count(name) > 1 else name
        for name in dict.fromkeys(names)
    )


def facts(run: Run) -> list[Pair]:
    """What was run: label and value, what is not known left out."""
    nightly = run.nightly
    shard = listed(nightly, "shard")
    merged = listed(nightly, "merged")
    elapsed, budget = number(nightly.get("elapsed_seconds")), number(nightly.get("budget_seconds"))
    took = text.duration(elapsed) + (f" of {text.duration(budget)}" if budget else "")
    resumed = whole(nightly.get("resumed"))
    pairs = [
        ("subject", nightly.get("subject")),
        ("device", device(nightly)),
        ("workers", nightly.get("workers")),
        ("seed", nightly.get("seed")),
        ("profile", f"{nightly.get('profile') or text.NONE}{', quick' if nightly.get('quick') else ''}"),
        ("started", text.moment(nightly.get("started"))),
        ("time", took),
        ("resumed", text.plural(resumed, "time") if resumed else None),
        ("shard", f"{shard[0]} of {shard[1]}" if len(shard) == 2 else None),
        ("merged", text.plural(len(merged), "shard") if merged else None),
        ("commit", nightly.get("commit")),
    ]
    return [(label, text.one_line(value)) for label, value in pairs if value not in (None, "")]


def faults(run: Run) -> list[Fault]:
    """The faults, as the run lists them."""
    return [_fault(entry) for entry in objects(run.nightly, "faults")]


def _fault(entry: Mapping[str, Any]) -> Fault:
    found = []
    if number(entry.get("seconds")) is not None:
        found.append(f"after {text.duration(entry['seconds'])}")
    if number(entry.get("cases")) is not None:
        found.append(f"{text.plural(whole(entry['cases']), 'case')} of this property and dtype before it")
    shards = listed(entry, "shards")
    if shards:
        found.append(f"in shard {', '.join(map(str, shards))}")
    return Fault(
        test=str(entry.get("property", "")),
        variant=str(entry.get("variant") or ""),
        output=str(entry.get("output") or ""),
        kind=str(entry.get("class") or "unknown class"),
        count=max(1, whole(entry.get("count"))),
        first_line=text.one_line(entry.get("first_line") or "no story was recorded"),
        story=tuple(str(line) for line in listed(entry, "story")),
        recipe=str(entry.get("recipe") or ""),
        case=str(entry.get("case") or ""),
        replay=str(entry.get("replay") or ""),
        found=", ".join(found),
    )


def crashes(run: Run) -> list[Pair]:
    """Node id and message of every crash, with its case file where there is one."""
    return [
        (
            str(entry.get("nodeid", "")),
            text.one_line(entry.get("message", ""))
            + (f" (case {text.one_line(entry['case'])})" if entry.get("case") else ""),
        )
        for entry in objects(run.nightly, "crashes")
    ]


def skipped(run: Run) -> dict[str, list[str]]:
    """Node ids of what was not tested, by reason, the commonest reason first."""
    by_reason: dict[str, list[str]] = {}
    for nodeid, reason in mapping(run.nightly, "skipped").items():
        by_reason.setdefault(text.one_line(reason), []).append(str(nodeid))
    return dict(sorted(by_reason.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def versions(run: Run) -> list[Pair]:
    """Versions and what was measured on the device."""
    return [
        (str(name), text.one_line(value))
        for part in ("versions", "facts")
        for name, value in mapping(run.nightly, part).items()
    ]


def shards(run: Run) -> list[dict[str, str]]:
    """A row for each shard of a merged run: what its header tells, equal columns for all."""
    rows = []
    for header in objects(run.nightly, "merged"):
        shard = listed(header, "shard")
        cases = header.get("cases", mapping(header, "totals").get("cases"))
        rows.append(
            {
                "shard": f"{shard[0]} of {shard[1]}" if len(shard) == 2 else text.NONE,
                "device": device(header),
                "seed": text.one_line(header.get("seed", text.NONE)),
                "started": text.moment(header.get("started")),
                "time": text.duration(header.get("elapsed_seconds")),
                "cases": text.count(cases),
                "verdict": text.one_line(header.get("verdict") or text.NONE),
            }
        )
    # A column of which no shard knows anything says nothing.
    told = [column for column in (rows[0] if rows else ()) if any(row[column] != text.NONE for row in rows)]
    return [{column: row[column] for column in told} for row in rows]
