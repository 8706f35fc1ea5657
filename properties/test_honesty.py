"""A subject does what it seems to do: it computes what it is given, when its turn has come, by itself, and no more.

A wrong number is for other properties to find. Here are the ways to return right numbers for another reason than that
the operator was computed, and those in which a call has effects beyond its results.
"""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from properties.accumulators import assume_supported, label
from properties.cells import CELLS, DtypeCell
from properties.declaration import Determinism
from properties.harness import Harness
from properties.held import FIELDS, Held, copied, results, watched
from properties.operations import recorded
from properties.recipe import Recipe
from properties.repeat import other_bits
from properties.strategies import empty_recipes, recipes
from properties.subject import Observation, Subject
from properties.trivial import discriminates, enlarged, likeness, unexpanded
from properties.verdict import Evidence, PropertyFailed, Verdict, judge, story
from properties.walk import declared_outputs
from reference.expect import Expectation, expect
from reference.model import Accumulate

# Cases of several calls. Where a lie shows, it shows in most cases.
REUSE_SHARE, STREAM_SHARE, OPERANDS_SHARE, TRIVIAL_SHARE, ITSELF_SHARE = 0.3, 1.0, 0.3, 0.3, 0.5
INTERPRETER_STEPS = 3
# What is overwritten between one call and the next. The first is another case altogether.
TURNS = (tuple(FIELDS), *((name,) for name in (*FIELDS, "spatial_shapes")))
# Cycles for which a stream sleeps: most of 10 ms, many times what Python takes to queue a call.
SLEEP = 20_000_000
# What a subject reads that does not wait for the operands: right in form, and of another result.
EARLY = {"value": 1.0, "sampling_locations": 0.5, "attention_weights": 1.0, "grad_output": 1.0}

cells = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)


def judged(
    harness: Harness, held: Held, expectation: Expectation, observation: Observation, *, alone: bool = False
) -> Verdict:
    """Hold results against their bounds, and raise when they are outside unless that is for the caller to tell."""
    __tracebackhide__ = True
    with harness.clock("judge"):
        verdict = judge(observation, expectation)
    harness.record(ratio=verdict.ratios, collisions=verdict.collisions)
    if alone and not verdict.passed:
        raise PropertyFailed(told(verdict, held), evidence=verdict.evidence)
    return verdict


def told(verdict: Verdict, held: Held) -> str:
    """Tell what is outside its bounds as every property does."""
    return "\n".join(line for one in verdict.evidence for line in story(one, held.inputs))


def call(harness: Harness, held: Held, *, gradients: bool = True, subject: Subject | None = None) -> Observation:
    """Call the subject, and wait until a GPU is done with it."""
    with harness.clock("subject"):
        observation = held.call(subject or harness.subject, gradients=gradients)
        if harness.device.type == "cuda":
            torch.cuda.synchronize(harness.device)
    return observation


def held_case(harness: Harness, recipe: Recipe) -> Held:
    """Build the operands of a recipe in memory of their own."""
    with harness.clock("build"):
        return Held(recipe.build(harness.device), gradients=harness.subject.gradients)


def expected(harness: Harness, held: Held) -> Expectation:
    """Evaluate the reference on the operands as they are now."""
    with harness.clock("reference"):
        return declared_outputs(expect(held.inputs, harness.subject.arithmetic), harness.subject)


# ---------------------------------------------------------------- stale results


@pytest.mark.partial
@cells
def test_no_stale_results(harness: Harness, cell: DtypeCell) -> None:
    """Operands overwritten in place give the results of what they hold now, and results of earlier calls stay.

    The addresses are the same in every call; the tensor objects are in every other one. No version counter moves.
    """
    strategy = recipes(cell, limits=harness.limits.at_most(INTERPRETER_STEPS)).map(enlarged)
    harness.for_all(strategy, lambda recipe: check_reuse(harness, recipe), share=REUSE_SHARE)


