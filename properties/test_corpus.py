"""The regression corpus: inputs that broke a kernel somewhere, each with results that are known without a reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st

from properties import casefile
from properties.casefile import CaseFile
from properties.corpus_order import CORPUS, case_files
from properties.harness import Harness
from properties.limits import Limits, Sizes
from properties.memory import poisoned
from properties.recipe import Recipe
from properties.verdict import Evidence, PropertyFailed, story
from properties.walk import Case
from reference.bounds import Rounding
from reference.expect import Bounded
from reference.model import Arithmetic


@pytest.mark.partial
@pytest.mark.parametrize("name", [path.stem for path in case_files()])
def test_corpus(harness: Harness, name: str) -> None:
    """Output and gradients are within their bounds, and agree with the elements whose exact value is written down.

    Fresh memory is full of NaN, so nothing is left unwritten either.
    """
    case = casefile.read(CORPUS / f"{name}.json")
    if harness.case not in (None, case.recipe):
        pytest.skip("another case is replayed")
    reason = harness.subject.declines(case.recipe) or too_large(case.recipe, harness.limits)
    if reason is not None:
        pytest.skip(reason)
    harness.for_all(st.just(case.recipe), lambda _: check_case(harness, case), examples=1)


def too_large(recipe: Recipe, limits: Limits) -> str | None:
    """Return why a case is not for this device, or None when it is."""
    steps = Sizes.of(recipe).steps(limits)
    if limits.max_steps is None or steps <= limits.max_steps:
        return None
    return f"{steps} program steps are for a GPU; the interpreter is given at most {limits.max_steps}"


def check_case(harness: Harness, case: CaseFile) -> None:
    """Judge the case by its bounds, then hold the reference and the subject against what the file knows.

    Once for each promise of the subject: what adds up in another way may run other kernels.
    """
    for promise in harness.subject.determinisms:
        subject = harness.subject.with_determinism(promise)
        known_elements(case, harness.check(case.recipe, subject=subject, around=poisoned()), subject.arithmetic)


def known_elements(case: CaseFile, walked: Case, arithmetic: Arithmetic) -> None:
    """Hold the reference and the subject against the elements whose exact value is written down."""
    for row in case.right:
        output, index, right = str(row["output"]), tuple(row["index"]), float.fromhex(row["value"])
        bounded: Bounded | None = getattr(walked.expectation, output)
        if bounded is None:
            # A gradient that the subject does not declare.
            continue
        check_reference(bounded, output, index, right, arithmetic, walked)
        check_element(bounded, output, index, right, walked)


def check_reference(
    bounded: Bounded, output: str, index: tuple[int, ...], right: float, arithmetic: Arithmetic, case: Case
) -> None:
    """Raise unless the reference is as close to the right value as its own error allows.

    The bounds before storage are those of a kernel, times a factor that makes room for the error of the float64
    reference; that room is what the reference may use.
    """
    rounding = Rounding(value_dtype=case.inputs.value.dtype, arithmetic=arithmetic)
    room = 1.0 - 1.0 / rounding.slack
    answers = [(float(one.value[index]), float(one.before_storage[index]) * room) for one in _sides(bounded)]
    if any(abs(value - right) <= error for value, error in answers):
        return
    told = ", or ".join(f"{value!r} +- {error:.3g}" for value, error in answers)
    raise PropertyFailed(
        f"reference: wrong where the result is known by other means\n  element   {output}{list(index)}\n"
        f"  right     {right!r}\n  reference {told}"
    )


def check_element(bounded: Bounded, output: str, index: tuple[int, ...], right: float, case: Case) -> None:
    """Raise unless the subject's element lies within the bound around the right value.

    At a pixel edge the gradient of the neighbouring cell is admissible as ever.
    """
    sides = list(_sides(bounded))
    nearest = min(sides, key=lambda one: abs(float(one.value[index]) - right))
    others = [one for one in sides if float(one.value[index]) != float(nearest.value[index])]
    around = replace(_at(nearest, index), value=torch.tensor(right, dtype=torch.float64, device=bounded.value.device))
    around = replace(around, alternatives=tuple(_at(one, index) for one in others))
    got = getattr(case.observation, output)[index]
    ratio = float(around.ratio(got))
    if ratio <= 1.0:
        return
    evidence = Evidence(
        output=output,
        failure="out of bound" if float(around.bound) else "not zero",
        index=index,
        expected=right,
        got=float(got),
        bound=float(around.bound),
        parts={name: float(part) for name, part in around.parts.items()},
        ratio=ratio,
        wrong=1,
        elements=bounded.value.numel(),
    )
    lines = [*story(evidence, case.inputs), "  known     by other means than the reference, from the case file"]
    raise PropertyFailed("\n".join(lines), evidence=[evidence])


def _sides(bounded: Bounded) -> Iterator[Bounded]:
    yield bounded
    yield from bounded.alternatives


def _at(bounded: Bounded, index: tuple[int, ...]) -> Bounded:
    """Return the admissible results of one element."""
    return Bounded(
        dtype=bounded.dtype,
        value=bounded.value[index],
        bound=bounded.bound[index],
        parts={name: part[index] for name, part in bounded.parts.items()},
        before_storage=bounded.before_storage[index],
        hazard=bounded.hazard[index],
    )
