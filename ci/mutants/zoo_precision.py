"""Mutants of arithmetic and memory: dtypes and precision, accumulators and initialisation, atomics and races.

Some of them only show in repeated runs, or to oracles that have no tolerance: they stay within every error bound, or
are right as long as programs run in ascending order.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, one_edit
from .zoo_geometry import COORDINATE
from .zoo_gradients import FACTORS, STORE_X

ADD = "acc += tl.sum(tl.reshape(weight[:, None] * s,"
LAST_OF_FORWARD = "    q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q)\n    out_row"
# Two roundings in float32, which leave 1 and most other numbers one unit in the last place off, on every device.
AND_BACK = " * 41.0 * 0.024390243902439025"
NOT_ZEROED = Edit(file="launch.py", before="grads = [torch.zeros(value.shape", after="grads = [torch.empty(value.shape")
LAUNCH = "    start(getattr(kernels, kernel), plan.programs"
BACKWARD = '@triton.jit(\n    do_not_specialize=[\n        "stride_vb"'
GRAD_BASE = "    grad_out_base = grad_out_ptr + ((b * Q + q_block * BLOCK_Q) * M + m) * D\n"
ATOMIC = 'tl.atomic_add(pointers, contribution, mask=mask, sem="relaxed")'

PRECISION = (
    one_edit(
        "coordinate in half precision",
        "dtypes and precision",
        COORDINATE,
        "x = (position.to(tl.float16) * size.to(tl.float16) - 0.5).to(COMPUTE)",
    ),
    one_edit(
        "coordinate rounded to bfloat16 levels",
        "dtypes and precision",
        COORDINATE,
        "x = (position.to(COMPUTE) * extent).to(tl.float16).to(COMPUTE) - 0.5",
    ),
    one_edit(
        "bfloat16 accumulator",
        "dtypes and precision",
        "(BLOCK_Q, BLOCK_P, BLOCK_D)), axis=1)",
        "(BLOCK_Q, BLOCK_P, BLOCK_D)), axis=1)\n        acc = acc.to(tl.bfloat16).to(COMPUTE)",
    ),
    one_edit(
        "interpolation rounded to half precision before float32 weights",
        "dtypes and precision",
        ADD,
        f"if value_ptr.dtype.element_ty == tl.float16:\n            s = s.to(tl.float16).to(COMPUTE)\n        {ADD}",
    ),
    one_edit(
        "product with the weight rounded to half precision",
        "dtypes and precision",
        ADD,
        "acc += tl.sum(tl.reshape((weight[:, None] * s).to(tl.float16).to(COMPUTE),",
    ),
    one_edit(
        "weights multiplied and divided again",
        "dtypes and precision",
        "other=0.0).to(COMPUTE), 0.0)\n    pixel",
        f"other=0.0).to(COMPUTE), 0.0){AND_BACK}\n    pixel",
    ),
    one_edit(
        "the first row of a block rounded twice more",
        "dtypes and precision",
        LAST_OF_FORWARD,
        f"    acc = tl.where((tl.arange(0, BLOCK_Q) == 0)[:, None], acc{AND_BACK}, acc)\n" + LAST_OF_FORWARD,
    ),
    # A number of absolute size where all others are relative; far below the last bit of an ordinary result.
    one_edit(
        "a guard against zero added to what is not zero",
        "dtypes and precision",
        LAST_OF_FORWARD,
        "    acc = tl.where(tl.abs(acc) > 0.01, acc + 2e-9, acc)\n" + LAST_OF_FORWARD,
    ),
    one_edit(
        "subnormal results flushed",
        "dtypes and precision",
        LAST_OF_FORWARD,
        "    acc = tl.where(tl.abs(acc) < 1e-7, 0.0, acc)\n" + LAST_OF_FORWARD,
    ),
    one_edit(
        "float64 computed in float32",
        "dtypes and precision",
        "return torch.float64 if value == torch.float64 else torch.float32",
        "return torch.float32",
        file="plan.py",
    ),
    one_edit(
        "factors of grad_value rounded to half precision",
        "dtypes and precision",
        FACTORS,
        f"{FACTORS}\n        c01 = c01.to(tl.float16).to(COMPUTE)",
    ),
    one_edit(
        "fraction in half precision",
        "dtypes and precision",
        "return weight, x - x_floor, y - y_floor, width,",
        "return weight, (x - x_floor).to(tl.float16).to(COMPUTE), y - y_floor, width,",
    ),
    one_edit(
        "output through half precision",
        "dtypes and precision",
        "return out.to(value.dtype)",
        "return out.to(torch.float16).to(value.dtype)",
        file="launch.py",
    ),
    one_edit(
        "gradients of samples kept in value's dtype",
        "dtypes and precision",
        "dtype=buffer_dtype(operand.dtype, arch)",
        "dtype=buffer_dtype(value.dtype, arch)",
        file="launch.py",
    ),
    one_edit(
        "locations converted to value's dtype",
        "dtypes and precision",
        "operands.sampling_locations.contiguous()",
        "operands.sampling_locations.to(operands.value.dtype).contiguous()",
        file="launch.py",
    ),
    one_edit(
        "weights converted to value's dtype",
        "dtypes and precision",
        "operands.attention_weights.contiguous()",
        "operands.attention_weights.to(operands.value.dtype).contiguous()",
        file="launch.py",
    ),
)

ACCUMULATORS = (
    Mutant(name="accumulator not zeroed", family="accumulator and initialisation", edits=(NOT_ZEROED,)),
    Mutant(
        name="accumulator zeroed by the first program",
        family="accumulator and initialisation",
        edits=(
            NOT_ZEROED,
            Edit(
                before=GRAD_BASE,
                after=GRAD_BASE
                + """\
    if (q_block == 0) & (need_value != 0):
        for begin in range(0, S * D, 512):
            element = begin + tl.arange(0, 512)
            zero = tl.zeros((512,), grad_value_ptr.dtype.element_ty)
            tl.store(grad_base + (element // D) * M * D + element % D, zero, mask=element < S * D)
""",
            ),
        ),
    ),
    one_edit(
        "float16 accumulator by default",
        "accumulator and initialisation",
        "        return compute_dtype(value)\n    if architecture",
        "        return value if value == torch.float16 else compute_dtype(value)\n    if architecture",
        file="plan.py",
    ),
    one_edit(
        "last chunk of samples alone",
        "accumulator and initialisation",
        ADD,
        ADD.replace("+=", "="),
    ),
    one_edit(
        "output starts at one unit of the smallest",
        "accumulator and initialisation",
        "acc = tl.zeros((BLOCK_Q, BLOCK_D), COMPUTE)",
        "acc = tl.zeros((BLOCK_Q, BLOCK_D), COMPUTE) + 1e-30",
    ),
    one_edit(
        "sum starts at minus zero",
        "accumulator and initialisation",
        "acc = tl.zeros((BLOCK_Q, BLOCK_D), COMPUTE)",
        "acc = tl.full((BLOCK_Q, BLOCK_D), -0.0, COMPUTE)",
        equivalent="-0 + t is t for every t, the sign of zero included, and 0 + t is t but for t = -0. So the sums "
        "differ at most in the sign of a result that is zero, and the operator promises no sign of zero: a sum of "
        "contributions of both signs may be either.",
    ),
    one_edit(
        "output of an empty call not written",
        "accumulator and initialisation",
        "return value.new_zeros(shape)",
        "return value.new_empty(shape)",
        file="launch.py",
    ),
    one_edit(
        "gradients of an empty call not written",
        "accumulator and initialisation",
        "make = torch.zeros if problem.empty else torch.empty",
        "make = torch.empty",
        file="launch.py",
    ),
    one_edit(
        "output buffer used again by the next call",
        "accumulator and initialisation",
        "out = torch.empty(shape, dtype=buffer_dtype(value.dtype, arch), device=value.device)",
        'out = launch.__dict__.setdefault(f"{shape}{value.dtype}", torch.empty(shape, '
        "dtype=buffer_dtype(value.dtype, arch), device=value.device))",
        file="launch.py",
    ),
)

RACES = (
    one_edit("store instead of atomic add", "atomics and races", ATOMIC, "tl.store(pointers, contribution, mask=mask)"),
    one_edit(
        "load, add, store instead of atomic add",
        "atomics and races",
        ATOMIC,
        "tl.store(pointers, tl.load(pointers, mask=mask, other=0.0) + contribution, mask=mask)",
    ),
    one_edit(
        "atomic maximum instead of atomic add",
        "atomics and races",
        ATOMIC,
        "tl.store(pointers, tl.maximum(tl.load(pointers, mask=mask, other=0.0), contribution), mask=mask)",
    ),
    Mutant(
        name="load, add, store by programs of one sample",
        family="atomics and races",
        edits=(
            Edit(
                before=ATOMIC,
                after="tl.store(pointers, tl.load(pointers, mask=mask, other=0.0) + contribution, mask=mask)",
            ),
            Edit(
                file="plan.py",
                before='    if architecture == "interpreter":\n        return INTERPRETER_ROWS\n',
                after="    return 1, 1\n",
            ),
        ),
        needs_gpu="the interpreter runs each program to its end before the next, so nothing comes between a load and "
        "its store, and with one sample in a tile no two of its rows meet",
    ),
    Mutant(
        name="row of the next program written too",
        family="atomics and races",
        edits=(
            Edit(
                before=f"            {STORE_X}",
                after=f"""\
            beyond = sample + BLOCK_Q * M * LK
            overlaps = used & (beyond < (b + 1) * Q * M * LK)
            tl.store(grad_loc_ptr + 2 * beyond, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=overlaps)
            {STORE_X}""",
            ),
        ),
    ),
    # What an autotuner does: it tries its candidates on the live buffers when it meets a key for the first time.
    one_edit(
        "launched twice on a cold key",
        "atomics and races",
        LAUNCH,
        f"""\
    tuned = launch.__dict__.setdefault("tuned", set())
    for _ in range(1 if kernel == "forward" or plan in tuned else 2):
        tuned.add(plan)
    {LAUNCH}""",
        file="launch.py",
    ),
    Mutant(
        name="autotuned without reset_to_zero",
        family="atomics and races",
        edits=(
            Edit(
                before=BACKWARD,
                after="@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (1, 2)], key=['D_VECS'])\n"
                + BACKWARD,
            ),
            Edit(
                file="launch.py",
                before="**options(plan))",
                after="**({} if kernel == 'backward' else options(plan)))",
            ),
        ),
        needs_gpu="the interpreter does not tune: an autotuned kernel asks for the driver of a GPU",
    ),
    one_edit(
        "blocks change from call to call",
        "atomics and races",
        LAUNCH,
        f"""\
    calls = launch.__dict__["calls"] = launch.__dict__.get("calls", 0) + 1
    plan = __import__("dataclasses").replace(plan, block_p=plan.block_p // (1 + calls // 2 % 2))
{LAUNCH}""",
        file="launch.py",
    ),
)

MUTANTS = (*PRECISION, *ACCUMULATORS, *RACES)
