"""Hunting one subject with one property after another: how soon a fault shows, and how small its case gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from properties import profiles
from properties.corpus_order import case_files
from properties.harness import Harness
from properties.kinds import kind_of
from properties.limits import Limits
from properties.profiles import draws_independent_of_imports
from properties.recipe import Recipe
from properties.report import ItemStats
from properties.subject import Subject
from properties.verdict import INDICES

from . import schedule
from .results import Attempt, Size

# Half of what a run of the properties allows: three blocks of anything are left, and twice as many cases.
INTERPRETER_STEPS = 12
# What a kernel raises in the interpreter where a compiler would refuse it.
UNCOMPILABLE = (NameError, TypeError, AttributeError, ValueError, SyntaxError)
COMPILER_ERRORS = frozenset({"CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"})
INTERPRETER_ERROR = "InterpreterError"


class _CaughtError(Exception):
    """Ends the drawing at the first failing case."""


@dataclass(kw_only=True, eq=False, repr=False)
class Hunter(Harness):
    """A harness that draws until a case fails; nothing is shrunk by Hypothesis, and nothing is kept.

    Attributes:
        beat: called before each case with its number, and before each candidate of the minimiser with None.
        before: cases of earlier turns.
        simplest: whether the first case is the simplest one, as Hypothesis has it. Once it has been tried, it is left
            out.
        smallest: the failing recipe after minimising, if it is one.
    """

    beat: Callable[[int | None], None] = lambda _: None
    before: int = 0
    simplest: bool = True
    smallest: Recipe | None = None

    def for_all(
        self,
        strategy: SearchStrategy[Any],
        check: Callable[[Any], object],
        *,
        examples: int | None = None,
        share: float = 1.0,
    ) -> None:
        """Check recipes as the harness does; the share of a property is in the schedule."""
        del share
        super().for_all(strategy, check, examples=examples)

    def _draw(self, strategy: SearchStrategy[Any], check: Callable[[Any], object], examples: int) -> None:
        failures: list[Exception] = []
        leave_out = 0 if self.simplest else 1

        @seeded(profiles.item_seed(self.seed, self.name, self._loops))
        @generate_only(examples + leave_out)
        @given(strategy)
        def one(recipe: Any) -> None:
            nonlocal leave_out
            if failures:
                raise _CaughtError
            if leave_out:
                leave_out = 0
                return
            try:
                self._one(recipe, check)
            except HypothesisException:
                raise
            except Exception as error:
                failures.append(error)
                raise _CaughtError from error

        self._loops += 1
        self._shrinking = False
        try:
            with draws_independent_of_imports():
                one()
        except Unsatisfiable:
            return
        except _CaughtError:
            error = failures.pop()
        else:
            return
        error = self._minimised(error, check)
        if self._failing is not None and isinstance(self._failing[0], Recipe):
            self.smallest = self._failing[0]
        raise error from None

    def _one(self, recipe: Any, check: Callable[[Any], object]) -> None:
        self.beat(self.before + self.stats.cases + 1)
        super()._one(recipe, check)

    def _attempt(self, recipe: Recipe, check: Callable[[Any], object]) -> Exception | None:
        self.beat(None)
        return super()._attempt(recipe, check)


def generate_only(examples: int) -> settings:
    """Settings of a hunt: it asks how soon a fault shows, and keeps nothing.

    Args:
        examples: cases to draw.
    """
    return settings(
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
    )


@dataclass(kw_only=True)
class Tally:
    """Cases of one hunt so far."""

    judged: int = 0


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """How one subject is hunted.

    Attributes:
        subject: what to run.
        device: "cuda" or "cpu".
        seed: of every draw, and of the order of the dtype cells.
        beat: called before each case with its number, and before each candidate of the minimiser with None.
        minimise_seconds: time to make the failing case smaller, 0 for none.
    """

    subject: Subject
    device: str
    seed: int = 0
    beat: Callable[[int | None], None] = lambda _: None
    minimise_seconds: float = 0.0

    @property
    def limits(self) -> Limits:
        """How large the cases may be."""
        edges = self.subject.block_edges
        return Limits.cuda(edges) if self.device == "cuda" else replace(Limits.cpu(edges), max_steps=INTERPRETER_STEPS)

    def run(self, *, rounds: int = schedule.ROUNDS, corpus: bool = True) -> Attempt:
        """Go round the properties until one fails.

        Args:
            rounds: how often.
            corpus: replay the regression corpus at the end.
        """
        tally = Tally()
        turns = [(turn.load(), None, number, turn.examples) for number in range(rounds) for turn in schedule.TURNS] + [
            (schedule.CORPUS.load(), {"name": path.stem}, 0, 1) for path in (case_files() if corpus else ())
        ]
        return self._through(turns, tally)

    def run_cases(self, cases: int) -> Attempt:
        """Give a control one round of about so many cases, or more, unless one fails.

        Args:
            cases: to judge.
        """
        tally = Tally()
        turns = ((turn.load(), None, 0, examples) for turn, examples in schedule.shares(lambda: tally.judged, cases))
        return self._through(turns, tally)

    def _through(
        self, turns: Iterable[tuple[Callable[..., None], dict[str, Any] | None, int, int]], tally: Tally
    ) -> Attempt:
        started = time.process_time()
        for function, fixed, number, examples in turns:
            variant = schedule.variant_of(function, self.seed, number, self.subject.refuses) if fixed is None else fixed
            if variant is None:
                continue
            caught, cases = self.turn(function, variant, number=number, examples=examples, before=tally.judged)
            tally.judged += cases
            if caught is not None:
                return replace(caught, examples=tally.judged, seconds=time.process_time() - started)
        return Attempt(seed=self.seed, outcome="survived", examples=tally.judged, seconds=time.process_time() - started)

    def turn(
        self, function: Callable[..., None], variant: dict[str, Any], *, number: int, examples: int, before: int = 0
    ) -> tuple[Attempt | None, int]:
        """Give one property its cases.

        Args:
            function: test function of a property.
            variant: its arguments besides the harness.
            number: of the round.
            examples: cases.
            before: cases of earlier turns.

        Returns:
            The kill, if there is one, and how many cases were judged.

        Raises:
            HypothesisException: the drawing itself failed, which says nothing about the subject.
        """
        hunter = Hunter(
            subject=self.subject,
            device=torch.device(self.device),
            limits=self.limits,
            stats=ItemStats(test=function.__name__, variant=f"round {number}"),
            seed=self.seed,
            examples=examples,
            beat=self.beat,
            before=before,
            simplest=number == 0,
            minimise_seconds=self.minimise_seconds,
        )
        try:
            function(hunter, **variant)
        except pytest.skip.Exception:
            return None, hunter.stats.cases
        except HypothesisException:
            raise
        except Exception as error:
            return self._kill(function.__name__, variant, error, hunter), hunter.stats.cases
        return None, hunter.stats.cases

    def _kill(self, name: str, variant: dict[str, Any], error: Exception, hunter: Hunter) -> Attempt:
        headline = (str(error).splitlines() or [""])[0]
        recipe = hunter.smallest
        return Attempt(
            seed=self.seed,
            outcome="killed",
            property=name,
            variant="-".join(str(getattr(value, "name", value)) for value in variant.values()),
            output=_output(error, headline),
            kind="does not compile" if is_compile_error(error) else kind_of(error),
            headline=headline[:200],
            size=None
            if recipe is None
            else Size(samples=recipe.samples, channels=recipe.channels, pixels=recipe.pixels, recipe=recipe.describe()),
        )


def _output(error: Exception, headline: str) -> str:
    """Name the output that is wrong, "" where the story is not about one."""
    evidence = getattr(error, "evidence", ())
    if evidence:
        return str(evidence[0].output)
    return next((name for name in reversed(INDICES) if name in headline), "out" if headline.startswith("out") else "")


def is_compile_error(error: BaseException) -> bool:
    """Whether a kernel could not be compiled, or stopped in the interpreter where a compiler would have refused it."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if name in COMPILER_ERRORS:
            return True
        cause = seen.__cause__ or seen.__context__
        # One for each kernel function on the way out.
        if name == INTERPRETER_ERROR and isinstance(cause, UNCOMPILABLE):
            return True
        seen = cause
    return False


def caught(
    check_property: Callable[..., None],
    subject: Subject,
    *,
    device: str,
    limits: Limits,
    examples: int,
    session_seed: int = 0,
    **variant: object,
) -> str | None:
    """Run one property on a subject until a case fails.

    Args:
        check_property: a test function of `properties`, which takes a harness.
        subject: what to run.
        device: "cuda" or "cpu".
        limits: how large the cases may be.
        examples: cases after which the hunt is given up.
        session_seed: fixes the draws.
        variant: the other arguments of the test function.

    Returns:
        The story of the failure, or None when all cases passed.
    """
    hunter = Hunter(
        subject=subject,
        device=torch.device(device),
        limits=limits,
        stats=ItemStats(test=check_property.__name__),
        seed=session_seed,
        examples=examples,
        minimise_seconds=0.0,
    )
    try:
        check_property(hunter, **variant)
    except AssertionError as failure:
        return str(failure)
    return None
