"""Seeded faults for the oracles that have no tolerance or no reference: most of them stay within every error bound.

Each says which property must catch it. The edits read and write no memory that the kernels do not own.
"""

from __future__ import annotations

from dataclasses import dataclass

from .faults import FAULTS, Fault


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """A fault, and who must see it.

    Attributes:
        fault: the edit.
        property: name of the test function.
        cell: dtype cell that it is looked for in.
        bounded: whether its error is within the bounds, so that comparisons with the reference cannot be counted on.
    """

    fault: Fault
    property: str
    cell: str
    bounded: bool = False


LATTICE = "test_exact_on_a_lattice"
SCALING = "test_powers_of_two_scale_exactly"
ROWS = "test_rows_may_be_permuted"
ENTRIES = "test_entries_do_not_mix"
MIRROR = "test_mirrored_maps"
UNITY = "test_factors_sum_to_one"
ADJOINT = "test_gradients_are_adjoint_to_the_forward"
DIFFERENCES = "test_differences_are_exact"

_ADD = "acc += tl.sum(tl.reshape(weight[:, None] * s,"
_LAST_OF_FORWARD = "    q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q)\n    out_row"
# Two roundings in float32, which leave 1 and most other numbers one unit in the last place off, on every device.
_AND_BACK = " * 41.0 * 0.024390243902439025"
_KNOWN = {fault.name: fault for fault in FAULTS}

HALF_PRODUCT = Fault(
    name="interpolation rounded to half precision before float32 weights",
    before=_ADD,
    after=f"if value_ptr.dtype.element_ty == tl.float16:\n            s = s.to(tl.float16).to(COMPUTE)\n        {_ADD}",
)
EXTRA_ROUNDINGS = Fault(
    name="weights multiplied and divided again",
    before="other=0.0).to(COMPUTE), 0.0)\n    pixel",
    after=f"other=0.0).to(COMPUTE), 0.0){_AND_BACK}\n    pixel",
)
HALF_SLOPE = Fault(
    name="half a slope on a pixel edge",
    before="            tl.store(grad_attn_ptr + sample",
    after="            grad_x = tl.where(lx == 0.0, 0.5 * grad_x, grad_x)\n            tl.store(grad_attn_ptr + sample",
)
NEIGHBOUR = Fault(
    name="a neighbour's batch entry read and multiplied by zero",
    before=_LAST_OF_FORWARD,
    after=(
        "    other = value_ptr + tl.maximum(b - 1, 0) * stride_vb + m * stride_vm + channel\n"
        "    acc += 0.0 * tl.load(other, mask=channel_valid, other=0.0).to(COMPUTE)[None, :]\n" + _LAST_OF_FORWARD
    ),
)
ODD_ROW = Fault(
    name="the first row of a block rounded twice more",
    before=_LAST_OF_FORWARD,
    after=(f"    acc = tl.where((tl.arange(0, BLOCK_Q) == 0)[:, None], acc{_AND_BACK}, acc)\n" + _LAST_OF_FORWARD),
)
# A number of absolute size where all others are relative; far below the last bit of an ordinary result.
ABSOLUTE = Fault(
    name="a guard against zero added to what is not zero",
    before=_LAST_OF_FORWARD,
    after="    acc = tl.where(tl.abs(acc) > 0.01, acc + 2e-9, acc)\n" + _LAST_OF_FORWARD,
)

SEEDED = [
    Seeded(fault=HALF_PRODUCT, property=LATTICE, cell="float16-float32-float32"),
    Seeded(fault=EXTRA_ROUNDINGS, property=LATTICE, cell="float32", bounded=True),
    Seeded(fault=HALF_SLOPE, property=LATTICE, cell="float32"),
    Seeded(fault=HALF_SLOPE, property=LATTICE, cell="bfloat16"),
    Seeded(fault=NEIGHBOUR, property=ENTRIES, cell="float32", bounded=True),
    Seeded(fault=ODD_ROW, property=ROWS, cell="float32", bounded=True),
    Seeded(fault=ABSOLUTE, property=SCALING, cell="float32", bounded=True),
    # Caught by the reference too; here it is none.
    Seeded(fault=_KNOWN["height and width swapped in one place"], property=MIRROR, cell="float32"),
    Seeded(fault=_KNOWN["a missing corner"], property=UNITY, cell="float32"),
    Seeded(fault=_KNOWN["one corner's weight wrong"], property=ADJOINT, cell="bfloat16"),
    Seeded(fault=_KNOWN["store instead of atomic add"], property=ADJOINT, cell="float32"),
    Seeded(fault=_KNOWN["location gradient without the width"], property=DIFFERENCES, cell="float32"),
    Seeded(fault=_KNOWN["sign of one gradient term"], property=DIFFERENCES, cell="float64"),
]

# Right with one warp, as the shipped plan has it; the other plan, right by itself, makes it wrong.
WARP_DEPENDENT = Fault(
    name="samples left over by the number of warps",
    file="launch.py",
    before="problem.samples,",
    after="problem.samples - problem.samples % plan.num_warps,",
)
MORE_WARPS = Fault(name="two warps", file="plan.py", before="NUM_WARPS = 1", after="NUM_WARPS = 2")
