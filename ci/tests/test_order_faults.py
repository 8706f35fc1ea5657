"""Faults of order, of initialisation and of state are caught by repeated runs, and most of them by nothing else."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ci.hunt import hunt
from ci.mutants.mutant import Mutant
from ci.mutants.package import mutated
from ci.mutants.zoo import named
from properties.cells import CELLS
from properties.limits import Limits
from properties.recipe import Recipe
from properties.repeat import walk_repeatedly
from properties.subject import Subject, shipped
from properties.verdict import Verdict

CASES_TO_CATCH = 40
CASES_THAT_SHOW_NOTHING = 15
CASES_WITHOUT_ALARM = 6
FLOAT32 = tuple(cell for cell in CELLS if cell.value == torch.float32)
SPOILS = {
    "accumulator not zeroed": {"grad_value"},
    "accumulator zeroed by the first program": {"grad_value"},
    "row of the next program written too": {"grad_sampling_locations"},
    "launched twice on a cold key": {"grad_value"},
    "autotuned without reset_to_zero": {"grad_value"},
    "blocks change from call to call": {"out", "grad_value", "grad_sampling_locations", "grad_attention_weights"},
}


FAULTS = [named(name) for name in SPOILS]
# Right in the interpreter as it is, where programs run in ascending order.
HIDDEN = [
    named(name)
    for name in (
        "accumulator zeroed by the first program",
        "row of the next program written too",
        "blocks change from call to call",
    )
]


def repeatable(recipe: Recipe, subject: Subject, device: torch.device) -> Verdict:
    return walk_repeatedly(recipe, subject, device).verdict


def limits_for(subject: Subject, device: str) -> Limits:
    if device == "cuda":
        return Limits.cuda(subject.block_edges)
    return dataclasses.replace(Limits.cpu(subject.block_edges), max_steps=4)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught_by_repeated_runs(fault: Mutant, msda_device: str):
    if fault.needs_gpu and msda_device == "cpu":
        pytest.skip(f"{fault.name}: {fault.needs_gpu}")
    with mutated(fault, device=msda_device) as subject:
        catch = hunt(
            subject,
            device=msda_device,
            limits=limits_for(subject, msda_device),
            cells=FLOAT32,
            examples=CASES_TO_CATCH,
            judge=repeatable,
        )
    assert catch is not None, f"{fault.name}: not caught in {CASES_TO_CATCH} cases"
    assert catch.outputs <= SPOILS[fault.name]


@pytest.mark.parametrize("fault", HIDDEN, ids=lambda fault: fault.name)
def test_hidden_fault_passes_its_bounds(fault: Mutant, msda_device: str):
    if msda_device != "cpu":
        pytest.skip("on a GPU a fault of order may show at any time")
    with mutated(fault, device=msda_device) as subject:
        catch = hunt(
            subject,
            device=msda_device,
            limits=limits_for(subject, msda_device),
            cells=FLOAT32,
            examples=CASES_THAT_SHOW_NOTHING,
        )
    assert catch is None, f"{fault.name}: {catch.verdict}"


def test_correct_kernels_raise_no_alarm(msda_device: str):
    subject = shipped(device=msda_device)
    catch = hunt(
        subject,
        device=msda_device,
        limits=limits_for(subject, msda_device),
        cells=CELLS,
        examples=CASES_WITHOUT_ALARM,
        judge=repeatable,
    )
    assert catch is None, f"{catch.recipe!r}: {catch.verdict}"
