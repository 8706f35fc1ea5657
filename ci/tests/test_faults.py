"""Twelve seeded faults are caught by the properties, and correct variants of the kernels raise no alarm."""

from __future__ import annotations

import pytest
import torch

from ci.faults import FAULTS, main
from ci.hunt import hunt
from ci.mutants.mutant import Edit, Mutant
from ci.mutants.package import edited, mutated
from properties.cells import CELLS
from properties.limits import Limits
from properties.recipe import Recipe
from properties.subject import Subject, load, shipped
from properties.walk import walk

# Far more than any of them needs; most are caught by the first few cases.
CASES_TO_CATCH = 60
CASES_WITHOUT_ALARM = 40

# Which outputs a fault can spoil. A catch by another output would be a catch by accident.
SPOILS = {
    "half-pixel constant missing": {"out", "grad_value", "grad_sampling_locations", "grad_attention_weights"},
    "height and width swapped in one place": {"grad_sampling_locations"},
    "<= for < in a bound check": {"out", "grad_value", "grad_sampling_locations", "grad_attention_weights"},
    "one corner's weight wrong": {"out"},
    "a missing corner": {"out"},
    "location gradient without the width": {"grad_sampling_locations"},
    "sign of one gradient term": {"grad_sampling_locations"},
    "store instead of atomic add": {"grad_value"},
    "bfloat16 accumulator": {"out"},
    "coordinate in half precision": {"out", "grad_value", "grad_sampling_locations", "grad_attention_weights"},
    "level start off by one row": {"out", "grad_value", "grad_sampling_locations", "grad_attention_weights"},
    "last channel masked away": {"out"},
}

OTHER_BLOCKS = [
    Edit(file="plan.py", before="INTERPRETER_ROWS = (4, 32)", after="INTERPRETER_ROWS = (8, 8)"),
    Edit(file="plan.py", before="NARROW, BROAD = 32, 64", after="NARROW, BROAD = 16, 32"),
    Edit(file="plan.py", before="NUM_WARPS = 1", after="NUM_WARPS = 2"),
]


def limits_for(subject: Subject, device: str) -> Limits:
    return Limits.cuda(subject.block_edges) if device == "cuda" else Limits.cpu(subject.block_edges)


def test_there_are_twelve_faults():
    assert len(FAULTS) == 12
    assert SPOILS.keys() == {fault.name for fault in FAULTS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught(fault: Mutant, msda_device: str):
    with mutated(fault, device=msda_device) as subject:
        catch = hunt(
            subject, device=msda_device, limits=limits_for(subject, msda_device), cells=CELLS, examples=CASES_TO_CATCH
        )
    assert catch is not None, f"{fault.name}: not caught in {CASES_TO_CATCH} cases"
    assert catch.outputs <= SPOILS[fault.name]


@pytest.mark.parametrize("edits", [[], OTHER_BLOCKS], ids=["as shipped", "other block sizes"])
def test_correct_kernels_raise_no_alarm(edits: list[Edit], msda_device: str):
    with edited(*edits, name=f"control_{len(edits)}") as package:
        subject = shipped(package, device=msda_device)
        catch = hunt(
            subject,
            device=msda_device,
            limits=limits_for(subject, msda_device),
            cells=CELLS,
            examples=CASES_WITHOUT_ALARM,
        )
    assert catch is None, f"{catch.recipe!r}: {catch.verdict}"


def test_a_fault_that_no_longer_applies_says_so():
    with pytest.raises(ValueError, match=r"mutant 'gone': 'no such text' stands 0 times in msda/kernels.py"):
        Edit(before="no such text", after="").apply("source", "gone")


def test_written_faults_are_subjects(tmp_path, monkeypatch, capsys, msda_device: str):
    assert main([str(tmp_path)]) == 0
    names = capsys.readouterr().out.split()
    assert len(set(names)) == len(FAULTS)
    assert "less_or_equal_for_less_in_a_bound_check:operator" in names
    monkeypatch.syspath_prepend(str(tmp_path))
    wrong = load("half_pixel_constant_missing:operator", device=msda_device)
    assert not walk(Recipe(cell=CELLS[1], levels=((2, 3),)), wrong, torch.device(msda_device)).verdict.passed
