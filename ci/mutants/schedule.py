"""The fixed order in which properties are tried on a mutant or a control.

A hunt goes round: each round gives every property a few cases, the most general one first, so that a fault that one
special property alone can see does not wait until the general one has spent its budget. All properties of a round draw
from one dtype cell where they can; the next round has another one. Which cell comes first depends on the seed. On a GPU
that means few compilations, and all of them are shared by the seeds of a mutant.

A control, which has to pass some thousands of cases, is given every property once a round, and what is left of its
cases to the general ones: the special ones ask about little that a hundredth case of theirs would show.

Nothing here depends on the mutant.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from properties.variants import variants


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One property in a round.

    Attributes:
        module: of `properties`.
        function: test function, which takes a harness and its parameters.
        examples: cases in one round.
        general: whether what a subject gets wrong anywhere can show here, in a single run or two of it.
    """

    module: str
    function: str
    examples: int
    general: bool = False

    def load(self) -> Callable[..., None]:
        """Import the test function."""
        found: Callable[..., None] = getattr(importlib.import_module(f"properties.{self.module}"), self.function)
        return found


# The most general first, then what is cheap, then what takes many runs.
TURNS = (
    Turn(module="test_gradients", function="test_gradients_within_bound", examples=5, general=True),
    Turn(module="test_arguments", function="test_bad_arguments_are_refused", examples=2),
    Turn(module="test_empty", function="test_empty_operands", examples=8),
    Turn(module="test_calls", function="test_level_tables_of_other_forms", examples=2),
    Turn(module="test_calls", function="test_gradients_of_some_operands", examples=3),
    Turn(module="test_contract", function="test_traced_shapes_are_the_real_ones", examples=2),
    Turn(module="test_contract", function="test_mapped_calls_are_single_calls", examples=2),
    Turn(module="test_contract", function="test_second_derivatives_are_refused", examples=1),
    Turn(module="test_contract", function="test_deterministic_algorithms_are_heeded", examples=2),
    Turn(module="test_determinism", function="test_equal_runs_are_within_bound", examples=6),
    Turn(module="test_skipped", function="test_skipped_samples_contribute_nothing", examples=4, general=True),
    Turn(module="test_containment", function="test_fresh_memory_is_written", examples=2, general=True),
    Turn(module="test_containment", function="test_unsampled_pixels_appear_nowhere", examples=2, general=True),
    Turn(module="test_containment", function="test_infinite_gradients_stay_where_they_enter", examples=3, general=True),
    Turn(module="test_lattice", function="test_exact_on_a_lattice", examples=4, general=True),
    Turn(module="test_accumulators", function="test_native_accumulation_within_bound", examples=3),
    Turn(module="test_exact_float64", function="test_float64_within_exact_bound", examples=2),
    Turn(module="test_determinism", function="test_runs_are_equal", examples=2),
    Turn(module="test_determinism", function="test_runs_agree", examples=2),
    Turn(module="test_metamorphic", function="test_entries_do_not_mix", examples=3),
    Turn(module="test_metamorphic", function="test_powers_of_two_scale_exactly", examples=2),
    Turn(module="test_metamorphic", function="test_rows_may_be_permuted", examples=3),
    Turn(module="test_metamorphic", function="test_samples_may_be_permuted", examples=2),
    Turn(module="test_metamorphic", function="test_batch_may_be_split", examples=2),
    Turn(module="test_metamorphic", function="test_weight_zero_adds_nothing", examples=2),
    Turn(module="test_metamorphic", function="test_mirrored_maps", examples=2),
    Turn(module="test_metamorphic", function="test_factors_sum_to_one", examples=2),
    Turn(module="test_metamorphic", function="test_results_are_linear", examples=2),
    Turn(module="test_metamorphic", function="test_blocks_and_warps_do_not_matter", examples=4),
    Turn(module="test_adjoint", function="test_gradients_are_adjoint_to_the_forward", examples=2),
    Turn(module="test_adjoint", function="test_differences_are_exact", examples=2),
    Turn(module="test_gradients", function="test_gradcheck", examples=2),
    Turn(module="test_forward", function="test_forward_within_bound", examples=2, general=True),
    Turn(module="test_honesty", function="test_no_stale_results", examples=2),
    Turn(module="test_honesty", function="test_operands_are_unchanged", examples=2),
    Turn(module="test_honesty", function="test_results_are_not_trivial", examples=2),
    Turn(module="test_honesty", function="test_computes_itself", examples=2),
    Turn(module="test_honesty", function="test_follows_the_current_stream", examples=2),
    Turn(module="test_large", function="test_pixels_far_apart", examples=1),
    Turn(module="test_large", function="test_many_queries", examples=1),
)
ROUNDS = 2
# What is left after the rounds is given the regression corpus, as every run of the properties is: one case a file.
CORPUS = Turn(module="test_corpus", function="test_corpus", examples=1)
# The cells of the rounds. A hunt starts at its seed's and goes on from there.
CELLS = (
    "float32",
    "float16-float32-float32",
    "bfloat16",
    "float64",
    "float16-float16-float32",
    "bfloat16-float32-bfloat16",
    "float16",
    "bfloat16-bfloat16-float32",
    "float16-float32-float16",
    "bfloat16-float32-float32",
)


def cell_of(seed: int, number: int) -> str:
    """Return the name of the dtype cell of a round."""
    return CELLS[(seed + number) % len(CELLS)]


def variant_of(
    function: Callable[..., None], seed: int, number: int, refuses: Callable[..., str | None]
) -> dict[str, Any] | None:
    """Choose the arguments of a test function for one round.

    Args:
        function: of a property.
        seed: of the hunt.
        number: of the round.
        refuses: `Subject.refuses`.

    Returns:
        Those of the round's dtype cell, in turn if there are several; of another cell if the property is not about
        that one; None if the subject declares none of them.
    """
    offered = []
    for _, variant in variants(function):
        cell = variant.get("cell")
        if cell is None or refuses(cell, variant.get("accumulate")) is None:
            offered.append(variant)
    if not offered:
        return None
    wanted = cell_of(seed, number)
    fitting = [one for one in offered if getattr(one.get("cell"), "name", wanted) == wanted]
    chosen = fitting or offered
    return chosen[(seed + number) % len(chosen)]


def rounds_for(cases: int) -> int:
    """Return how many rounds a control goes, each with another seed and so with another dtype cell.

    Args:
        cases: of all rounds; few are spread over few dtype cells.
    """
    return max(1, min(len(CELLS), cases // sum(turn.examples for turn in TURNS)))


def shares(judged: Callable[[], int], goal: int) -> Iterator[tuple[Turn, int]]:
    """Go through one round of a control: each special property once, the general ones for what is left.

    Args:
        judged: returns the cases so far; a property may take fewer than it is given.
        goal: cases at the end.

    Yields:
        A turn and its cases, never fewer than in the round of a mutant.
    """
    for turn in TURNS:
        if not turn.general:
            yield turn, turn.examples
    left = sum(turn.examples for turn in TURNS if turn.general)
    # The most general one last: it takes what the others leave.
    for turn in reversed([turn for turn in TURNS if turn.general]):
        yield turn, max(turn.examples, -(-(goal - judged()) * turn.examples // left))
        left -= turn.examples
