"""Mutants of plans and of what goes with them: layouts and strides, block edges, level tables, sizes."""

from __future__ import annotations

from .mutant import Edit, Mutant, one_edit
from .zoo_geometry import PIXEL

MISALIGNED = (
    "alignment is a promise to the compiler, which the interpreter does not read: every address is right, and only a "
    "16-byte instruction faults on it"
)
# Nothing that is drawn has 2^31 elements.
HUGE = "offsets of 2^31 elements and more need tensors of gigabytes, and cases in the interpreter have 2^16 elements"
FORWARD_LOOP = "    for p_start in range(0, LK, BLOCK_P):\n"
INT64_TABLE = "dtype=torch.int64).contiguous() for tensor in table"
WIDTH_AND_HEIGHT = (
    "    height = tl.load(shapes_ptr + 2 * level, mask=used, other=1)\n"
    "    width = tl.load(shapes_ptr + 2 * level + 1, mask=used, other=1)\n"
)

LAYOUTS = (
    # Expanded tensors have less memory than elements; they are left alone, so that nothing is read beyond them.
    one_edit(
        "strides of the locations ignored",
        "layouts and strides",
        "operands.sampling_locations.contiguous()",
        "(operands.sampling_locations.contiguous() if 0 in operands.sampling_locations.stride() "
        "else operands.sampling_locations)",
        file="launch.py",
    ),
    one_edit(
        "strides of the weights ignored",
        "layouts and strides",
        "operands.attention_weights.contiguous()",
        "(operands.attention_weights.contiguous() if 0 in operands.attention_weights.stride() "
        "else operands.attention_weights)",
        file="launch.py",
    ),
    one_edit(
        "strides of grad_output ignored",
        "layouts and strides",
        "grad_output = grad_output.contiguous()",
        "grad_output = grad_output.contiguous() if 0 in grad_output.stride() else grad_output",
        file="launch.py",
    ),
    one_edit(
        "channel stride of value ignored",
        "layouts and strides",
        "return value if value.stride(3) == 1 or value.shape[3] == 1 else",
        "return value if value.stride(3) > 0 or value.shape[3] == 1 else",
        file="launch.py",
    ),
    one_edit(
        "head stride taken for the number of channels",
        "layouts and strides",
        "        out,\n        *value.stride()[:3],\n",
        "        out,\n        *value.stride()[:2],\n        min(value.stride(2), problem.channels),\n",
        file="launch.py",
    ),
    one_edit(
        "strides of the level table ignored",
        "layouts and strides",
        INT64_TABLE,
        "dtype=torch.int64) for tensor in table",
        file="launch.py",
    ),
    one_edit(
        "vectors whatever the strides",
        "layouts and strides",
        "for extent in (problem.channels, *used)",
        "for extent in (problem.channels, *used[:0])",
        file="plan.py",
        needs_gpu=MISALIGNED,
    ),
    one_edit(
        "vectors whatever the address",
        "layouts and strides",
        "vec = _vector_width(problem, value_dtype, value_strides) if aligned else 1",
        "vec = _vector_width(problem, value_dtype, value_strides)",
        file="plan.py",
        needs_gpu=MISALIGNED,
    ),
    one_edit(
        "strides of axes of length one checked too",
        "layouts and strides",
        "zip(strides[:3], sizes, strict=True) if size > 1]",
        "zip(strides[:3], sizes, strict=True) if size > 0]",
        file="plan.py",
        equivalent="The condition only becomes stricter: VEC is 1 where it was a vector, never the other way round. "
        "VEC = 1 promises nothing about addresses and D_VECS * VEC is D all the same, so every element is read and "
        "written as before, in the blocks of the plan for odd strides, whose results are right for any strides.",
    ),
)

