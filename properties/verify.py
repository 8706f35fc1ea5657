"""The properties without pytest: from a notebook, or from somebody's own test.

    from properties.verify import verify
    summary = verify(my_operator, examples=200, device="cuda")
    assert summary.passed, summary

One process, no journal, no database: a subject that crashes takes it along. `pytest` is what survives that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from properties import devices, gather, profiles, report
from properties.casefile import SHIPPED
from properties.compiles import CompileCounter
from properties.harness import Harness
from properties.kinds import MEANING, kind_of
from properties.subject import Operator, Subject, from_callable, load
from properties.variants import variants

FOLDER = Path(__file__).parent
# Every case of the corpus is a test of its own there; `pytest` replays it.
LEFT_OUT = {"test_corpus"}
MINIMISE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Verification(report.Summary):
    """The summary of a run, which prints as the table that `pytest` shows, with the stories of what failed."""

    stories: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing failed."""
        return not self.stories and any(item.cases for item in self.items)

    def __str__(self) -> str:
        return "\n\n".join([*self.stories, report.render(self, width=120, color=False)])


def verify(
    subject: str | Operator | Subject,
    *,
    examples: int | None = None,
    device: str = "auto",
    seed: int | None = None,
    properties: str = "*",
) -> Verification:
    """Check a subject on all properties, one after the other.

    Args:
        subject: an operator, whose attributes declare what differs from the defaults; a `Subject`; or the name of one,
            as for `--msda-subject`.
        examples: cases per property, shared by its dtype cells. Default: as for `pytest`.
        device: "cuda", "cpu" or "auto".
        seed: of every draw. Default: a fresh one, which is in the summary.
        properties: names of the properties, without "test_"; a pattern with wildcards.

    Returns:
        The summary; `passed` says how it ended.

    Raises:
        ValueError: the device or the subject cannot be used, or no property has such a name.
    """
    where = devices.choose(device)
    if where.type == "cpu" and ("triton" not in sys.modules or subject == SHIPPED):
        # Where triton is there already, a subject without it still can be checked.
        devices.prepare_interpreter()
    profile = profiles.PROFILES["default"]
    found = _subject(subject, where.type)
    if found.triton_atomics:
        from properties.probe import informed  # noqa: PLC0415 - imports triton

        found = informed(found, torch.device(where.type))
    run = _Verifier(
        subject=found,
        device=where.type,
        seed=profile.session_seed(seed),
        examples=examples or profile.examples[where.type],
    )
    functions = [one for one in _properties() if fnmatchcase(one.__name__.removeprefix("test_"), properties)]
    if not functions:
        raise ValueError(f"properties: {properties!r} fits none of them")
    for function in functions:
        run.check(function)
    header = {
        "subject": found.name,
        "device": where.type,
        "device_name": str(where),
        "versions": gather.versions(),
        "profile": profile.name,
        "seed": run.seed,
        "examples": run.examples,
        "workers": 1,
    }
    outcomes = [item.outcome for item in run.items]
    counts = {name: outcomes.count(name) for name in ("passed", "failed")} | {"skipped": len(run.skipped)}
    return Verification(header=header, items=run.items, counts=counts, skipped=run.skipped, stories=run.stories)


def _subject(given: str | Operator | Subject, device: str) -> Subject:
    if isinstance(given, Subject):
        return given
    return load(given, device=device) if isinstance(given, str) else from_callable(given, name=_name(given))


def _name(operator: object) -> str:
    return str(getattr(operator, "__qualname__", type(operator).__qualname__))


def _properties() -> list[Callable[..., None]]:
    """Return the test functions that ask for nothing but a harness and a variant, by file."""
    found = []
    for path in sorted(FOLDER.glob("test_*.py")):
        if path.stem in LEFT_OUT:
            continue
        module = importlib.import_module(f"properties.{path.stem}")
        found += [one for name, one in vars(module).items() if name.startswith("test_") and callable(one)]
    return found


@dataclass(kw_only=True)
class _Verifier:
    """Runs one property after the other."""

    subject: Subject
    device: str
    seed: int
    examples: int

    def __post_init__(self) -> None:
        self.items: list[report.ItemStats] = []
        self.skipped: dict[str, str] = {}
        self.stories: list[str] = []
        self.compiles = CompileCounter()
        self.compiles.start()

    def check(self, function: Callable[..., None]) -> None:
        """Run all variants of a property."""
        test = f"properties/{function.__module__.rpartition('.')[2]}.py::{function.__name__}"
        rows = list(variants(function))
        everything = all(mark.name != "partial" for mark in getattr(function, "pytestmark", ()))
        for label, arguments in rows:
            name = f"{test}[{label}]" if label else test
            cell = arguments.get("cell")
            refusal = self.subject.refuses(cell) if cell is not None else None
            refusal = refusal or self.subject.lacking(self.device, everything=everything)
            if refusal is not None:
                self.skipped[name] = refusal
                continue
            stats = report.ItemStats(test=test, variant=label)
            if self.subject.triton_atomics:
                from properties.probe import facts  # noqa: PLC0415 - imports triton

                stats.facts = facts(torch.device(self.device))
            try:
                function(self._harness(stats, len(rows)), **arguments)
            except pytest.skip.Exception as reason:
                self.skipped[name] = str(reason)
                continue
            except Exception as error:
                stats.outcome = "failed"
                stats.failure.setdefault("class", kind_of(error))
                self.stories.append(f"{error}\n  property  {name}")
            self.items.append(stats)

    def _harness(self, stats: report.ItemStats, rows: int) -> Harness:
        def on_failure(recipe: Any, error: Exception) -> list[str]:
            evidence = [one.output for one in getattr(error, "evidence", ())]
            told = getattr(recipe, "describe", lambda: repr(recipe))()
            stats.failure = {"class": kind_of(error), "outputs": evidence, "recipe": told}
            return [f"  class     {kind_of(error)}: {MEANING[kind_of(error)]}", f"  recipe    {told}"]

        return Harness(
            subject=self.subject,
            device=torch.device(self.device),
            limits=self.subject.limits(self.device),
            stats=stats,
            seed=self.seed,
            examples=-(-self.examples // rows),
            on_failure=on_failure,
            compiles=self.compiles,
            minimise_seconds=MINIMISE_SECONDS,
        )
