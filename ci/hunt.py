"""Hunt for a failing case of one subject: how many cases the properties need to catch a fault, if they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given, seed
from hypothesis import strategies as st

from ci.mutants.hunter import generate_only
from properties.cells import DtypeCell
from properties.limits import Limits
from properties.recipe import Recipe
from properties.strategies import recipes
from properties.subject import Subject
from properties.verdict import Verdict
from properties.walk import walk


@dataclass(frozen=True, kw_only=True)
class Catch:
    """The first case that failed.

    Attributes:
        recipe: what was drawn.
        verdict: its evidence.
        cases: how many cases were judged, this one included.
    """

    recipe: Recipe
    verdict: Verdict
    cases: int

    @property
    def outputs(self) -> set[str]:
        """Names of the outputs that were wrong."""
        return {evidence.output for evidence in self.verdict.evidence}


class _CaughtError(Exception):
    """Ends the drawing at the first failing case; nothing is shrunk."""


Judge = Callable[[Recipe, Subject, torch.device], Verdict]


def within_bounds(recipe: Recipe, subject: Subject, device: torch.device) -> Verdict:
    """Judge one forward and backward by the error bounds."""
    return walk(recipe, subject, device).verdict


def hunt(
    subject: Subject,
    *,
    device: str,
    limits: Limits,
    cells: tuple[DtypeCell, ...],
    examples: int,
    session_seed: int = 0,
    judge: Judge = within_bounds,
) -> Catch | None:
    """Judge drawn cases, forward and backward, until one fails.

    Args:
        subject: what to run.
        device: "cuda" or "cpu".
        limits: how large the cases may be.
        cells: dtype cells to draw from.
        examples: cases after which the hunt is given up.
        session_seed: fixes the draws.
        judge: the property that is to hold.

    Returns:
        The first failing case, or None when all passed.
    """
    catches: list[Catch] = []
    judged = 0

    @seed(session_seed)
    @generate_only(examples)
    @given(st.sampled_from(cells).flatmap(lambda cell: recipes(cell, limits=limits)))
    def judge_one(recipe: Recipe) -> None:
        nonlocal judged
        if catches:
            raise _CaughtError
        judged += 1
        verdict = judge(recipe, subject, torch.device(device))
        if not verdict.passed:
            catches.append(Catch(recipe=recipe, verdict=verdict, cases=judged))
            raise _CaughtError

    try:
        judge_one()
    except _CaughtError:
        return catches[0]
    return None