BLOCKS = (
    # The first query of the last block gets nothing where there are three blocks or more.
    one_edit(
        "wrong block edge in the queries",
        "block edges",
        "out_row = (b * Q + q) * M + m",
        "acc = tl.where(((q_blocks < 3) | (q != (q_blocks - 1) * BLOCK_Q))[:, None], acc, 0.0)\n"
        "    out_row = (b * Q + q) * M + m",
    ),
    # Right with one warp, as the shipped plan has it; the other plan, right by itself, makes it wrong.
    Mutant(
        name="samples left over by the number of warps",
        family="block edges",
        edits=(
            Edit(
                file="launch.py", before="problem.samples,", after="problem.samples - problem.samples % plan.num_warps,"
            ),
        ),
        variant=(Edit(file="plan.py", before="NUM_WARPS = 1", after="NUM_WARPS = 2"),),
    ),
    one_edit(
        "last partial block of queries not launched",
        "block edges",
        "query_blocks = -(-problem.queries // block_q)",
        "query_blocks = max(1, problem.queries // block_q)",
        file="plan.py",
    ),
    one_edit(
        "last partial block of channels not launched",
        "block edges",
        "channel_blocks = -(-problem.channels // block_d)",
        "channel_blocks = max(1, problem.channels // block_d)",
        file="plan.py",
    ),
    one_edit(
        "last partial chunk of samples dropped",
        "block edges",
        FORWARD_LOOP,
        FORWARD_LOOP.replace("LK,", "LK - (LK > BLOCK_P) * (LK % BLOCK_P),"),
    ),
    one_edit(
        "chunks of samples overlap by one",
        "block edges",
        FORWARD_LOOP,
        FORWARD_LOOP.replace("LK, BLOCK_P", "LK, BLOCK_P - 1"),
    ),
    one_edit(
        "last partial block of channels not differentiated",
        "block edges",
        "for d_start in range(0, D, BLOCK_D):",
        "for d_start in range(0, D - (D > BLOCK_D) * (D % BLOCK_D), BLOCK_D):",
    ),
    one_edit(
        "one block of channels where two are needed",
        "block edges",
        'loop_d=kernel == "backward" and (problem.channels > NARROW or vec == 1)',
        'loop_d=kernel == "backward" and (problem.channels > BROAD or vec == 1)',
        file="plan.py",
    ),
    one_edit(
        "last partial block of pixels not summed",
        "block edges",
        "pixel_blocks = -(-problem.pixels // plan.block_s)",
        "pixel_blocks = max(1, problem.pixels // plan.block_s)",
        file="ordered.py",
    ),
    one_edit(
        "last partial block of runs not summed",
        "block edges",
        "run_blocks = -(-plan.runs // plan.block_r)",
        "run_blocks = max(1, plan.runs // plan.block_r)",
        file="ordered.py",
    ),
)

LEVELS = (
    one_edit(
        "level start off by one row",
        "level table",
        PIXEL,
        "pixel = tl.maximum(start - width, 0) + top * width + left",
    ),
    one_edit("level starts dropped", "level table", PIXEL, "pixel = top * width + left"),
    one_edit(
        "first point of a level on the level before",
        "level table",
        "level = j // K",
        "level = tl.maximum(j - 1, 0) // K",
    ),
    one_edit(
        "level table read as width and height",
        "level table",
        WIDTH_AND_HEIGHT,
        WIDTH_AND_HEIGHT.replace("height =", "other =").replace("width =", "height =").replace("other =", "width =", 1),
    ),
    one_edit(
        "derived starts one level late",
        "level table",
        "level_start_index = sizes.cumsum(0) - sizes",
        "level_start_index = sizes.cumsum(0)",
        file="op.py",
    ),
    one_edit("level starts not checked", "level table", "if given != start:", "if given < start:", file="arguments.py"),
    one_edit(
        "total of the pixels not checked",
        "level table",
        "if start != pixels:",
        "if start > pixels:",
        file="arguments.py",
    ),
    one_edit(
        "sides below one not refused",
        "level table",
        "if height < 1 or width < 1:",
        "if height * width < 1:",
        file="arguments.py",
    ),
    one_edit(
        "level starts kept in 8 bits",
        "level table",
        INT64_TABLE,
        INT64_TABLE.replace("torch.int64)", "torch.uint8).long()"),
        file="launch.py",
    ),
)

SIZES = (
    one_edit(
        "batch offset in 32 bits",
        "size overflow",
        "return (pid // M).to(tl.int64), pid % M, q_block, d_block",
        "return pid // M, pid % M, q_block, d_block",
        needs_gpu=HUGE,
    ),
    one_edit(
        "offsets always in 32 bits",
        "size overflow",
        "return extent >= INT32_LIMIT",
        "return extent < 0",
        file="plan.py",
        needs_gpu=HUGE,
    ),
    one_edit(
        "sample numbers in 16 bits",
        "size overflow",
        "return j, ((b * Q + q) * M + m) * LK + j,",
        "return j, (((b * Q + q) * M + m) * LK + j).to(tl.uint16).to(tl.int64),",
        needs_gpu="cases in the interpreter have fewer than 2^16 samples",
    ),
    one_edit(
        "pixel numbers wrap at 16 bits",
        "size overflow",
        PIXEL,
        f"{PIXEL}\n    pixel = tl.where(pixel > 65535, pixel - 65536, pixel)",
    ),
    one_edit(
        "queries counted in 5 bits",
        "size overflow",
        "out_row = (b * Q + q) * M + m",
        "out_row = (b * Q + q % 32) * M + m",
    ),
    one_edit(
        "items numbered in 6 bits",
        "size overflow",
        "    q = (tl.umulhi(item",
        "    item = item & 63\n    q = (tl.umulhi(item",
        file="ordered_kernels.py",
    ),
    one_edit(
        "quotient by a factor rounded down",
        "size overflow",
        "return -(-(2 ** (31 + shift)) // divisor), shift",
        "return 2 ** (31 + shift) // divisor, shift",
        file="ordered.py",
    ),
)

MUTANTS = (*LAYOUTS, *BLOCKS, *LEVELS, *SIZES)
