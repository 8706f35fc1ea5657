"""Minimiser: after Hypothesis has shrunk a recipe, make its tensors as small and as plain as the failure allows.

Hypothesis shrinks what it drew: sizes, patterns and a seed. This works on the numbers themselves, by delta debugging in
a fixed order, and ends with a recipe of explicit numbers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from torch import Tensor

from .explicit import MAX_NUMBERS, OPERANDS
from .recipe import Recipe
from .reductions import AXES, PLAIN, State, cropped, plainer, rewrites, with_entries, with_layouts, with_numbers

Fails = Callable[[Recipe], str | None]
# Counts of entries up to here are all tried, from the smallest on: a block edge shows from one count on.
MOST_COUNTS = 64


class _OutOfTime(Exception):  # noqa: N818 - ends the search, which is no error
    pass


def minimise(
    recipe: Recipe,
    fails: Fails,
    *,
    seconds: float,
    numbers: bool = True,
    keep: Callable[[Recipe], None] | None = None,
) -> Recipe:
    """Return a recipe that fails in the same way and is as small and plain as was found in time.

    The order is fixed and nothing is random. What is returned can be minimised again, and so can what `keep` was given:
    a search that came to its end does not go on, and one that was cut short does.

    Args:
        recipe: fails.
        fails: runs a candidate; returns what a failure is recognised by, None when it passes.
        seconds: time after which no other candidate is run.
        numbers: numbers may change too. A property that assumes something of the numbers, samples away from pixel edges
            say, is given fewer of them alone.
        keep: called with every recipe that is accepted and can be written to a case file, the smallest last.

    Returns:
        A recipe of explicit numbers; `recipe` itself when it does not fail in that form, or with too many numbers to
        write down.
    """
    deadline = time.perf_counter() + seconds
    if seconds <= 0:
        return recipe
    key = fails(recipe)
    if key is None:
        return recipe
    state = State.of(recipe)
    written = state.recipe()
    if written != recipe and fails(written) != key:
        return recipe
    search = _Search(state, key, fails, deadline, keep)
    try:
        before = None
        while before != search.state.measure:
            before = search.state.measure
            _layouts(search)
            _entries(search)
            if numbers:
                _levels(search)
                _numbers(search)
    except _OutOfTime:
        pass
    return search.state.recipe() if search.state.numbers <= MAX_NUMBERS else recipe


def failure_key(error: BaseException) -> str:
    """Return what a failure is recognised by while its case is made smaller: the output and what is wrong with it.

    Args:
        error: what a property raised.
    """
    evidence = getattr(error, "evidence", ())
    if evidence:
        # Not its kind: that compares an error with the size of what surrounds it, which is what becomes less.
        return f"{evidence[0].output}: {evidence[0].failure}"
    name = type(error).__name__
    if name != "PropertyFailed":
        return name
    # Its headline says which relation does not hold. Numbers in it count entries, which become fewer.
    return f"{name}: " + re.sub(r"\d+", "#", (str(error).splitlines() or [""])[0])


def numbers_may_change(error: BaseException) -> bool:
    """Whether the property that raised this may be given any numbers.

    One that holds results against their error bounds may, and so may one that a subject answered with an error of its
    own. Others assume something: samples away from pixel edges, or nothing that overflows.

    Args:
        error: what a property raised.
    """
    if getattr(error, "evidence", ()):
        return True
    return not isinstance(error, AssertionError) and type(error).__name__ != "GradcheckError"


class _Search:
    """The smallest case so far, and what has been tried in vain."""

    def __init__(
        self, state: State, key: str, fails: Fails, deadline: float, keep: Callable[[Recipe], None] | None
    ) -> None:
        self.state = state
        self._key = key
        self._fails = fails
        self._deadline = deadline
        self._keep = keep
        # Digests: the cases themselves would be kept in memory. What was accepted does not come back, for it shrinks.
        self._refused: set[bytes] = set()

    def accepts(self, candidate: State) -> bool:
        """Whether a candidate is smaller and fails in the same way; it is the smallest then.

        Raises:
            _OutOfTime: it was not tried.
        """
        if not candidate.measure < self.state.measure or candidate.identity in self._refused:
            return False
        if time.perf_counter() >= self._deadline:
            raise _OutOfTime
        recipe = candidate.recipe()
        if self._fails(recipe) != self._key:
            self._refused.add(candidate.identity)
            return False
        self.state = candidate
        if self._keep is not None and candidate.numbers <= MAX_NUMBERS:
            self._keep(recipe)
        return True


def _layouts(search: _Search) -> None:
    if not search.accepts(with_layouts(search.state, OPERANDS)):
        for operand in OPERANDS:
            search.accepts(with_layouts(search.state, [operand]))


def _entries(search: _Search) -> None:
    for dimension in AXES:
        _one_or_half(search, dimension)
        _all_but_a_few(search, dimension)
        # The fault may want a count, not an entry: what shows from 17 queries on must not stay at 31.
        for count in range(2, min(search.state.size(dimension), MOST_COUNTS)):
            if search.accepts(with_entries(search.state, dimension, range(count))):
                break


def _one_or_half(search: _Search, dimension: str) -> None:
    while (count := search.state.size(dimension)) > 1:
        entries, half = range(count), count // 2
        kept = (entries[:1], entries[-1:], entries[:-half], entries[half:])
        if not any(search.accepts(with_entries(search.state, dimension, some)) for some in kept):
            return


def _all_but_a_few(search: _Search, dimension: str) -> None:
    """Drop neighbours, from the end on; powers of two, so that counts change by whole blocks before they do by one."""
    few = 1 << search.state.size(dimension).bit_length()
    while few := few // 2:
        end = search.state.size(dimension)
        while end > 0 and few < search.state.size(dimension):
            begin = max(0, end - few)
            kept = [*range(begin), *range(end, search.state.size(dimension))]
            search.accepts(with_entries(search.state, dimension, kept))
            end = begin


def _levels(search: _Search) -> None:
    for level in range(len(search.state.shell.levels)):
        while any(search.accepts(candidate) for candidate in cropped(search.state, level)):
            pass


def _numbers(search: _Search) -> None:
    # Whole operands first, then parts of them: most operands have no part in the failure.
    for depth in (0, None):
        for operand in PLAIN:
            for rewritten in rewrites(search.state, operand):
                _rewrite(search, operand, rewritten, plainer(search.state, operand, rewritten), depth)


def _rewrite(search: _Search, operand: str, rewritten: Tensor, places: list[int], depth: int | None) -> None:
    """Rewrite the numbers at some places; where that does not fail, those of either half."""
    if not places or search.accepts(with_numbers(search.state, operand, rewritten, places)):
        return
    if len(places) > 1 and depth is None:
        half = (len(places) + 1) // 2
        _rewrite(search, operand, rewritten, places[:half], depth)
        _rewrite(search, operand, rewritten, places[half:], depth)
