"""Calls that are related to one another return results that are related: scaled, permuted, split, mirrored, padded.

Nothing here needs the value of the reference. Where both calls add the same numbers in the same order, or where order
does not matter, their results have the same bits; elsewhere they differ by no more than both error bounds together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from properties import transforms
from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.lattice import is_lattice
from properties.recipe import LATTICE_VALUES, Recipe
from properties.relations import Call, Relation, Results, small, summed, with_two_entries
from properties.strategies import lattice_recipes, recipes
from properties.transforms import Undo, choice, coarse
from reference.inputs import Inputs
from reference.model import HALF_SUBNORMAL

# A case is two calls or more.
SHARE = 0.5
# Nothing here may overflow, or lose bits by underflow, when it is multiplied by a small power of two.
ORDINARY = ("normal", "sparse", "constant")
LARGEST_POWER = 6
HALF_BYTES = 2

# What is proportional to each operand. What is not does not depend on it at all.
PROPORTIONAL = {
    "value": ("out", "grad_sampling_locations", "grad_attention_weights"),
    "weights": ("out", "grad_value", "grad_sampling_locations"),
    "grad_output": ("grad_value", "grad_sampling_locations", "grad_attention_weights"),
}

cells = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)


def ordinary(harness: Harness, cell: DtypeCell) -> SearchStrategy[Recipe]:
    """Draw recipes with numbers near 1; samples may lie anywhere. Operands are made contiguous before they are used."""
    return recipes(cell, limits=small(harness.limits), values=ORDINARY, grads=ORDINARY, layouts=False)


def for_all(
    harness: Harness,
    strategy: SearchStrategy[Recipe],
    check: Callable[[Relation, Recipe], None],
    *,
    share: float = SHARE,
) -> None:
    """Check a relation for every recipe that is drawn."""

    def check_one(recipe: Recipe) -> None:
        __tracebackhide__ = True
        if harness.case is not None and not {recipe.value, recipe.grad_output} <= {*ORDINARY, *LATTICE_VALUES}:
            pytest.skip("the case has numbers that may overflow or underflow")
        check(Relation(harness, recipe), recipe)
        harness.record_case(recipe)

    harness.for_all(strategy, check_one, share=share)


# ---------------------------------------------------------------- scaling and linearity


@cells
def test_powers_of_two_scale_exactly(harness: Harness, cell: DtypeCell) -> None:
    """An operand times 2^k scales what is proportional to it by 2^k and leaves the rest: bitwise.

    No rounding depends on the exponent, so any threshold, absolute tolerance or half-precision detour shows.
    """
    # Four calls a case.
    for_all(harness, ordinary(harness, cell), check_scaling, share=SHARE / 2)


def check_scaling(relation: Relation, recipe: Recipe) -> None:
    """Scale one operand after the other."""
    plain = relation.call(relation.build())
    power = 2.0 ** (1 + choice(recipe.seed, 10, LARGEST_POWER))
    for operand, scaled in PROPORTIONAL.items():
        changed = relation.call(replaced(plain.inputs, operand, getattr(plain.inputs, operand) * power))
        what = f"{operand} times {power:.0f}"
        for name, result in changed.results.items():
            factor = power if name in scaled else 1.0
            wanted = (plain.results[name].double() * factor).to(result.dtype)
            ordered = plain.commutes if name == "grad_value" else torch.ones_like(wanted, dtype=torch.bool)
            subnormal = lost_bits(plain.results[name]) & (factor != 1.0)
            relation.same(what, name, result, wanted, where=ordered & ~subnormal)
            lost = torch.full_like(wanted, 2.0 * factor * HALF_SUBNORMAL[result.dtype], dtype=torch.float64)
            either = plain.bound(name) * factor + changed.bound(name)
            rest = (subnormal | ~ordered) & ~wanted.isinf() & ~result.isinf()
            relation.close(what, name, result, wanted, torch.where(ordered, lost, either), where=rest)


def replaced(inputs: Inputs, operand: str, tensor: Tensor) -> Inputs:
    """Return the operands with another tensor for the one of that name."""
    return dataclasses.replace(inputs, **{operand: tensor})  # type: ignore[arg-type]  # `levels` is not an operand


def lost_bits(stored: Tensor) -> Tensor:
    """Where a result may have been rounded to a subnormal of 16 bits: a multiple shows bits that it has not.

    The result errs by half a subnormal, times the power of two, and its multiple by no more than that.
    """
    if stored.element_size() != HALF_BYTES:
        return torch.zeros_like(stored, dtype=torch.bool)
    return stored.abs() <= torch.finfo(stored.dtype).smallest_normal


@cells
def test_results_are_linear(harness: Harness, cell: DtypeCell) -> None:
    """Two parts of value, weights or grad_output give two parts of what is linear in it, and leave the rest."""
    for_all(harness, ordinary(harness, cell), check_linearity)


def check_linearity(relation: Relation, recipe: Recipe) -> None:
    """Split one operand into leading bits and the rest, which add up to it exactly."""
    plain = relation.call(relation.build())
    operand = tuple(PROPORTIONAL)[choice(recipe.seed, 11, len(PROPORTIONAL))]
    whole = getattr(plain.inputs, operand)
    leading = coarse(whole)
    parts = [relation.call(replaced(plain.inputs, operand, part)) for part in (leading, whole - leading)]
    what = f"{operand} in two parts"
    for name in PROPORTIONAL[operand]:
        both = torch.stack([part.results[name].double() for part in parts])
        total, rounding = summed(both, 0)
        allowed = plain.bound(name) + parts[0].bound(name) + parts[1].bound(name) + rounding
        # Storage may overflow on one side alone.
        finite = ~(both.isinf().any(0) | plain.results[name].isinf())
        relation.close(what, name, total, plain.results[name], allowed, where=finite)
    for part in parts:
        rest = {name: result for name, result in part.results.items() if name not in PROPORTIONAL[operand]}
        relation.equivalent(what, plain, rest, part.bounds)


# ---------------------------------------------------------------- permutations


@cells
def test_rows_may_be_permuted(harness: Harness, cell: DtypeCell) -> None:
    """Batch entries, queries and heads in another order: the same bits, except where three or more samples collide."""
    for_all(harness, ordinary(harness, cell).map(with_several_queries), check_permuted_rows)


def with_several_queries(recipe: Recipe) -> Recipe:
    """Give a recipe something to permute."""
    return dataclasses.replace(recipe, queries=max(2, recipe.queries))


def check_permuted_rows(relation: Relation, recipe: Recipe) -> None:
    """Permute all three at once."""
    plain = relation.call(relation.build())
    changed, undo = transforms.permute_rows(plain.inputs, recipe.seed)
    moved, bounds = moved_back(relation.call(changed), undo)
    relation.equivalent("rows permuted", plain, moved, bounds)


@cells
def test_samples_may_be_permuted(harness: Harness, cell: DtypeCell) -> None:
    """Points and levels in another order: out within both bounds, the gradients of each sample the same bits."""
    for_all(harness, ordinary(harness, cell), check_permuted_samples)


def check_permuted_samples(relation: Relation, recipe: Recipe) -> None:
    """Permute points and levels, with the pixels of the levels."""
    plain = relation.call(relation.build())
    changed, undo = transforms.permute_samples(plain.inputs, recipe.seed)
    moved, bounds = moved_back(relation.call(changed), undo)
    relation.equivalent("samples permuted", plain, moved, bounds, loose=("out",))


def moved_back(changed: Call, undo: Undo) -> tuple[Results, Results]:
    """Return results and bounds of a changed call where they lie in the plain one."""
    results = {name: undo(name, result) for name, result in changed.results.items()}
    return results, {name: undo(name, bound).abs() for name, bound in changed.bounds.items()}


# ---------------------------------------------------------------- batch entries, heads, extra samples


@cells
def test_batch_may_be_split(harness: Harness, cell: DtypeCell) -> None:
    """One call on B entries is B calls on one entry each: the same bits, except where samples collide."""
    for_all(harness, ordinary(harness, cell).map(with_two_entries), check_batch_split)


def check_batch_split(relation: Relation, recipe: Recipe) -> None:
    """Call every entry by itself."""
    plain = relation.call(relation.build())
    names = ("value", "locations", "weights", "grad_output")
    calls = [
        relation.call(
            dataclasses.replace(plain.inputs, **{name: getattr(plain.inputs, name)[b : b + 1] for name in names})
        )
        for b in range(recipe.batch)
    ]
    joined = {name: torch.cat([call.results[name] for call in calls]) for name in plain.results}
    bounds = {name: torch.cat([call.bound(name) for call in calls]) for name in plain.results}
    relation.equivalent("batch split", plain, joined, bounds)


@cells
def test_entries_do_not_mix(harness: Harness, cell: DtypeCell) -> None:
    """With NaN everywhere but in one head of one entry, or but in one query, nothing there changes: bitwise."""
    strategy = ordinary(harness, cell).map(with_two_entries).map(with_several_queries)
    for_all(harness, strategy, check_independence)


def check_independence(relation: Relation, recipe: Recipe) -> None:
    """Keep one (batch, head), or one (batch, query, head), and spoil all others."""
    inputs = relation.build()
    entry = choice(recipe.seed, 12, inputs.batch)
    head = choice(recipe.seed, 13, inputs.heads)
    one_query = choice(recipe.seed, 14, 2) == 1
    query = choice(recipe.seed, 15, inputs.queries)
    rows = torch.zeros(inputs.weights.shape[:3], dtype=torch.bool, device=inputs.device)
    rows[entry, query if one_query else slice(None), head] = True
    maps = torch.zeros((inputs.batch, 1, inputs.heads, 1), dtype=torch.bool, device=inputs.device)
    maps[entry, :, head] = True
    grad = inputs.grad_output.unflatten(-1, (inputs.heads, inputs.channels))
    channels = rows.unsqueeze(-1).expand_as(grad)
    spoiled = dataclasses.replace(
        inputs,
        value=torch.where(maps, inputs.value, torch.nan),
        weights=torch.where(rows[..., None, None], inputs.weights, torch.nan),
        grad_output=torch.where(channels, grad, torch.nan).flatten(-2),
    )
    relation.harness.event(f"kept: {'one query' if one_query else 'one head'}")
    plain, changed = relation.call(inputs), relation.observe(spoiled)
    what = "everything else NaN"
    kept = {
        "out": channels.flatten(-2),
        "grad_sampling_locations": rows[..., None, None, None],
        "grad_attention_weights": rows[..., None, None],
    }
    for name, where in kept.items():
        relation.same(what, name, changed[name], plain.results[name], where=where)
    if not one_query:
        got, wanted = changed["grad_value"], plain.results["grad_value"]
        relation.same(what, "grad_value", got, wanted, where=maps & plain.commutes)
        # The operands that count are the same, and so is the bound.
        allowed = 2.0 * plain.bound("grad_value")
        relation.close(what, "grad_value", got, wanted, allowed, where=maps & ~plain.commutes & ~wanted.isinf())


@cells
def test_weight_zero_adds_nothing(harness: Harness, cell: DtypeCell) -> None:
    """One more point, or level, of weight 0: out within both bounds, the other gradients as they were."""
    for_all(harness, ordinary(harness, cell), check_padding)


def check_padding(relation: Relation, recipe: Recipe) -> None:
    """Pad, compare what was there before, and look at what was added."""
    plain = relation.call(relation.build())
    kind = choice(recipe.seed, 16, 3)
    if kind == 0:
        inputs, undo = transforms.pad_points(plain.inputs)
    else:
        inputs, undo = transforms.pad_levels(plain.inputs, front=kind == 1)
    what = ("one more point", "one more level in front", "one more level at the end")[kind] + " of weight 0"
    changed = relation.call(inputs)
    moved, bounds = moved_back(changed, undo)
    relation.equivalent(what, plain, moved, bounds, loose=("out",))
    # What was added is where the weight is the padding's: its location gradient is 0, and so is that of its pixels.
    extra = torch.ones_like(changed.inputs.weights, dtype=torch.bool)
    undo("grad_attention_weights", extra)[...] = False
    gradient = changed.results["grad_sampling_locations"]
    relation.same(what, "grad_sampling_locations", gradient, torch.zeros_like(gradient), where=extra.unsqueeze(-1))
    added = torch.ones_like(changed.results["grad_value"], dtype=torch.bool)
    undo("grad_value", added)[...] = False
    gradient = changed.results["grad_value"]
    relation.same(what, "grad_value", gradient, torch.zeros_like(gradient), where=added)


# ---------------------------------------------------------------- geometry


@cells
def test_mirrored_maps(harness: Harness, cell: DtypeCell) -> None:
    """Maps flipped along x or y, or transposed, with their locations: the same bits, on numbers that never round.

    On a pixel edge the location gradient may be that of the cell before or after it, so it is left out there.
    """
    strategy = lattice_recipes(cell, limits=small(harness.limits), arithmetic=harness.subject.arithmetic, layouts=False)
    for_all(harness, strategy, check_mirrored)


def check_mirrored(relation: Relation, recipe: Recipe) -> None:
    """Apply one of the seven symmetries of the square that are not the identity."""
    if not is_lattice(recipe):
        # Only a case from a file can be one: elsewhere 1 - x rounds.
        pytest.skip("the case has numbers that are not on a lattice")
    inputs = relation.build()
    symmetry = 1 + choice(recipe.seed, 17, 7)
    flip_x, flip_y, transpose = bool(symmetry & 1), bool(symmetry & 2), bool(symmetry & 4)
    changed, undo = transforms.mirror(inputs, flip_x=flip_x, flip_y=flip_y, transpose=transpose)
    plain, mirrored = relation.observe(inputs), relation.observe(changed)
    done = [name for name, on in (("flipped in x", flip_x), ("flipped in y", flip_y), ("transposed", transpose)) if on]
    for name, result in mirrored.items():
        one_sided = ~transforms.on_pixel_edge(inputs) if name == "grad_sampling_locations" else None
        relation.same(f"maps {' and '.join(done)}", name, undo(name, result), plain[name], where=one_sided)


@cells
def test_factors_sum_to_one(harness: Harness, cell: DtypeCell) -> None:
    """With a value of 1 everywhere and samples inside, out = sum a, and grad_value sums to sum g a on every level."""
    strategy = recipes(
        cell,
        limits=small(harness.limits),
        locations=("inside", "local", "away", "pile", "edge"),
        values=("constant",),
        grads=ORDINARY,
        layouts=False,
    )
    for_all(harness, strategy, check_partition_of_unity)


def check_partition_of_unity(relation: Relation, recipe: Recipe) -> None:
    """Move samples near the border to the middle, set value to 1, and compare sums."""
    built = relation.build()
    sizes = torch.tensor([(w, h) for h, w in built.levels], dtype=torch.float64).view(-1, 1, 2).to(built.device)
    place = built.locations.double() * sizes - 0.5
    inside = ((place >= 0.0) & (place <= sizes - 1.0)).all(-1, keepdim=True)
    locations = torch.where(inside, built.locations, torch.full_like(built.locations, 0.5))
    call = relation.call(dataclasses.replace(built, value=torch.ones_like(built.value), locations=locations))
    inputs, what = call.inputs, "value of 1"
    weights = inputs.weights.double()
    total, rounding = summed(weights, (-2, -1))
    wanted = total.unsqueeze(-1).expand(*total.shape, recipe.channels).flatten(-2)
    slack = rounding.unsqueeze(-1).expand(*total.shape, recipe.channels).flatten(-2)
    relation.close(what, "out", call.results["out"], wanted, call.bound("out") + slack)
    grad = inputs.grad_output.double().unflatten(-1, (inputs.heads, inputs.channels))
    # (B, Q, M, L, K, D), summed over queries and points.
    pushed, rounded = summed(grad[:, :, :, None, None] * weights.unsqueeze(-1), (1, 4))
    blocks = zip(
        transforms.level_blocks(call.results["grad_value"].double(), inputs.levels),
        transforms.level_blocks(call.bound("grad_value"), inputs.levels),
        strict=True,
    )
    for level, (block, bound) in enumerate(blocks):
        arrived, added = summed(block, 1)
        allowed = bound.sum(1) + added + rounded[:, :, level]
        where = ~arrived.isinf()
        name = f"sum of grad_value over level {level}"
        relation.close(what, name, arrived, pushed[:, :, level], allowed, where=where)


# ---------------------------------------------------------------- other plans


def test_blocks_and_warps_do_not_matter(harness: Harness) -> None:
    """Variants that the subject declares, with other blocks or warps, agree with it within both bounds."""
    if not harness.subject.variants:
        pytest.skip(f"{harness.subject.name} declares no variants")
    strategy = st.sampled_from(harness.subject.cells).flatmap(
        lambda cell: recipes(cell, limits=small(harness.limits), values=ORDINARY, grads=ORDINARY, layouts=False)
    )
    for_all(harness, strategy, check_variants)


def check_variants(relation: Relation, recipe: Recipe) -> None:
    """Hold every variant against the subject; other bits are told as events, not as failures."""
    del recipe
    plain = relation.call(relation.build())
    for variant in relation.subject.variants:
        changed = relation.call(plain.inputs, variant)
        for name, result in changed.results.items():
            wanted = plain.results[name]
            if not torch.equal(result.nan_to_num(), wanted.nan_to_num()):
                relation.harness.event(f"{variant.name}: other bits in {name}")
            where = ~(wanted.isinf() | result.isinf())
            allowed = plain.bound(name) + changed.bound(name)
            relation.close(
                f"{variant.name} against {relation.subject.name}", name, result, wanted, allowed, where=where
            )
