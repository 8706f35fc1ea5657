"""Faults within the error bounds are caught by the exact and reference-free properties; correct kernels pass them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from ci.exact_faults import MORE_WARPS, SEEDED, WARP_DEPENDENT, Seeded
from ci.faults import Fault, edited, faulty
from ci.hunt import hunt
from ci.property_hunt import caught
from properties import test_adjoint as adjoint
from properties import test_lattice as lattice
from properties import test_metamorphic as metamorphic
from properties.cells import CELLS, cell_named
from properties.limits import Limits
from properties.subject import Subject, shipped

# Cases drawn until a fault counts as missed; a property that takes half a share draws half as many.
CASES_TO_CATCH = 60
CASES_WITHOUT_ALARM = 6
# A fault that comparisons with the reference do not see, in as many cases.
CASES_UNSEEN = 15

OTHER_BLOCKS = [
    Fault(name="rows", file="plan.py", before="INTERPRETER_ROWS = (4, 32)", after="INTERPRETER_ROWS = (8, 8)"),
    Fault(name="channel blocks", file="plan.py", before="NARROW, BROAD = 32, 64", after="NARROW, BROAD = 16, 32"),
    MORE_WARPS,
]


def property_named(name: str) -> Callable[..., None]:
    found: Callable[..., None] = next(
        getattr(module, name) for module in (lattice, metamorphic, adjoint) if hasattr(module, name)
    )
    return found


def variant(name: str, cell: str) -> dict:
    parameters: dict = {"cell": cell_named(cell)}
    return parameters | {"accumulate": "float32"} if name == lattice.test_exact_on_a_lattice.__name__ else parameters


def limits_for(subject: Subject, device: str) -> Limits:
    return Limits.cuda(subject.block_edges) if device == "cuda" else Limits.cpu(subject.block_edges)


def run(subject: Subject, name: str, cell: str, device: str, examples: int) -> str | None:
    return caught(
        property_named(name),
        subject,
        device=device,
        limits=limits_for(subject, device),
        examples=examples,
        **variant(name, cell),
    )


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda seeded: f"{seeded.fault.name}-{seeded.cell}")
def test_fault_is_caught(seeded: Seeded, msda_device: str):
    with faulty(seeded.fault, device=msda_device) as subject:
        story = run(subject, seeded.property, seeded.cell, msda_device, CASES_TO_CATCH)
    assert story is not None, f"{seeded.fault.name}: not caught by {seeded.property}"
    assert "worst" in story


@pytest.mark.parametrize(
    "seeded", [seeded for seeded in SEEDED if seeded.bounded], ids=lambda seeded: seeded.fault.name
)
def test_bounds_alone_do_not_see_it(seeded: Seeded, msda_device: str):
    # What makes these faults worth their properties. Should a sharper bound see one some day, all the better.
    with faulty(seeded.fault, device=msda_device) as subject:
        catch = hunt(
            subject,
            device=msda_device,
            limits=limits_for(subject, msda_device),
            cells=(cell_named(seeded.cell),),
            examples=CASES_UNSEEN,
        )
    assert catch is None, f"{catch.recipe!r}: {catch.verdict}"


def variants(base: list[Fault], other: list[Fault], device: str, examples: int) -> str | None:
    """Run one package against another, as a variant of it."""
    with edited(*base, name="variant_base") as package, edited(*base, *other, name="variant_other") as changed:
        subject = shipped(package, device=device)
        subject = dataclasses.replace(subject, variants=(shipped(changed, device=device),))
        return caught(
            metamorphic.test_blocks_and_warps_do_not_matter,
            subject,
            device=device,
            limits=limits_for(subject, device),
            examples=examples,
        )


def test_a_result_that_depends_on_warps_is_caught(msda_device: str):
    story = variants([WARP_DEPENDENT], [MORE_WARPS], msda_device, CASES_TO_CATCH)
    assert story is not None
    assert story.startswith("msda_variant_other against msda_variant_base: ")


def test_other_blocks_and_warps_agree(msda_device: str):
    assert variants([], OTHER_BLOCKS, msda_device, 2 * CASES_WITHOUT_ALARM) is None


@pytest.mark.parametrize(
    "name",
    [
        "test_exact_on_a_lattice",
        "test_rows_may_be_permuted",
        "test_samples_may_be_permuted",
        "test_batch_may_be_split",
        "test_mirrored_maps",
        "test_gradients_are_adjoint_to_the_forward",
    ],
)
def test_correct_kernels_raise_no_alarm(name: str, msda_device: str):
    with edited(*OTHER_BLOCKS, name="exact_control") as package:
        subject = shipped(package, device=msda_device)
        for cell in CELLS[1:4]:
            assert run(subject, name, cell.name, msda_device, CASES_WITHOUT_ALARM) is None