def check_reuse(harness: Harness, recipe: Recipe) -> None:
    """Call once, then overwrite everything, each operand alone and the level table alone, with a call after each."""
    __tracebackhide__ = True
    held = held_case(harness, recipe)
    earlier: list[Observation] = []
    wanted = expected(harness, held)
    last = call(harness, held)
    if not judged(harness, held, wanted, last).passed:
        raise stale(harness, held, wanted, last, earlier)
    for number, names in enumerate(TURNS):
        if names == ("grad_output",) and not harness.subject.backward:
            continue
        kept = copied(last)
        earlier.append(kept)
        what = names[0] if len(names) == 1 else "every operand"
        turned = [held.turn(name) for name in names]
        if not any(turned):
            harness.event(f"nothing else to hold: {what}")
            continue
        require_kept(last, kept, f"when {what} was overwritten: it shares its memory with an operand")
        renewed = (number + recipe.seed) % 2 == 1
        if renewed:
            held.renew()
        wanted = expected(harness, held)
        found = call(harness, held)
        if not judged(harness, held, wanted, found).passed:
            objects = "other tensors at the same addresses" if renewed else "the same tensors"
            changed = f"{what}{' alone' if len(names) == 1 else ''}, in place; {objects}"
            raise stale(harness, held, wanted, found, earlier, changed)
        require_kept(last, kept, "by a later call: it lies in memory that the subject uses again")
        last = found


def require_kept(last: Observation, kept: Observation, how: str) -> None:
    """Require that results which were returned are still what they were."""
    __tracebackhide__ = True
    before = results(kept)
    for name, result in results(last).items():
        changed = int(other_bits(result, before[name]).sum())
        if changed:
            lines = [f"{name}: a result that was returned has changed {how}"]
            lines.append(f"  changed   {changed} of {result.numel()} elements")
            evidence = Evidence(output=name, failure="written", expected="left alone", got="overwritten")
            raise PropertyFailed("\n".join(lines), evidence=[evidence], kind="memory")


def stale(
    harness: Harness,
    held: Held,
    wanted: Expectation,
    found: Observation,
    earlier: list[Observation],
    changed: str = "nothing yet; the memory may have been another case's",
) -> PropertyFailed:
    """Tell whether a wrong result is an earlier one, is wrong in this memory alone, or is wrong.

    Args:
        harness: runs the subject.
        held: the operands.
        wanted: what is expected of them.
        found: what came.
        earlier: results of the calls before in the same memory.
        changed: what has changed since the last one.
    """
    verdict = judge(found, wanted)
    first = verdict.evidence[0]
    lines = told(verdict, held).splitlines()
    if not isinstance(first.got, float):
        return PropertyFailed("\n".join(lines), evidence=verdict.evidence)
    result = getattr(found, first.output)
    if any(not bool(other_bits(result, getattr(one, first.output)).any()) for one in earlier):
        lines[0] = f"{first.output}: stale: the result of an earlier call, whose operands have been overwritten since"
    elif judge(call(harness, Held(held.inputs, gradients=held.gradients)), wanted).passed:
        lines[0] = f"{first.output}: stale: wrong where operands were overwritten, right for the same in fresh memory"
    else:
        # Not for this property to tell.
        return PropertyFailed("\n".join(lines), evidence=verdict.evidence)
    lines.insert(1, f"  changed   {changed}")
    return PropertyFailed("\n".join(lines), evidence=verdict.evidence, kind="memory")


# ---------------------------------------------------------------- streams


@pytest.mark.partial
@cells
def test_follows_the_current_stream(harness: Harness, cell: DtypeCell) -> None:
    """On a stream where the operands come late, results are those of what has come, and are there when it goes on."""
    if harness.device.type != "cuda":
        pytest.skip("streams are a GPU's: in the interpreter everything runs when it is called")
    strategy = recipes(cell, limits=harness.limits)
    harness.for_all(strategy, lambda recipe: check_stream(harness, recipe), share=STREAM_SHARE)


