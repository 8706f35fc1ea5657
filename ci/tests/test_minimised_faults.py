"""What is left of a failing case when a fault in the kernels is its cause: the smallest case that shows it."""

from __future__ import annotations

import math
import time

import pytest
import torch

from ci.faults import FAULTS
from ci.hunt import hunt
from ci.mutants.mutant import Mutant
from ci.mutants.package import mutated
from ci.mutants.zoo import named
from properties.cells import CELLS
from properties.explicit import OPERANDS
from properties.harness import Harness
from properties.kinds import kind_of
from properties.limits import Limits
from properties.minimise import failure_key, minimise
from properties.recipe import Recipe
from properties.report import ItemStats
from properties.strategies import recipes
from properties.subject import Subject
from properties.verdict import PropertyFailed

FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")
MIXED = next(cell for cell in CELLS if cell.name == "float16-float32-float16")
CASES_TO_CATCH = 60
SECONDS = 50.0
# Its first failing cases are large, and have ordinary numbers: huge ones stay huge when it is an overflow that shows.
SEED = 1

BLOCK_EDGE = named("wrong block edge in the queries")
BY_NAME = {fault.name: fault for fault in FAULTS}
BOUNDARY = BY_NAME["<= for < in a bound check"]


def harness_of(subject: Subject, device: str, kept: list[Recipe]) -> Harness:
    limits = Limits.cuda(subject.block_edges) if device == "cuda" else Limits.cpu(subject.block_edges)

    def keep(recipe: Recipe, _error: Exception) -> list[str]:
        kept.append(recipe)
        return []

    return Harness(
        subject=subject,
        device=torch.device(device),
        limits=limits,
        stats=ItemStats(test="minimised"),
        examples=CASES_TO_CATCH,
        on_failure=keep,
    )


def told(fault: Mutant, device: str, cell=FLOAT32, *, gradients: bool = True) -> tuple[Recipe, PropertyFailed]:
    """Run a property until it fails, shrink, minimise; return what the reader is told."""
    kept: list[Recipe] = []
    with mutated(fault, device=device) as subject:
        harness = harness_of(subject, device, kept)
        with pytest.raises(PropertyFailed) as caught:
            harness.for_all(
                recipes(cell, limits=harness.limits), lambda recipe: harness.check(recipe, gradients=gradients)
            )
    (recipe,) = kept
    return recipe, caught.value


def minimised_from_the_draw(fault: Mutant, device: str, cell=FLOAT32) -> tuple[Recipe, Recipe, float]:
    """Minimise what was drawn, with no help from Hypothesis."""
    with mutated(fault, device=device) as subject:
        harness = harness_of(subject, device, [])
        catch = hunt(
            subject, device=device, limits=harness.limits, cells=(cell,), examples=CASES_TO_CATCH, session_seed=SEED
        )
        assert catch is not None

        def fails(recipe: Recipe) -> str | None:
            try:
                harness.check(recipe)
            except PropertyFailed as error:
                return failure_key(error)
            return None

        started = time.perf_counter()
        smallest = minimise(catch.recipe, fails, seconds=SECONDS)
        return catch.recipe, smallest, time.perf_counter() - started


def is_one_sample(recipe: Recipe) -> bool:
    return recipe.samples == 1 and recipe.channels == 1


def plain(recipe: Recipe) -> set[str]:
    assert recipe.explicit is not None
    return {number for operand in ("value", "weights", "grad_output") for number in getattr(recipe.explicit, operand)}


@pytest.mark.parametrize("cell", [FLOAT32, MIXED], ids=lambda cell: cell.name)
def test_a_boundary_fault_ends_at_one_sample(cell, msda_device: str):
    recipe, error = told(BOUNDARY, msda_device, cell, gradients=False)
    assert is_one_sample(recipe)
    assert len(recipe.levels) == 1
    assert max(recipe.levels[0]) <= 2
    assert plain(recipe) <= {"0x0p+0", "0x1p+0"}
    # What is told is about this case, and not about the larger one.
    assert "1 of 1 elements are wrong" in str(error)
    assert error.evidence[0].output == "out"


def test_a_boundary_fault_ends_there_without_hypothesis_too(msda_device: str):
    drawn, recipe, seconds = minimised_from_the_draw(BOUNDARY, msda_device)
    assert drawn.samples > 1
    assert is_one_sample(recipe)
    assert len(recipe.levels) == 1
    assert max(recipe.levels[0]) <= 2
    assert seconds <= SECONDS + 5.0


def test_a_wrong_block_edge_ends_at_the_first_count_that_shows_it(msda_device: str):
    recipe, _ = told(BLOCK_EDGE, msda_device, gradients=False)
    with mutated(BLOCK_EDGE, device=msda_device) as subject:
        edges = subject.block_edges["queries"]
    assert recipe.queries in {2 * edge + 1 for edge in edges}
    assert (recipe.batch, recipe.heads, recipe.channels, recipe.points, recipe.levels) == (1, 1, 1, 1, ((1, 1),))
    assert recipe.explicit is not None
    # Nothing but the count matters.
    assert all(len(set(getattr(recipe.explicit, operand))) == 1 for operand in OPERANDS)


# (samples, channels, largest side of a level): none of them may end larger.
ENDS = {
    "half-pixel constant missing": (1, 1, 1),
    "height and width swapped in one place": (1, 1, 2),
    "one corner's weight wrong": (1, 1, 2),
    "sign of one gradient term": (1, 1, 2),
    "store instead of atomic add": (2, 1, 1),
    "bfloat16 accumulator": (1, 1, 1),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_drawn_case_ends_small(name: str, msda_device: str):
    _, recipe, _ = minimised_from_the_draw(BY_NAME[name], msda_device)
    samples, channels, side = ENDS[name]
    assert recipe.samples <= samples
    assert recipe.channels <= channels
    assert len(recipe.levels) == 1
    assert max(recipe.levels[0]) <= side


def test_a_failure_whose_numbers_matter_keeps_them(msda_device: str):
    kept: list[Recipe] = []
    with mutated(BY_NAME["bfloat16 accumulator"], device=msda_device) as subject:
        harness = harness_of(subject, msda_device, kept)
        with pytest.raises(PropertyFailed) as caught:
            harness.for_all(recipes(FLOAT32, limits=harness.limits), harness.check)
    assert is_one_sample(kept[0])
    assert kept[0].explicit is not None
    numbers = [number for operand in OPERANDS for number in kept[0].explicit.numbers(operand)]
    # Sums and products of a few powers of two are exact in bfloat16.
    assert any(math.frexp(number)[0] != 0.5 for number in numbers)
    assert kind_of(caught.value) == "precision loss"
