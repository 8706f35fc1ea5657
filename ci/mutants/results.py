"""What became of mutants and controls: the attempts of single seeds, and the score."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["killed", "survived", "stillborn"]
Standing = Literal["killed", "survived", "equivalent", "stillborn", "not run"]
# Besides the classes of `properties.kinds`: the process ended, took too long, or the kernel was never one.
PROCESS_KINDS = ("crash", "timeout", "does not compile")


@dataclass(frozen=True, kw_only=True)
class Size:
    """A failing case once it is minimised.

    Attributes:
        samples: B * Q * M * L * K.
        channels: D of a head.
        pixels: S, of all levels.
        recipe: in a line.
    """

    samples: int
    channels: int
    pixels: int
    recipe: str

    def __str__(self) -> str:
        return f"{self.samples} x {self.channels}, {self.pixels} px"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What one seed did to one mutant or control.

    Attributes:
        seed: of every draw.
        outcome: "stillborn" where the module could not be imported or its kernels never compile.
        property: test function that failed.
        variant: its parameters.
        output: what was wrong: an output of the operator, "" for other failures.
        kind: class of the failure, as `properties.kinds` has it; "crash", "timeout", "does not compile".
        headline: first line of the story.
        examples: cases judged, the failing one included; 0 where the first call of all was the end.
        seconds: CPU time.
        size: of the minimised case, where there was one to minimise.
    """

    seed: int
    outcome: Outcome
    property: str = ""
    variant: str = ""
    output: str = ""
    kind: str = ""
    headline: str = ""
    examples: int = 0
    seconds: float = 0.0
    size: Size | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Attempt:
        """Build from `as_dict`.

        Raises:
            TypeError: the values are not those of an attempt.
        """
        size = values.get("size")
        return cls(**{**values, "size": None if size is None else Size(**size)})


def settled(attempts: Sequence[Attempt], seeds: int) -> bool:
    """Whether no other seed can change what becomes of a mutant.

    Args:
        attempts: so far.
        seeds: how many there are to be.
    """
    if len(attempts) >= seeds or any(attempt.outcome == "stillborn" for attempt in attempts):
        return True
    return 2 * sum(attempt.outcome == "survived" for attempt in attempts) >= seeds


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mutant or control with all its attempts.

    Attributes:
        name: of the mutant or control.
        family: of the mutant, "control" for a control.
        attempts: one for each seed that ran.
        equivalent: the proof that the mutant is no other operator.
        explanation: why it survives though it is another operator.
        not_run: why it was not run here.
        edit: what was changed, for mutants that nobody wrote.
        cached: whether every attempt was known before.
    """

    name: str
    family: str
    attempts: tuple[Attempt, ...] = ()
    equivalent: str = ""
    explanation: str = ""
    not_run: str = ""
    edit: str = ""
    cached: bool = False

    @property
    def standing(self) -> Standing:
        """Killed when more than half of the seeds kill it, so that the median of the examples is a number.

        A control is killed by one alarm.
        """
        if self.not_run:
            return "not run"
        if any(attempt.outcome == "stillborn" for attempt in self.attempts):
            return "stillborn"
        if 2 * len(self.kills) > len(self.attempts) or (self.family == "control" and self.kills):
            return "killed"
        return "equivalent" if self.equivalent else "survived"

    @property
    def kills(self) -> tuple[Attempt, ...]:
        """The attempts that killed it."""
        return tuple(attempt for attempt in self.attempts if attempt.outcome == "killed")

    @property
    def examples(self) -> float | None:
        """Median number of examples to the kill over the seeds, None where it was not killed.

        For a control, those to its first alarm.
        """
        if self.standing != "killed":
            return None
        if self.family == "control":
            return self.kills[0].examples
        # A seed that did not kill it would have needed more than it had.
        needed = [a.examples if a.outcome == "killed" else float("inf") for a in self.attempts]
        return statistics.median_low(needed)

    @property
    def properties(self) -> tuple[str, ...]:
        """Test functions that killed it, without repetition."""
        return tuple(dict.fromkeys(attempt.property or attempt.kind for attempt in self.kills))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Classes of the failures, without repetition."""
        return tuple(dict.fromkeys(attempt.kind for attempt in self.kills))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that were wrong, without repetition."""
        return tuple(dict.fromkeys(attempt.output for attempt in self.kills if attempt.output))

    @property
    def size(self) -> Size | None:
        """Of the minimised case."""
        return next((attempt.size for attempt in self.kills if attempt.size is not None), None)

    @property
    def seconds(self) -> float:
        """CPU time of all attempts."""
        return sum(attempt.seconds for attempt in self.attempts)

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for the JSON file."""
        size = self.size
        return {
            "name": self.name,
            "family": self.family,
            "standing": self.standing,
            "properties": list(self.properties),
            "outputs": list(self.outputs),
            "kinds": list(self.kinds),
            "examples": self.examples,
            "seeds_killed": len(self.kills),
            "seeds": len(self.attempts),
            "size": None if size is None else dataclasses.asdict(size),
            "equivalent": self.equivalent,
            "explanation": self.explanation,
            "not_run": self.not_run,
            "edit": self.edit,
            "seconds": self.seconds,
            "cached": self.cached,
            "attempts": [attempt.as_dict() for attempt in self.attempts],
        }


@dataclass(frozen=True, kw_only=True)
class Score:
    """Some mutants in numbers.

    Attributes:
        counts: mutants by standing.
        by_kind: killed mutants by the class of their first kill.
        median_examples: of the killed ones, None without any.
        seconds: CPU time of all attempts.
        contradicted: mutants that were killed in spite of a proof that they are equivalent.
    """

    counts: Mapping[str, int]
    by_kind: Mapping[str, int] = field(default_factory=dict)
    median_examples: float | None = None
    seconds: float = 0.0
    contradicted: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Score:
        """Count."""
        counts = dict.fromkeys(("killed", "survived", "equivalent", "stillborn", "not run"), 0)
        by_kind: dict[str, int] = {}
        for row in rows:
            counts[row.standing] += 1
            if row.standing == "killed":
                by_kind[row.kinds[0]] = by_kind.get(row.kinds[0], 0) + 1
        examples = [row.examples for row in rows if row.examples is not None]
        return cls(
            counts=counts,
            by_kind=by_kind,
            median_examples=statistics.median(examples) if examples else None,
            seconds=sum(row.seconds for row in rows),
            contradicted=tuple(row.name for row in rows if row.standing == "killed" and row.equivalent),
        )

    @property
    def killable(self) -> int:
        """Mutants that ran, are alive and not proven equivalent."""
        return self.counts["killed"] + self.counts["survived"]

    @property
    def rate(self) -> float:
        """Part of them that was killed, 1 without any."""
        return self.counts["killed"] / self.killable if self.killable else 1.0
