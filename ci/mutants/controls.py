"""Right operators that are not the shipped one: other plans, orders of addition, arithmetic. None may alarm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .mutant import Control, Edit
from .package import edited

if TYPE_CHECKING:
    from properties.subject import Subject

HERE = "ci.mutants.operators"
SUM = "s = (hy * hx)[:, None] * v00 + (hy * lx)[:, None] * v01 + (ly * hx)[:, None] * v10 + (ly * lx)[:, None] * v11"
ADD = "        acc += tl.sum(tl.reshape(weight[:, None] * s, (BLOCK_Q, BLOCK_P, BLOCK_D)), axis=1)"
FACTORS = "c00, c01, c10, c11 = weight * w00, weight * w01, weight * w10, weight * w11"
BY_CHANNELS = "    d_block = pid % d_blocks\n    pid = pid // d_blocks\n"
BY_QUERIES = "    q_block = pid % q_blocks\n    pid = pid // q_blocks\n"
LOOP = "    for p_start in range(0, LK, BLOCK_P):\n"
SCATTERS = "".join(
    f"        _scatter(grad_base, p{corner}, grad_stride, channel, ok, c{corner}[:, None] * g, VEC)\n"
    for corner in ("00", "01", "10", "11")
)
OUT = "acc.to(out_ptr.dtype.element_ty)"


def _plan(before: str, after: str) -> Edit:
    return Edit(file="plan.py", before=before, after=after)


EDITED = (
    Control(name="as shipped"),
    Control(
        name="other blocks of rows and channels",
        edits=(
            _plan("INTERPRETER_ROWS = (4, 32)", "INTERPRETER_ROWS = (8, 8)"),
            _plan("NARROW, BROAD = 32, 64", "NARROW, BROAD = 16, 32"),
            _plan("return 2 if narrow else 1, 16", "return 1, 8"),
        ),
    ),
    Control(
        name="one query and few samples a program",
        edits=(
            _plan("INTERPRETER_ROWS = (4, 32)", "INTERPRETER_ROWS = (2, 16)"),
            _plan("return 2 if narrow else 1, 16", "return 1, 4"),
        ),
    ),
    Control(
        name="four warps", edits=(_plan("NUM_WARPS = 1", "NUM_WARPS = 4"),), needs_gpu="the interpreter has no warps"
    ),
    Control(
        name="no fused multiply-adds",
        edits=(
            Edit(file="launch.py", before='"enable_fp_fusion": True', after='"enable_fp_fusion": False'),
            Edit(file="ordered.py", before='"enable_fp_fusion": True', after='"enable_fp_fusion": False'),
        ),
        needs_gpu="the interpreter fuses nothing",
    ),
    Control(name="no vectors", edits=(_plan("return width if all(", "return 1 if all("),)),
    Control(
        name="samples added from the last to the first",
        edits=(
            Edit(
                before=LOOP,
                after=LOOP.replace("p_start", "p_back") + "        p_start = (LK - 1) // BLOCK_P * BLOCK_P - p_back\n",
            ),
        ),
    ),
    Control(
        name="corners added in another order",
        edits=(
            Edit(
                before=SUM,
                after="s = ((ly * lx)[:, None] * v11 + (hy * lx)[:, None] * v01) + "
                "((ly * hx)[:, None] * v10 + (hy * hx)[:, None] * v00)",
            ),
        ),
    ),
    Control(
        name="corners scattered in another order",
        edits=(Edit(before=SCATTERS, after="".join(reversed(SCATTERS.splitlines(keepends=True)))),),
    ),
    Control(
        name="linear interpolation along x, then along y",
        edits=(
            Edit(
                before=SUM,
                after="s = (v00 + lx[:, None] * (v01 - v00)) * hy[:, None] "
                "+ (v10 + lx[:, None] * (v11 - v10)) * ly[:, None]",
            ),
        ),
        declares={"interpolation": "lerp"},
    ),
    Control(
        name="weight multiplied into each factor",
        edits=(
            Edit(
                before=SUM,
                after="s = (weight * (hy * hx))[:, None] * v00 + (weight * (hy * lx))[:, None] * v01 "
                "+ (weight * (ly * hx))[:, None] * v10 + (weight * (ly * lx))[:, None] * v11",
            ),
            Edit(before="tl.reshape(weight[:, None] * s,", after="tl.reshape(s,"),
        ),
        declares={"corner_sum": "flat"},
    ),
    Control(
        name="contributions as factor times (weight times g)",
        edits=(
            Edit(before=FACTORS, after="c00, c01, c10, c11 = w00, w01, w10, w11"),
            Edit(
                before="p00, p01, p10, p11, c00, c01, c10, c11,\n    d_start",
                after="p00, p01, p10, p11, c00, c01, c10, c11, weight,\n    d_start",
            ),
            *(
                Edit(
                    before="p00, p01, p10, p11, c00, c01, c10, c11,\n" + " " * indent,
                    after="p00, p01, p10, p11, c00, c01, c10, c11, weight,\n" + " " * indent,
                )
                for indent in (20, 16)
            ),
            *(
                Edit(before=f"c{corner}[:, None] * g, VEC)", after=f"c{corner}[:, None] * (weight[:, None] * g), VEC)")
                for corner in ("00", "01", "10", "11")
            ),
            *(
                Edit(
                    file="ordered_kernels.py",
                    before="p11, lx, lx, lx, lx,\n" + " " * indent,
                    after="p11, lx, lx, lx, lx, lx,\n" + " " * indent,
                )
                for indent in (20, 16)
            ),
        ),
    ),
    Control(
        name="samples at x = -1 and y = -1 count",
        edits=(
            Edit(before="(x > -1.0) & (x < extent)", after="(x >= -1.0) & (x < extent)"),
            Edit(
                file="ordered_kernels.py",
                before="live = used & (x > -1.0) & (x < width.to(COMPUTE)) & (y > -1.0)",
                after="live = used & (x >= -1.0) & (x < width.to(COMPUTE)) & (y >= -1.0)",
            ),
        ),
    ),
    Control(
        name="programs numbered by query block first",
        edits=(
            Edit(
                before=BY_CHANNELS + BY_QUERIES,
                after=BY_QUERIES + BY_CHANNELS,
            ),
        ),
    ),
    Control(
        name="always a loop over blocks of channels",
        edits=(
            _plan(
                'loop_d=kernel == "backward" and (problem.channels > NARROW or vec == 1)', 'loop_d=kernel == "backward"'
            ),
        ),
    ),
    Control(name="offsets in 64 bits", edits=(_plan("return extent >= INT32_LIMIT", "return extent >= 0"),)),
    Control(
        name="float32 values computed in float64",
        edits=(_plan("return torch.float64 if value == torch.float64 else torch.float32", "return torch.float64"),),
    ),
    Control(
        name="accumulator from new_zeros, outputs from zeros",
        edits=(
            Edit(
                file="launch.py",
                before="grads = [torch.zeros(value.shape if need_value else 0, dtype=kind, device=value.device)]",
                after="grads = [value.new_zeros(value.shape if need_value else 0, dtype=kind)]",
            ),
            Edit(file="launch.py", before="out = torch.empty(shape", after="out = torch.zeros(shape"),
            Edit(
                file="launch.py",
                before="make = torch.zeros if problem.empty else torch.empty",
                after="make = torch.zeros",
            ),
        ),
    ),
    Control(
        name="batch entries one after the other",
        edits=(Edit(file="ordered_plan.py", before="WORKSPACE_LIMIT = 2**30", after="WORKSPACE_LIMIT = 1"),),
    ),
    Control(
        name="several items a counter, longer runs",
        edits=(
            Edit(file="ordered_plan.py", before="ITEMS_PER_COUNTER = 1", after="ITEMS_PER_COUNTER = 4"),
            Edit(file="ordered_plan.py", before="INTERPRETER_RUN_BITS = 2", after="INTERPRETER_RUN_BITS = 4"),
        ),
    ),
    Control(
        name="one chunk of samples in a tree",
        edits=(
            Edit(
                before=ADD,
                after="        products = tl.reshape(weight[:, None] * s, (BLOCK_Q, BLOCK_P // 2, 2, BLOCK_D))\n"
                "        acc += tl.sum(tl.sum(products, axis=2), axis=1)",
            ),
        ),
    ),
)
OPERATORS = (
    Control(name="PyTorch, gathered, in float32", operator=f"{HERE}:gathered"),
    Control(name="PyTorch, grid_sample", operator=f"{HERE}:grid_sampled"),
    Control(name="PyTorch, sorted accumulation", operator=f"{HERE}:sorted_sums"),
    Control(name="PyTorch, in float64 throughout", operator=f"{HERE}:in_float64"),
)
CONTROLS = (*EDITED, *OPERATORS)


@contextmanager
def built(control: Control, *, device: str) -> Iterator[Subject]:
    """Yield a control as a subject with what it declares.

    Args:
        control: which.
        device: "cuda" or "cpu".

    Raises:
        ValueError: an edit does not apply, or its operator cannot be imported.
    """
    from properties.subject import load, shipped  # noqa: PLC0415 - imports torch and triton

    if control.operator:
        yield replace(load(control.operator, device=device), name=control.name)
        return
    with edited(*control.edits, name=f"control {control.name}") as package:
        subject = shipped(package, device=device)
        declared: dict[str, Any] = dict(control.declares)
        yield replace(subject, arithmetic=replace(subject.arithmetic, **declared), uniform=control.uniform)
