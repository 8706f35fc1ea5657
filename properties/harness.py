"""Harness: draws cases for one property on one variant, judges them, and keeps count.

It needs no pytest: the plugin builds one for each test, `properties.verify` for each property.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

import hypothesis
from hypothesis.errors import Flaky, HypothesisDeprecationWarning, Unsatisfiable, UnsatisfiedAssumption
from hypothesis.strategies import SearchStrategy

from reference.model import UnboundedError

from . import profiles
from .agreement import Agreement, Lossy, note
from .compiles import CompileCounter
from .report import ItemStats
from .turn import TimeIsUp, faults_of

if TYPE_CHECKING:
    import torch
    from hypothesis.database import ExampleDatabase

    from .journal import Journal
    from .limits import Limits
    from .recipe import Recipe
    from .subject import Subject
    from .turn import Turn
    from .verdict import Worst
    from .walk import Case, Change, Oracle

# `hypothesis.target` wants finite scores; 2^-30 of a bound is as good as exact.
SMALLEST_SCORE = 2.0**-30
LARGEST_SCORE = 2.0**30
MINIMISE_SECONDS = 20.0
# Stands among the outputs for the difference of repeated runs over its bound.
RUN_TO_RUN = "run to run"


@dataclass(kw_only=True, eq=False, repr=False)
class Harness:
    """What a property is given: the subject, and the means to draw and judge cases.

    Attributes:
        subject: the operator under test.
        device: where it runs.
        limits: how large a case may be.
        stats: what happened so far.
        seed: the session's seed; the item's own follows from it and the name.
        examples: cases to draw.
        database: failures of this item, None to keep none.
        case: a recipe to check instead of drawing any.
        target: whether Hypothesis should steer towards large errors.
        on_failure: keeps the smallest failing recipe, and returns lines that tell the reader how to run it again.
        journal: notes each case before it runs.
        compiles: the counter of this process.
        minimise_seconds: time to make the numbers of a failing case smaller once Hypothesis has shrunk it; 0 for none.
        turn: how to draw instead, when the property is run again and again.
    """

    subject: Subject
    device: torch.device
    limits: Limits
    stats: ItemStats
    seed: int = 0
    examples: int = 10
    database: ExampleDatabase | None = None
    case: Recipe | None = None
    target: bool = False
    on_failure: Callable[[Any, Exception], Sequence[str]] | None = None
    journal: Journal | None = None
    compiles: CompileCounter = field(default_factory=CompileCounter)
    minimise_seconds: float = MINIMISE_SECONDS
    turn: Turn | None = None
    _loops: int = 0
    _shrinking: bool = False
    _failing: tuple[Any, Exception] | None = None
    _walked: Recipe | None = None
    _unsteady: bool = False
    _score: float | None = None
    _recorded: tuple[Mapping[str, float], int] = field(default_factory=lambda: ({}, 0))

    @property
    def name(self) -> str:
        """Node id of the item: what its seed depends on."""
        return f"{self.stats.test}[{self.stats.variant}]" if self.stats.variant else self.stats.test

    def for_all(
        self,
        strategy: SearchStrategy[Any],
        check: Callable[[Any], object],
        *,
        examples: int | None = None,
        share: float = 1.0,
    ) -> None:
        """Check every recipe that is drawn, and raise what `check` raised for the smallest that failed.

        Args:
            strategy: draws recipes.
            check: raises when the property does not hold; may call `hypothesis.assume`.
            examples: cases to draw for this item, whatever the session asks for.
            share: part of the session's cases, for a property whose cases are dear in the interpreter; on a GPU it gets
                all of them.
        """
        started = time.perf_counter()
        self.stats.started = self.stats.started or time.time()
        mark = self.compiles.mark()
        try:
            if self.case is not None:
                self._one(self.case, check)
            else:
                # A turn is measured in seconds, whatever a case costs.
                part = share if self.device.type == "cpu" and self.turn is None else 1.0
                self._draw(strategy, check, examples or max(1, math.ceil(self.examples * part)))
        except Exception as error:
            self._tell(error)
            raise
        finally:
            # The error has frames, and they have the tensors of the case.
            self._failing = None
            self.stats.seconds += time.perf_counter() - started
            self.stats.ended = time.time()
            since = self.compiles.since(mark)
            self.stats.compiles += len(since.kernels)
            self.stats.compile_seconds += since.seconds
            self.stats.compile_waited += since.waited
            slowest = since.slowest
            if slowest is not None and slowest.seconds > (self.stats.slowest_compile or ("", 0.0))[1]:
                self.stats.slowest_compile = (slowest.name, slowest.seconds)

    def check(
        self,
        recipe: Recipe,
        *,
        subject: Subject | None = None,
        gradients: bool | None = None,
        change: Change | None = None,
        around: AbstractContextManager[object] | None = None,
        oracle: Oracle | None = None,
    ) -> Case:
        """Walk one case, record its verdict, and raise `PropertyFailed` when it is not admissible.

        Args:
            recipe: what to build.
            subject: what to run. Default: the subject of the harness.
            gradients: run and judge the backward too. Default: where the subject has one.
            change: alters the operands that the subject is given, in a way that must not alter its results.
            around: context in which the subject runs.
            oracle: says what the results may be. Default: the float64 reference with the bounds of the subject.
        """
        __tracebackhide__ = True
        from .verdict import PropertyFailed, story  # noqa: PLC0415 - both import torch
        from .walk import walk  # noqa: PLC0415

        self._walked = recipe
        case = walk(
            recipe,
            subject or self.subject,
            self.device,
            gradients=self.subject.backward if gradients is None else gradients,
            change=change,
            around=around,
            oracle=oracle,
            clock=self.clock,
            details=self.turn is not None and self.turn.on_judged is not None,
        )
        self.record(ratio=case.verdict.ratios, collisions=case.verdict.collisions, worst=case.verdict.worst)
        if not case.verdict.passed:
            evidence = case.verdict.evidence
            if self.turn is not None:
                # The story is about what is not known yet.
                evidence = tuple(sorted(evidence, key=self.turn.knows))
            lines = [line for one in evidence for line in story(one, case.inputs)]
            raise PropertyFailed("\n".join(lines), evidence=evidence)
        return case

    def record(
        self, *, ratio: Mapping[str, float], collisions: int = 0, worst: Mapping[str, Worst] | None = None
    ) -> None:
        """Take note of one comparison with the reference.

        Args:
            ratio: largest error over bound, by output.
            collisions: largest number of samples that met in one pixel.
            worst: of the element with that ratio, by output, where it is known.
        """
        if self.target and self.case is None and ratio:
            worst_ratio = max((LARGEST_SCORE if math.isnan(value) else value) for value in ratio.values())
            self._score = max(self._score or 0.0, worst_ratio)
        if self._shrinking:
            return
        self._recorded = (ratio, collisions)
        if self.turn is not None and self.turn.on_judged is not None:
            self.turn.on_judged(ratio, worst or {}, collisions)
        self.stats.judged += 1
        self.stats.collisions = max(self.stats.collisions, collisions)
        for output, value in ratio.items():
            known = self.stats.ratio.get(output, 0.0)
            self.stats.ratio[output] = value if math.isnan(value) else max(known, value)

    def record_agreement(self, name: str, figures: Agreement) -> None:
        """Take note of repeated runs.

        Args:
            name: dtype and accumulator.
            figures: of one case.
        """
        self.record(ratio={RUN_TO_RUN: figures.ratio}, collisions=figures.collisions)
        if not self._shrinking:
            note(self.stats.agreement, name, figures)

    def record_lossy(self, name: str, collisions: int) -> None:
        """Take note of a case in which the accumulator is too coarse for its bound to say anything.

        Args:
            name: dtype and accumulator.
            collisions: largest number of samples that met in one pixel.
        """
        if not self._shrinking:
            note(self.stats.lossy, name, Lossy(cases=1, collisions=collisions))

    def record_case(self, recipe: Recipe) -> None:
        """Take note of a case that was judged by other means than the bounds."""
        del recipe  # its classes are counted with every recipe that is drawn
        self.record(ratio={})

    def event(self, label: str) -> None:
        """Count a label in Hypothesis's statistics; a case from a file has none."""
        if self.case is None:
            hypothesis.event(label)

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Book the time of a block on a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._book(stage, time.perf_counter() - started)

    def _book(self, stage: str, seconds: float) -> None:
        if not self._shrinking:
            self.stats.stages[stage] = self.stats.stages.get(stage, 0.0) + seconds

    def _tell(self, error: Exception) -> None:
        """Add to the failure's text what the reader does next; Hypothesis has shrunk it by now."""
        if self.turn is not None:
            self.turn.raised = faults_of(error)
        if self._failing is None or self.on_failure is None:
            return
        lines = list(self.on_failure(self._failing[0], error))
        if self._unsteady:
            lines.insert(0, "  unsteady  it did not fail every time: the same case also passed in this run")
        if len(error.args) == 1 and isinstance(error, AssertionError):
            error.args = ("\n".join([str(error), *lines]),)
        else:
            for line in lines:
                error.add_note(line)

    def _draw(self, strategy: SearchStrategy[Any], check: Callable[[Any], object], examples: int) -> None:
        self._shrinking = False
        self._failing = None
        outside = time.perf_counter()

        def body(recipe: Any) -> None:
            nonlocal outside
            self._book("draw", time.perf_counter() - outside)
            try:
                self._one(recipe, check)
            finally:
                outside = time.perf_counter()

        drawn = hypothesis.given(strategy)(body)
        # In this order: `seed` takes the database away.
        drawn = hypothesis.seed(profiles.item_seed(self.seed, self.name, self._loops))(drawn)
        turn = self.turn
        phases = profiles.PHASES if turn is None else turn.phases
        chosen = profiles.item_settings(
            examples=examples, database=self.database, phases=phases, repeated=turn is not None
        )
        drawn = chosen(drawn)
        self._loops += 1
        found: Exception | None = None
        try:
            with profiles.draws_independent_of_imports():
                drawn()
        except (Unsatisfiable, SkipTest):
            # What was kept of earlier runs may all be refused by now, or gone.
            if hypothesis.Phase.generate in phases:
                raise
        except TimeIsUp:
            # The smallest failing case is the last one: Hypothesis tries no larger one once it shrinks.
            found = None if self._failing is None else self._failing[1]
        except Flaky:
            # The same recipe passed when it was run again: the failure is what the reader needs, not the group.
            if self._failing is None:
                raise
            error = self._failing[1]
            self._unsteady = True
            raise error from None
        except Exception as error:
            found = error
        # Outside of the handler, or the larger failure would stay the context of the smaller one, with all its tensors.
        if found is not None:
            try:
                raise self._minimised(found, check)
            finally:
                found = None

    def _minimised(self, error: Exception, check: Callable[[Any], object]) -> Exception:
        """Return how the smallest case fails that the minimiser finds; `error` itself if that is no smaller one."""
        from .minimise import failure_key, minimise, numbers_may_change  # noqa: PLC0415 - imports torch
        from .recipe import Recipe  # noqa: PLC0415

        seconds = self.minimise_seconds
        if self.turn is not None:
            seconds = min(self.turn.minimise_seconds, self.turn.deadline - time.monotonic())
        if self._failing is None or not isinstance(self._failing[0], Recipe) or seconds <= 0:
            return error
        recipe = self._failing[0]

        def fails(candidate: Recipe) -> str | None:
            raised = self._attempt(candidate, check)
            return None if raised is None else failure_key(raised)

        try:
            numbers = numbers_may_change(error)
            smaller = minimise(recipe, fails, seconds=seconds, numbers=numbers)
            raised = None if smaller == recipe else self._attempt(smaller, check)
        except Exception as problem:
            error.add_note(f"It could not be made smaller: {type(problem).__name__}: {problem}")
            return error
        if raised is None or failure_key(raised) != failure_key(error):
            return error
        raised.add_note(f"Before its numbers were made smaller: {recipe.describe()}")
        self._failing = (smaller, raised)
        return raised

    def _attempt(self, recipe: Recipe, check: Callable[[Any], object]) -> Exception | None:
        """Check one candidate of the minimiser like a case from a file; return what is raised."""
        if self.subject.declines(recipe) is not None:
            # Simpler numbers must not be such that the subject promises nothing for them.
            return None
        if self.journal is not None:
            self.journal.begin(recipe)
        self.stats.shrinks += 1
        self.case, self._walked = recipe, None
        try:
            with warnings.catch_warnings():
                # `assume` is meant for drawn cases; elsewhere it works, with a warning.
                warnings.simplefilter("ignore", HypothesisDeprecationWarning)
                check(recipe)
        except (UnsatisfiedAssumption, UnboundedError):
            return None
        except Exception as error:
            if self.journal is not None:
                self.journal.failed(recipe, error)
            # A check of something else than what it is given would call every candidate a failure.
            return error if self._walked in (None, recipe) else None
        except BaseException as outcome:
            # pytest's `skip`, by its name: a harness needs no pytest.
            if type(outcome).__name__ != "Skipped":
                raise
        finally:
            self.case = None
        return None

    def _one(self, recipe: Any, check: Callable[[Any], object]) -> None:
        __tracebackhide__ = True
        # Read first: a failure turns it on, and is itself still a drawn case.
        shrinking = self._shrinking
        if self.turn is not None:
            self.turn.check_time(time.monotonic(), failing=shrinking)
        if self.journal is not None:
            self.journal.begin(recipe)
        self._recorded, self._score = ({}, 0), None
        try:
            check(recipe)
            self._steer()
        except UnsatisfiedAssumption:
            self.stats.discarded += not shrinking
            raise
        except UnboundedError as reason:
            # Not the subject's fault: its declaration leaves nothing to hold it to.
            self.stats.discarded += not shrinking
            raise UnsatisfiedAssumption(str(reason)) from reason
        except Exception as error:
            if self.journal is not None:
                self.journal.failed(recipe, error)
            if self.turn is not None and self.turn.passes(faults_of(error)):
                self._count(recipe, shrinking=shrinking)
                return
            self._shrinking = True
            self._failing = (recipe, error)
            self._count(recipe, shrinking=shrinking)
            raise
        self._count(recipe, shrinking=shrinking)

    def _steer(self) -> None:
        """Tell Hypothesis how large the errors of this case were: once, a property may compare several times."""
        if self._score is not None:
            score = min(max(self._score, SMALLEST_SCORE), LARGEST_SCORE)
            hypothesis.target(math.log2(score), label="log2(error / bound)")

    def _count(self, recipe: Any, *, shrinking: bool) -> None:
        if shrinking:
            self.stats.shrinks += 1
            return
        self.stats.cases += 1
        classes = _classes(recipe, self.limits)
        for name in classes:
            self.stats.classes[name] = self.stats.classes.get(name, 0) + 1
        if self.turn is not None and self.turn.on_case is not None:
            self.turn.on_case(classes, *self._recorded)


def _classes(recipe: Any, limits: Limits) -> tuple[str, ...]:
    from .classes import classes  # noqa: PLC0415 - both import torch
    from .recipe import Recipe  # noqa: PLC0415

    return classes(recipe, limits=limits) if isinstance(recipe, Recipe) else ()