def check_stream(harness: Harness, recipe: Recipe) -> None:
    """Sleep, fill the operands, call and copy the results on one stream, while the default stream sleeps longer.

    A subject that reads early sees other operands than it should; one that works elsewhere has its results late.
    """
    __tracebackhide__ = True
    device = harness.device
    held = held_case(harness, recipe)
    wanted = expected(harness, held)
    late = {name: held.contents(name) for name in FIELDS}
    for name, number in EARLY.items():
        held.write(name, number)
    # This compiles, too: the streams would wake up before it is done.
    early = call(harness, held)
    if judge(early, wanted).passed:
        # Nothing would show.
        if harness.case is not None:
            pytest.skip("the case has the same results before its operands are filled")
        assume(False)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        # What the allocator hands out next on this stream, as far as that can be said.
        spoiled = [torch.full_like(result, torch.nan) for result in results(early).values() for _ in range(2)]
        del spoiled
    torch.cuda.synchronize(device)
    with harness.clock("subject"):
        torch.cuda._sleep(4 * SLEEP)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP)
            for name in ("value", "sampling_locations", "attention_weights"):
                held.write(name, late[name])
            out = held.forward(harness.subject)
            taken_out = out.detach().clone()
            torch.cuda._sleep(SLEEP)
            held.write("grad_output", late["grad_output"])
            found = held.backward(out)
            taken = dataclasses.replace(copied(found), out=taken_out)
        torch.cuda.synchronize(device)
    verdict = judged(harness, held, wanted, taken)
    if not verdict.passed:
        # Wrong in memory of its own, too, and with nothing to wait for: then streams have nothing to do with it.
        fresh = held_case(harness, recipe)
        judged(harness, fresh, wanted, call(harness, fresh), alone=True)
        raise off_stream(held, verdict, early, found, wanted)


def off_stream(
    held: Held, verdict: Verdict, early: Observation, found: Observation, wanted: Expectation
) -> PropertyFailed:
    """Tell what the subject did not wait for, or that nothing waited for the subject."""
    first = verdict.evidence[0]
    lines = told(verdict, held).splitlines()
    if judge(found, wanted).passed:
        lines[0] = (
            f"{first.output}: not on the current stream: right in the end, but not yet there when the stream goes on"
        )
    else:
        lines[0] = f"{first.output}: not on the current stream: computed before the operands were there"
        result, before = getattr(found, first.output), getattr(early, first.output)
        same = isinstance(first.got, float) and not bool(other_bits(result, before).any())
        lines.insert(1, f"  holds     {'' if same else 'not '}the result of what the operands held before")
    return PropertyFailed("\n".join(lines), evidence=verdict.evidence, kind="memory")


# ---------------------------------------------------------------- operands


@pytest.mark.partial
@cells
def test_operands_are_unchanged(harness: Harness, cell: DtypeCell) -> None:
    """No byte of an operand, of grad_output or of the level table changes, nor one between or around their elements."""
    strategy = recipes(cell, limits=harness.limits.at_most(INTERPRETER_STEPS))
    harness.for_all(strategy, lambda recipe: check_operands(harness, recipe), share=OPERANDS_SHARE)


def check_operands(harness: Harness, recipe: Recipe) -> None:
    """Watch a call with gradients off, then a forward and backward."""
    __tracebackhide__ = True
    held = held_case(harness, recipe)
    wanted = expected(harness, held)
    for gradients in (False, True) if harness.subject.backward else (False,):
        with watched(held) as changes:
            observation = call(harness, held, gradients=gradients)
        if changes:
            during = "forward and backward" if gradients else "a forward with gradients off"
            lines = []
            for one in changes:
                lines += [f"{one.name}: an operand was changed", f"  how       {one.what}"]
            evidence = [
                Evidence(output=one.name, failure="written", expected="left alone", got="changed") for one in changes
            ]
            raise PropertyFailed("\n".join([*lines, f"  during    {during}"]), evidence=evidence, kind="memory")
        part = wanted if gradients else Expectation(out=wanted.out)
        judged(harness, held, part, observation, alone=True)


# ---------------------------------------------------------------- trivial results


@pytest.mark.partial
@cells
def test_results_are_not_trivial(harness: Harness, cell: DtypeCell) -> None:
    """Results are right where no constant, no operand handed back and no result of another call could be."""
    strategy = (
        recipes(
            cell,
            limits=harness.limits.at_most(INTERPRETER_STEPS),
            locations=("inside",),
            values=("normal",),
            grads=("normal",),
            weights=("raw", "softmax"),
        )
        .map(unexpanded)
        .map(enlarged)
    )
    harness.for_all(strategy, lambda recipe: check_trivial(harness, recipe), share=TRIVIAL_SHARE)


