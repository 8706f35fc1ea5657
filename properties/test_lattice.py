"""Where no operation rounds, all four results are the exact ones rounded once to storage: bitwise, with atomics too."""

from __future__ import annotations

import pytest

from properties.accumulators import PAIRS, name_of
from properties.cells import DtypeCell
from properties.harness import Harness
from properties.lattice import is_lattice, lattice_budget
from properties.recipe import Recipe
from properties.strategies import lattice_recipes
from properties.subject import Subject
from reference.lattice import expect_exactly
from reference.model import Accumulate


@pytest.mark.parametrize(("cell", "accumulate"), PAIRS, ids=[name_of(*pair) for pair in PAIRS])
def test_exact_on_a_lattice(harness: Harness, cell: DtypeCell, accumulate: Accumulate) -> None:
    """No order of addition, no fused multiply-add and no collision may change a single bit.

    Half of the coordinates are on pixel edges where the lattice has any: there the location gradient must be that of
    the left or of the right cell exactly, and not a mean of both.
    """
    refusal = harness.subject.refuses(cell, accumulate)
    if refusal is not None:
        pytest.skip(refusal)
    subject = harness.subject.with_accumulate(accumulate)
    strategy = lattice_recipes(cell, limits=harness.limits, arithmetic=subject.arithmetic)
    harness.for_all(strategy, lambda recipe: check_exact(harness, recipe, subject))


def check_exact(harness: Harness, recipe: Recipe, subject: Subject) -> None:
    """Judge one recipe without tolerance.

    Raises:
        ValueError: the recipe does not prove that nothing rounds; a drawn one does, an edited one may not.
    """
    __tracebackhide__ = True
    if not is_lattice(recipe):
        # Only a case from a file can be one.
        pytest.skip("the case has numbers that are not on a lattice")
    over = {name: bits for name, bits in lattice_budget(recipe, subject.arithmetic).items() if not bits.fits}
    if over:
        raise ValueError(f"{recipe!r} may round: {over}")
    harness.check(recipe, subject=subject, oracle=expect_exactly)
