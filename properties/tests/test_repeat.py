"""Repeated runs: what counts as the same, what is reported, and which modes a subject has."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from properties.accumulators import PAIRS, label, name_of
from properties.agreement import Agreement, Lossy, lossy_lines, merge, note, table
from properties.cells import CELLS
from properties.recipe import Recipe
from properties.repeat import RUNS, other_bits, walk_repeatedly
from properties.subject import Subject, from_callable, shipped

CPU = torch.device("cpu")
FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")
CROWD = Recipe(cell=FLOAT32, queries=20, levels=((1, 1),), locations=("pile",), channels=8, seed=3)


def nothing(call, grads):
    del call, grads


class Wavering(torch.autograd.Function):
    """An operator of ones whose gradients are ones, plus what the test tells it to add in each call."""

    calls = 0
    added = staticmethod(nothing)

    @staticmethod
    def forward(ctx, value, locations, weights):
        """Return ones."""
        ctx.save_for_backward(value, locations, weights)
        batch, queries = locations.shape[:2]
        return value.new_ones((batch, queries, value.shape[2] * value.shape[3]))

    @staticmethod
    def backward(ctx, grad_output):
        """Return ones, and what is added."""
        del grad_output
        grads = [torch.ones_like(tensor) for tensor in ctx.saved_tensors]
        Wavering.calls += 1
        Wavering.added(Wavering.calls, grads)
        return tuple(grads)


def wavering(monkeypatch, added):
    monkeypatch.setattr(Wavering, "calls", 0)
    monkeypatch.setattr(Wavering, "added", staticmethod(added))
    return from_callable(lambda v, _s, _i, loc, w: Wavering.apply(v, loc, w), name="wavering")


def test_bits_are_compared_and_nan_is_nan():
    one = torch.tensor([0.0, 1.0, torch.nan, torch.inf])
    other = torch.tensor([-0.0, 1.0, -torch.nan, torch.inf])
    assert other_bits(one, other).tolist() == [True, False, False, False]
    assert other_bits(one.half(), other.half()).tolist() == [True, False, False, False]


def test_steady_subject_agrees(monkeypatch):
    repetition = walk_repeatedly(CROWD, wavering(monkeypatch, nothing), CPU)
    assert repetition.story == ""
    assert repetition.verdict.passed
    assert (repetition.agreement.runs, repetition.agreement.unequal) == (RUNS, 0)


def test_small_differences_of_long_sums_are_counted_and_admitted(monkeypatch):
    def added(call, grads):
        grads[0].flatten()[0] += 2.0**-23 * (call == 3)

    repetition = walk_repeatedly(CROWD, wavering(monkeypatch, added), CPU)
    figures = repetition.agreement
    assert repetition.story == ""
    assert (figures.unequal_runs, figures.unequal, figures.spread) == (1, 1, 2.0**-23)
    assert 0.0 < figures.ratio <= 1.0
    promised = dataclasses.replace(wavering(monkeypatch, added), determinism="run_to_run")
    story = walk_repeatedly(CROWD, promised, CPU).story
    assert story.startswith("grad_value: not repeatable")
    assert "element (batch 0, pixel 0, head 0, channel 0); 1 of 8 elements are wrong" in story
    assert "0: the same bits in every run" in story


def test_large_differences_tell_their_story(monkeypatch):
    def added(call, grads):
        grads[0].flatten()[5] += 0.5 * (call == 4)

    story = walk_repeatedly(CROWD, wavering(monkeypatch, added), CPU).story
    assert "element (batch 0, pixel 0, head 0, channel 5)" in story
    assert "from 1.0 to 1.5 over 8 runs; 1 of them unlike the first" in story
    assert "for another order of the n = 20 contributions" in story


@pytest.mark.parametrize("position", [1, 2])
def test_the_other_gradients_have_the_same_bits(monkeypatch, position):
    def added(call, grads):
        grads[position].flatten()[0] += 2.0**-23 * (call == 8)

    repetition = walk_repeatedly(CROWD, wavering(monkeypatch, added), CPU)
    name = ("grad_value", "grad_sampling_locations", "grad_attention_weights")[position]
    assert [difference.output for difference in repetition.differences] == [name]
    assert "no atomics add to this output" in repetition.story


def test_unwritten_memory_shows(monkeypatch):
    def added(call, grads):
        del call
        grads[0] = torch.empty_like(grads[0]).mul_(0.0)

    assert "grad_value: not repeatable" in walk_repeatedly(CROWD, wavering(monkeypatch, added), CPU).story


def test_a_missing_output_is_told_as_such(monkeypatch):
    class Forgetful(Subject):
        def observe(self, inputs, **how):
            del how
            return super().observe(inputs, gradients=False)

    subject = Forgetful(name="forgetful", call=wavering(monkeypatch, nothing).call)
    assert "grad_value: wrong shape" in walk_repeatedly(CROWD, subject, CPU).story


def test_subject_is_told_its_modes(msda_device: str):
    subject = shipped(device=msda_device)
    native = subject.with_accumulate("native")
    assert native.arithmetic.accumulate == "native"
    assert subject.arithmetic.accumulate == "float32"
    bfloat16 = next(cell for cell in CELLS if cell.name == "bfloat16")
    if msda_device == "cpu":
        assert subject.refuses(bfloat16, "native") == "Triton's interpreter has no bfloat16 atomics"
    assert subject.refuses(bfloat16, "float32") is None
    stranger = from_callable(lambda *operands: operands[0], name="stranger")
    assert stranger.refuses(bfloat16, "native") == "stranger does not declare native accumulation"
    assert stranger.with_accumulate("float32").call is stranger.call
    with pytest.raises(ValueError, match="accumulate is 'native'; stranger declares float32"):
        stranger.with_accumulate("native")
    with pytest.raises(ValueError, match="determinism is 'run_to_run'; stranger declares not_guaranteed"):
        stranger.with_determinism("run_to_run")


def test_variants_have_names_of_their_own():
    names = [name_of(*pair) for pair in PAIRS]
    assert len(set(names)) == len(names) == 18
    subject = from_callable(lambda *operands: operands[0], name="stranger")
    assert label(FLOAT32, subject) == "float32 float32 accumulation"
    assert label(CELLS[0], dataclasses.replace(subject, determinism="run_to_run")).endswith("accumulation, run_to_run")


def test_figures_add_up():
    record: dict = {}
    note(record, "a", Agreement(cases=1, runs=8, elements=10, unequal=1, spread=0.5, ratio=0.25, collisions=3))
    note(record, "a", Agreement(cases=1, runs=24, elements=5, spread=0.25, ratio=0.75, collisions=2))
    merged = merge([record, {"b": dataclasses.asdict(Agreement(cases=1))}], Agreement)
    assert merged["a"]["runs"] == 32
    assert (merged["a"]["spread"], merged["a"]["ratio"], merged["a"]["collisions"]) == (0.5, 0.75, 3)
    header, first, second = table(merged)
    assert header.split()[-4:] == ["unequal", "spread", "ratio", "n"]
    assert first.split() == ["a", "2", "32", "0", "15", "1", "0.5", "0.750", "3"]
    assert len(header) == len(first) == len(second)
    assert table({}) == []
    lossy = merge([{"float16 native accumulation": dataclasses.asdict(Lossy(cases=2, collisions=3012))}], Lossy)
    assert lossy_lines(lossy)[0].startswith("lossy       float16 native accumulation, n = 3012:")