def check_trivial(harness: Harness, recipe: Recipe) -> None:
    """Call on two cases of one shape, one after the other; each must tell right results from trivial ones."""
    __tracebackhide__ = True
    held = held_case(harness, recipe)
    before: Observation | None = None
    for number in range(2):
        if number:
            for name in FIELDS:
                held.turn(name)
        wanted = expected(harness, held)
        # Whatever the subject returns: this is about the case.
        toothless = discriminates(wanted, held.inputs, before)
        if toothless and harness.case is not None:
            pytest.skip(f"the case would let trivial results pass: {toothless}")
        assert not toothless, f"the case would let trivial results pass: {toothless}, on {recipe!r}"
        found = call(harness, held)
        verdict = judged(harness, held, wanted, found)
        if not verdict.passed:
            first = verdict.evidence[0]
            lines = told(verdict, held).splitlines()
            like = likeness(first.output, found, held.inputs, before)
            if not like and isinstance(first.got, float):
                like = independence(harness, held, first.output, found)
            if like:
                lines[0] = f"{first.output}: trivial: {like}"
            raise PropertyFailed("\n".join(lines), evidence=verdict.evidence)
        before = copied(found)


def independence(harness: Harness, held: Held, name: str, found: Observation) -> str:
    """Say that a wrong result is the same on other operands, where it is."""
    kept = getattr(copied(found), name)
    for operand in FIELDS:
        held.turn(operand)
    again = getattr(call(harness, held), name)
    if isinstance(again, Tensor) and again.shape == kept.shape and not bool(other_bits(again, kept).any()):
        return "it is the same whatever the operands are"
    return ""


# ---------------------------------------------------------------- fallbacks


@pytest.mark.partial
@cells
def test_computes_itself(harness: Harness, cell: DtypeCell) -> None:
    """A subject that declares kernels of its own leaves no arithmetic to PyTorch, whatever the shapes and modes."""
    if harness.subject.engine != "kernels":
        pytest.skip(f"{harness.subject.name} does not declare kernels of its own (engine = 'kernels')")
    limits = harness.limits.at_most(INTERPRETER_STEPS)
    strategy = full = recipes(cell, limits=limits)
    if harness.subject.empty:
        strategy = st.one_of(full, full, full, empty_recipes(cell, limits=limits))
    harness.for_all(strategy, lambda recipe: check_itself(harness, recipe), share=ITSELF_SHARE)


def modes(subject: Subject, cell: DtypeCell) -> list[tuple[Accumulate, Determinism]]:
    """Return the accumulators and promises that a subject can be told of, its own ones first."""
    own = (subject.arithmetic.accumulate, subject.determinism)
    pairs = [pair for pair in product(subject.accumulators, subject.determinisms) if not subject.refuses(cell, *pair)]
    return sorted(pairs, key=lambda pair: pair != own)


def check_itself(harness: Harness, recipe: Recipe) -> None:
    """Record the operators of a forward with gradients off, then of a forward and backward; the seed chooses a mode."""
    __tracebackhide__ = True
    choices = modes(harness.subject, recipe.cell)
    accumulate, determinism = choices[recipe.seed % len(choices)]
    subject = harness.subject.with_accumulate(accumulate).with_determinism(determinism)
    if recipe.samples * recipe.pixels * recipe.channels:
        assume_supported(recipe, subject, harness.device)
    with harness.clock("build"):
        inputs = recipe.build(harness.device)
    for gradients in (False, True) if subject.backward else (False,):
        with harness.clock("subject"), recorded(harness.device) as recorder:
            subject.observe(inputs, gradients=gradients)
        lines = recorder.story()
        if lines:
            during = "forward and backward" if gradients else "a forward with gradients off"
            head = "fallback: operators of PyTorch computed, where the subject declares kernels of its own"
            lines = [head, *lines, f"  during    {during}", f"  mode      {label(recipe.cell, subject)}"]
            raise PropertyFailed("\n".join(lines), kind="fallback")
    harness.record_case(recipe)
