"""Hunt with any property: draw cases until one fails, and shrink nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, seed
from hypothesis.strategies import SearchStrategy

from ci.hunt import generate_only
from properties.harness import Harness
from properties.limits import Limits
from properties.report import ItemStats
from properties.subject import Subject
from properties.verdict import PropertyFailed


class _CaughtError(Exception):
    """Ends the drawing at the first failing case."""


class _Hunter(Harness):
    """A harness that draws until a case fails, and shrinks nothing."""

    def _draw(self, strategy: SearchStrategy[Any], check: Callable[[Any], object], examples: int) -> None:
        failures: list[Exception] = []

        @seed(self.seed)
        @generate_only(examples)
        @given(strategy)
        def one(recipe: Any) -> None:
            if failures:
                raise _CaughtError
            try:
                self._one(recipe, check)
            except Exception as error:
                failures.append(error)
                raise _CaughtError from error

        try:
            one()
        except _CaughtError:
            raise failures[0] from None


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
        examples: cases after which the hunt is given up, times the share that the property takes.
        session_seed: fixes the draws.
        variant: the other arguments of the test function.

    Returns:
        The story of the failure, or None when all cases passed.
    """
    stats = ItemStats(test=check_property.__name__)
    hunter = _Hunter(
        subject=subject,
        device=torch.device(device),
        limits=limits,
        stats=stats,
        seed=session_seed,
        examples=examples,
    )
    try:
        check_property(hunter, **variant)
    except PropertyFailed as failure:
        return str(failure)
    return None
