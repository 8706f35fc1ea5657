"""Seeded faults that show in repeated runs: what depends on the order of programs, on memory, or on the call before.

Most of them give right results in the interpreter as it is, where programs run in ascending order, and on a GPU more
often than not. All are memory safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ci.faults import Fault, edited
from properties.subject import Subject, shipped


@dataclass(frozen=True, kw_only=True)
class OrderFault:
    """One fault, of one edit or several that belong together.

    Attributes:
        name: what was done, in a few words.
        edits: as (file, before, after).
        devices: where the fault can run.
        hidden: whether single runs in the interpreter, in ascending order, are right all the same.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    devices: tuple[str, ...] = ("cpu", "cuda")
    hidden: bool = False


NOT_ZEROED = ("launch.py", "grads = [torch.zeros(value.shape", "grads = [torch.empty(value.shape")
LAUNCH = "    start(getattr(kernels, kernel), plan.programs"
BACKWARD = '@triton.jit(\n    do_not_specialize=[\n        "stride_vb"'
BASE = "    grad_out_base = grad_out_ptr + ((b * Q + q_block * BLOCK_Q) * M + m) * D\n"
STORE_X = "            tl.store(grad_loc_ptr + 2 * sample, "

ORDER_FAULTS = (
    OrderFault(name="accumulator not zeroed", edits=(NOT_ZEROED,)),
    OrderFault(
        name="accumulator zeroed by the first program",
        edits=(
            NOT_ZEROED,
            (
                "kernels.py",
                BASE,
                BASE
                + """\
    if (q_block == 0) & (need_value != 0):
        for begin in range(0, S * D, 512):
            element = begin + tl.arange(0, 512)
            zero = tl.zeros((512,), grad_value_ptr.dtype.element_ty)
            tl.store(grad_base + (element // D) * M * D + element % D, zero, mask=element < S * D)
""",
            ),
        ),
        hidden=True,
    ),
    OrderFault(
        name="row of the next program written too",
        edits=(
            (
                "kernels.py",
                STORE_X,
                f"""\
            beyond = sample + BLOCK_Q * M * LK
            overlaps = used & (beyond < (b + 1) * Q * M * LK)
            tl.store(grad_loc_ptr + 2 * beyond, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=overlaps)
{STORE_X}""",
            ),
        ),
        hidden=True,
    ),
    # What an autotuner does: it tries its candidates on the live buffers when it meets a key for the first time.
    OrderFault(
        name="launched twice on a cold key",
        edits=(
            (
                "launch.py",
                LAUNCH,
                f"""\
    tuned = launch.__dict__.setdefault("tuned", set())
    for _ in range(1 if kernel == "forward" or plan in tuned else 2):
        tuned.add(plan)
    {LAUNCH}""",
            ),
        ),
    ),
    OrderFault(
        name="autotuned without reset_to_zero",
        edits=(
            (
                "kernels.py",
                BACKWARD,
                "@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (1, 2)], key=['D_VECS'])\n"
                + BACKWARD,
            ),
            ("launch.py", "**options(plan))", "**({} if kernel == 'backward' else options(plan)))"),
        ),
        devices=("cuda",),
    ),
    OrderFault(
        name="blocks change from call to call",
        edits=(
            (
                "launch.py",
                LAUNCH,
                f"""\
    calls = launch.__dict__["calls"] = launch.__dict__.get("calls", 0) + 1
    plan = __import__("dataclasses").replace(plan, block_p=plan.block_p // (1 + calls // 2 % 2))
{LAUNCH}""",
            ),
        ),
        hidden=True,
    ),
)


@contextmanager
def faulty(fault: OrderFault, *, device: str) -> Iterator[Subject]:
    """Yield the shipped operator with one fault, as a subject."""
    name = "order_" + "".join(c if c.isalnum() else "_" for c in fault.name)
    edits = (Fault(name=fault.name, file=file, before=before, after=after) for file, before, after in fault.edits)
    with edited(*edits, name=name) as package:
        yield shipped(package, device=device)
