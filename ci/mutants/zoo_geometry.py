"""Mutants of where samples lie: indexing, masks and borders, interpolation weights.

Edits that might reach past the end of a tensor are clamped, or read only: a mutant must be caught by its numbers, not
by chance.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, one_edit

COORDINATE = "x = position.to(COMPUTE) * extent - 0.5"
PIXEL = "pixel = start + top * width + left"
FORWARD_BASE = "base = value_ptr + b * stride_vb + m * stride_vm"
LOAD_X = "_axis(tl.load(loc_ptr + 2 * sample, mask=used, other=0.0), width"
LOAD_Y = "_axis(tl.load(loc_ptr + 2 * sample + 1, mask=used, other=0.0), height"
FORWARD_HX = "        hx = 1.0 - lx\n"
ADD = "weight[:, None] * s,"

INDEXING = (
    one_edit("half-pixel constant missing", "indexing", COORDINATE, "x = position.to(COMPUTE) * extent"),
    one_edit("corners aligned", "indexing", COORDINATE, "x = position.to(COMPUTE) * (extent - 1.0)"),
    one_edit(
        "half a pixel added", "indexing", COORDINATE, "x = tl.minimum(position.to(COMPUTE) * extent + 0.5, extent)"
    ),
    Mutant(
        name="x and y of a location exchanged",
        family="indexing",
        edits=(
            Edit(before=LOAD_X, after=LOAD_X.replace("2 * sample,", "2 * sample + 1,")),
            Edit(before=LOAD_Y, after=LOAD_Y.replace("2 * sample + 1,", "2 * sample,")),
        ),
    ),
    one_edit(
        "smaller side taken for the height",
        "indexing",
        LOAD_Y,
        LOAD_Y.replace("height", "tl.minimum(width, height)"),
    ),
    one_edit(
        "smaller side taken for the row stride",
        "indexing",
        PIXEL,
        "pixel = start + top * tl.minimum(width, height) + left",
    ),
    one_edit(
        "samples laid out head by head",
        "indexing",
        "return j, ((b * Q + q) * M + m) * LK + j,",
        "return j, ((b * M + m) * Q + q) * LK + j,",
    ),
    one_edit(
        "output laid out head by head", "indexing", "out_row = (b * Q + q) * M + m", "out_row = (b * M + m) * Q + q"
    ),
    one_edit(
        "every batch entry reads the first",
        "indexing",
        FORWARD_BASE,
        "base = value_ptr + 0 * b * stride_vb + m * stride_vm",
    ),
    one_edit(
        "head reads its neighbour",
        "indexing",
        FORWARD_BASE,
        "base = value_ptr + b * stride_vb + ((m + 1) % M) * stride_vm",
    ),
    one_edit(
        "channel blocks all the first",
        "indexing",
        "channel = d_block * BLOCK_D + tl.arange(0, BLOCK_D)",
        "channel = 0 * d_block + tl.arange(0, BLOCK_D)",
    ),
    one_edit(
        "rows of grad_output from the first batch entry",
        "indexing",
        "grad_out_base = grad_out_ptr + ((b * Q + q_block * BLOCK_Q) * M + m) * D",
        "grad_out_base = grad_out_ptr + ((0 * b * Q + q_block * BLOCK_Q) * M + m) * D",
    ),
)

_LAST_OF_FORWARD = "    q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q)\n    out_row"

MASKS = (
    one_edit(
        "<= for < in a bound check",
        "masks and borders",
        "in_right = live & (left + 1 < width)",
        # Only where a row follows: one past the last pixel of all is not ours to read.
        "in_right = live & (left + 1 <= width - (top + 2 >= height).to(width.dtype))",
    ),
    one_edit("samples left of the first pixel centre skipped", "masks and borders", "(x > -1.0)", "(x > 0.0)"),
    one_edit(
        "samples right of the last pixel centre skipped", "masks and borders", "(x < extent)", "(x < extent - 1.0)"
    ),
    one_edit("row above the map not checked", "masks and borders", "in_top = top >= 0", "in_top = top >= -1"),
    one_edit("column left of the map not checked", "masks and borders", "live & (left >= 0)", "live & (left >= -1)"),
    one_edit(
        "bottom border at the smaller side",
        "masks and borders",
        "in_bottom = top + 1 < height",
        "in_bottom = top + 1 < tl.minimum(width, height)",
    ),
    one_edit("first row taken for the border", "masks and borders", "in_top = top >= 0", "in_top = top > 0"),
    one_edit("x of skipped samples kept", "masks and borders", "    x = tl.where(live, x, 0.0)\n", ""),
    one_edit("y of skipped samples kept", "masks and borders", "    y = tl.where(live, y, 0.0)\n", ""),
    one_edit(
        "weight of skipped samples kept",
        "masks and borders",
        "tl.where(live, tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE), 0.0)",
        "tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE)",
    ),
    one_edit(
        "skipped samples weighted with zero",
        "masks and borders",
        "tl.where(live, tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE), 0.0)",
        "tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE) * live.to(COMPUTE)",
    ),
    one_edit(
        "dot products of corners outside not selected",
        "masks and borders",
        "            d00 = tl.where(p00 >= 0, d00, 0.0)\n",
        "",
    ),
    one_edit(
        "last channel masked away",
        "masks and borders",
        "channel_valid = channel < D",
        "channel_valid = channel < D - 1",
    ),
    one_edit(
        "last query not written",
        "masks and borders",
        "mask = (q < Q)[:, None] & channel_valid[None, :]",
        "mask = (q < Q - 1)[:, None] & channel_valid[None, :]",
    ),
    one_edit("last sample masked away", "masks and borders", "(q < Q) & (j < LK)", "(q < Q) & (j < LK - 1)"),
    one_edit(
        "a neighbour's batch entry read and multiplied by zero",
        "masks and borders",
        _LAST_OF_FORWARD,
        "    other = value_ptr + tl.maximum(b - 1, 0) * stride_vb + m * stride_vm + channel\n"
        "    acc += 0.0 * tl.load(other, mask=channel_valid, other=0.0).to(COMPUTE)[None, :]\n" + _LAST_OF_FORWARD,
    ),
)

WEIGHTS = (
    one_edit(
        "one corner's weight wrong", "interpolation weights", "(ly * lx)[:, None] * v11", "(ly * hx)[:, None] * v11"
    ),
    one_edit("a missing corner", "interpolation weights", " + (ly * lx)[:, None] * v11", ""),
    one_edit(
        "two corners exchanged",
        "interpolation weights",
        "(hy * lx)[:, None] * v01 + (ly * hx)[:, None] * v10",
        "(ly * hx)[:, None] * v01 + (hy * lx)[:, None] * v10",
    ),
    one_edit("factors do not add up to one", "interpolation weights", FORWARD_HX, "        hx = 1.0 - lx * 1.00001\n"),
    one_edit(
        "nearest pixel along x",
        "interpolation weights",
        FORWARD_HX,
        "        lx = tl.where(lx < 0.5, 0.0, 1.0).to(COMPUTE)\n" + FORWARD_HX,
    ),
    one_edit(
        "smooth step instead of a straight line",
        "interpolation weights",
        FORWARD_HX,
        "        lx = lx * lx * (3.0 - 2.0 * lx)\n" + FORWARD_HX,
    ),
    one_edit(
        "truncation instead of floor",
        "interpolation weights",
        "x_floor = tl.floor(x)",
        "x_floor = x.to(tl.int32).to(COMPUTE)",
    ),
    one_edit("factor of y from x", "interpolation weights", "        hy = 1.0 - ly\n", "        hy = 1.0 - lx\n"),
    one_edit("weights above one cut", "interpolation weights", ADD, "tl.minimum(weight, 1.0)[:, None] * s,"),
    one_edit("negative weights cut", "interpolation weights", ADD, "tl.maximum(weight, 0.0)[:, None] * s,"),
)

MUTANTS = (*INDEXING, *MASKS, *WEIGHTS)
