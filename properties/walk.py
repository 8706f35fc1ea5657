"""The walk of one case: recipe -> inputs -> observation, against the expectation, to a verdict.

Every property takes it, with an optional change of what the subject is given. So will whoever replays or fuzzes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from reference.expect import Expectation, expect
from reference.inputs import Inputs

from .declaration import OPERANDS
from .recipe import Recipe
from .snapshot import Snapshot
from .subject import Observation, Subject
from .verdict import Verdict, judge

Clock = Callable[[str], AbstractContextManager[None]]
Change = Callable[[Inputs], Inputs]
Oracle = Callable[[Inputs], Expectation]


@contextmanager
def untimed(_stage: str) -> Iterator[None]:
    """Time nothing."""
    yield


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One recipe walked to its end.

    Attributes:
        recipe: the drawn description.
        inputs: the operands that the expectation is about.
        given: the operands that the subject was given; `inputs` itself unless the property changed them.
        observation: what the subject returned.
        expectation: what it may return.
        verdict: the comparison.
    """

    recipe: Recipe
    inputs: Inputs
    given: Inputs
    observation: Observation
    expectation: Expectation
    verdict: Verdict


def declared_outputs(expectation: Expectation, subject: Subject) -> Expectation:
    """Leave out the gradients that the subject does not declare."""
    missing = {f"grad_{operand}": None for operand in OPERANDS if operand not in subject.gradients}
    return replace(expectation, **missing) if missing else expectation  # type: ignore[arg-type]


def walk(
    recipe: Recipe,
    subject: Subject,
    device: torch.device,
    *,
    gradients: bool = True,
    change: Change | None = None,
    around: AbstractContextManager[object] | None = None,
    oracle: Oracle | None = None,
    clock: Clock = untimed,
    details: bool = False,
) -> Case:
    """Build the inputs of a recipe, run the subject and judge what it returns.

    Args:
        recipe: what to build.
        subject: what to run.
        device: where both the subject and the reference run.
        gradients: run and judge the backward too.
        change: alters the operands that the subject is given, in a way that must not alter its results.
        around: context in which the subject runs.
        oracle: says what the results may be. Default: the float64 reference with the bounds of the subject.
        clock: context manager factory that times the stages "build", "subject", "reference" and "judge".
        details: look up the worst elements of a case that passes, too.
    """
    with clock("build"):
        inputs = recipe.build(device)
        given = inputs if change is None else change(inputs)
    # Before the subject runs: one that overwrites its operands must not change what is expected of it.
    with clock("reference"):
        expectation = oracle(inputs) if oracle else expect(inputs, subject.arithmetic, gradients=gradients)
        expectation = declared_outputs(expectation, subject)
        before = Snapshot.of(given)
    with clock("subject"), around or nullcontext():
        observation = subject.observe(given, gradients=gradients)
        if device.type == "cuda":
            # Without it the subject's time would be booked on the next stage, and so would its fault.
            torch.cuda.synchronize(device)
    with clock("judge"):
        verdict = judge(observation, expectation, written=before.written(given), details=details)
    return Case(
        recipe=recipe,
        inputs=inputs,
        given=given,
        observation=observation,
        expectation=expectation,
        verdict=verdict,
    )
