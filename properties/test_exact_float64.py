"""float64 kernels against rational arithmetic: the bounds of all results without a reference's own roundings.

The float64 reference rounds like the kernels that it judges, so their bounds are twice what a kernel may err. On tiny
inputs the exact values are known, and the factor goes.
"""

from __future__ import annotations

import pytest
import torch

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.strategies import recipes
from reference.expect import Expectation, expect
from reference.inputs import Inputs

FLOAT64 = next(cell for cell in CELLS if cell.value == torch.float64)


@pytest.mark.parametrize("cell", [FLOAT64], ids=lambda cell: cell.name)
def test_float64_within_exact_bound(harness: Harness, cell: DtypeCell) -> None:
    """Output and gradients of float64 operands are as close to the exact ones as float64 arithmetic must be."""

    def exactly(inputs: Inputs) -> Expectation:
        return expect(inputs, harness.subject.arithmetic, rational=True)

    strategy = recipes(cell, limits=harness.limits.tiny())
    harness.for_all(strategy, lambda recipe: harness.check(recipe, oracle=exactly), share=0.5)
