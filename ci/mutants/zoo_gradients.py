"""Mutants of the backward: every term of the three gradients."""

from __future__ import annotations

from .mutant import one_edit

SLOPE_X = "(hy * (d01 - d00) + ly * (d11 - d10))"
SLOPE_Y = "(hx * (d10 - d00) + lx * (d11 - d01))"
STORE_X = "tl.store(grad_loc_ptr + 2 * sample, grad_x"
STORE_WEIGHT = "            tl.store(grad_attn_ptr + sample"
WEIGHT_SUM = "grad_attn = w00 * d00 + w01 * d01 + w10 * d10 + w11 * d11"
FACTORS = "c00, c01, c10, c11 = weight * w00, weight * w01, weight * w10, weight * w11"
SCATTER_11 = "        _scatter(grad_base, p11, grad_stride, channel, ok, c11[:, None] * g, VEC)\n"

LOCATIONS = (
    one_edit(
        "height and width swapped in one place",
        "gradient terms",
        "grad_y = height.to(COMPUTE) * weight",
        "grad_y = width.to(COMPUTE) * weight",
    ),
    one_edit(
        "location gradient without the width",
        "gradient terms",
        "grad_x = width.to(COMPUTE) * weight",
        "grad_x = weight",
    ),
    one_edit(
        "location gradient of aligned corners",
        "gradient terms",
        "grad_x = width.to(COMPUTE) * weight",
        "grad_x = (width - 1).to(COMPUTE) * weight",
    ),
    one_edit(
        "location gradient without the attention weight",
        "gradient terms",
        "grad_y = height.to(COMPUTE) * weight",
        "grad_y = height.to(COMPUTE)",
    ),
    one_edit("sign of one gradient term", "gradient terms", SLOPE_Y, SLOPE_Y.replace(" + ", " - ")),
    one_edit("x gradient of the upper row alone", "gradient terms", SLOPE_X, "(d01 - d00)"),
    one_edit("factors of the y gradient exchanged", "gradient terms", SLOPE_Y, "(lx * (d10 - d00) + hx * (d11 - d01))"),
    one_edit("y gradient from differences along x", "gradient terms", SLOPE_Y, "(hx * (d01 - d00) + lx * (d11 - d10))"),
    one_edit("x gradient stored twice", "gradient terms", "2 * sample + 1, grad_y.to", "2 * sample + 1, grad_x.to"),
    one_edit(
        "half a slope on a pixel edge",
        "gradient terms",
        STORE_WEIGHT,
        "            grad_x = tl.where(lx == 0.0, 0.5 * grad_x, grad_x)\n" + STORE_WEIGHT,
    ),
    one_edit(
        "no slope on a pixel edge",
        "gradient terms",
        STORE_WEIGHT,
        "            grad_x = tl.where(lx == 0.0, 0.0, grad_x)\n" + STORE_WEIGHT,
    ),
)

ATTENTION = (
    one_edit("weight gradient without a corner", "gradient terms", WEIGHT_SUM, WEIGHT_SUM.removesuffix(" + w11 * d11")),
    one_edit(
        "weight gradient with two corners exchanged",
        "gradient terms",
        WEIGHT_SUM,
        "grad_attn = w00 * d00 + w01 * d10 + w10 * d01 + w11 * d11",
    ),
    one_edit(
        "weight gradient times the weight",
        "gradient terms",
        WEIGHT_SUM,
        WEIGHT_SUM.replace("= ", "= weight * (") + ")",
    ),
)

VALUE = (
    one_edit(
        "grad_value without the attention weight", "gradient terms", FACTORS, "c00, c01, c10, c11 = w00, w01, w10, w11"
    ),
    one_edit(
        "grad_value with two factors exchanged",
        "gradient terms",
        FACTORS,
        "c00, c01, c10, c11 = weight * w00, weight * w10, weight * w01, weight * w11",
    ),
    one_edit("a corner of grad_value missing", "gradient terms", SCATTER_11, ""),
    one_edit(
        "grad_value of the first channel block alone",
        "gradient terms",
        SCATTER_11,
        SCATTER_11.replace("ok,", "ok & (channel < BLOCK_D),"),
    ),
    one_edit("dot product of the last channel block alone", "gradient terms", "d00 += e00", "d00 = e00"),
    one_edit("dot products of two corners exchanged", "gradient terms", "d01 += e01", "d01 += e10"),
)

MUTANTS = (*LOCATIONS, *ATTENTION, *VALUE)
