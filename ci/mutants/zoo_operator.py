"""Mutants of the wrapper and of the run-to-run backward: argument handling, autograd, sorting, ordered sums.

A sample that is taken for another may be one that is skipped, whose cell is anywhere: such mutants of the run-to-run
backward may write far away, and end their process.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, one_edit

ARGUMENTS = "arguments.py"
OP = "op.py"
ORDERED = "ordered_kernels.py"
FAKE_OUT = "value.new_empty((value.shape[0], sampling_locations.shape[1], value.shape[2] * value.shape[3]))"

VALIDATION = (
    one_edit(
        "rank may be larger", "argument handling", "if tensor.dim() != rank:", "if tensor.dim() < rank:", file=ARGUMENTS
    ),
    one_edit(
        "dtype of the weights not checked",
        "argument handling",
        'for name in ("sampling_locations", "attention_weights"):',
        'for name in ("sampling_locations",):',
        file=ARGUMENTS,
    ),
    one_edit(
        "dtype of value not checked",
        "argument handling",
        "if value not in VALUE_DTYPES:",
        "if value.is_complex:",
        file=ARGUMENTS,
    ),
    one_edit(
        "dtype of the level table not checked",
        "argument handling",
        "if name in tensors and tensors[name].dtype not in TABLE_DTYPES:",
        "if name in tensors and tensors[name].dtype == torch.bool:",
        file=ARGUMENTS,
    ),
    one_edit(
        "devices not compared",
        "argument handling",
        "if tensor.device != device and not on_host:",
        "if tensor.is_cuda and tensor.device != device and not on_host:",
        file=ARGUMENTS,
    ),
    one_edit(
        "message without the name of the argument",
        "argument handling",
        'msg = f"{name} must be a tensor of shape',
        'msg = f"expected a tensor of shape',
        file=ARGUMENTS,
    ),
    one_edit(
        "a dtype refused as a value",
        "argument handling",
        'msg = f"value must be float64, float32, float16 or bfloat16, got {value}"\n        raise TypeError(msg)',
        'msg = f"value must be float64, float32, float16 or bfloat16, got {value}"\n        raise ValueError(msg)',
        file=ARGUMENTS,
    ),
    one_edit(
        "batch entries not compared",
        "argument handling",
        "batch, _, heads, _ = value.shape\n    _, queries, _, levels, points, _ = locations.shape\n    expected",
        "_, _, heads, _ = value.shape\n    batch, queries, _, levels, points, _ = locations.shape\n    expected",
        file=ARGUMENTS,
    ),
    one_edit(
        "shape of the weights not compared",
        "argument handling",
        '        "attention_weights": (batch, queries, heads, levels, points),\n',
        "",
        file=ARGUMENTS,
    ),
    one_edit(
        "level starts refused as int32",
        "argument handling",
        "TABLE_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)",
        "TABLE_DTYPES = (torch.int64,)",
        file=ARGUMENTS,
    ),
    one_edit(
        "weights set to zero once they are used",
        "argument handling",
        "    return out.to(value.dtype)",
        "    operands.attention_weights.zero_()\n    return out.to(value.dtype)",
        file="launch.py",
    ),
)

AUTOGRAD = (
    one_edit(
        "gradient of the weights left out",
        "argument handling",
        "grad_weights if need_weights else None",
        "grad_weights if need_weights and not need_value else None",
        file=OP,
    ),
    one_edit(
        "gradient of the weights only beside that of the locations",
        "argument handling",
        "need_value, need_locations or need_weights",
        "need_value, need_locations",
        file=OP,
    ),
    one_edit(
        "gradients of samples only beside that of value",
        "argument handling",
        "int(need_samples),",
        "int(need_samples and need_value),",
        file="launch.py",
    ),
    one_edit(
        "gradients of an expanded grad_output halved",
        "argument handling",
        "    operands = Operands(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)\n"
        "    if need_value and",
        "    operands = Operands(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)\n"
        "    grad_output = grad_output / 2 if 0 in grad_output.stride() else grad_output\n"
        "    if need_value and",
        file=OP,
    ),
    one_edit(
        "native accumulation not passed to the backward",
        "argument handling",
        "    return launch.backward(\n        grad_output, operands, cast(Accumulate, accumulate),",
        '    return launch.backward(\n        grad_output, operands, "float32",',
        file=OP,
        equivalent="The sum is then that of the default, float32 with one rounding at the end. Its error bound is part "
        "of the native one (the same terms, without the roundings of the accumulator), it overflows only where the "
        "native sum may too, and sums on a lattice are exact in both. The operator promises no error for "
        '"native", so every result is one that it admits: what is lost is speed.',
    ),
    one_edit(
        "run-to-run promise not passed to the backward",
        "argument handling",
        "if need_value and arguments.is_run_to_run(determinism):",
        "if need_value and arguments.is_run_to_run(None):",
        file=OP,
    ),
    one_edit(
        "deterministic algorithms not heeded",
        "argument handling",
        "return torch.are_deterministic_algorithms_enabled() if determinism is None else",
        "return False if determinism is None else",
        file=ARGUMENTS,
    ),
    one_edit(
        "second derivative of zero",
        "argument handling",
        "    raise RuntimeError(msg)\n\n\n_forward.register_autograd",
        "    return (None,) * 10\n\n\n_forward.register_autograd",
        file=OP,
    ),
    one_edit(
        "traced output without the heads",
        "argument handling",
        FAKE_OUT,
        FAKE_OUT.replace("value.shape[2] * ", ""),
        file=OP,
    ),
    one_edit(
        "mapped calls in the wrong order",
        "argument handling",
        "return out.unflatten(0, (size, out.shape[0] // size)), 0",
        "return out.unflatten(0, (out.shape[0] // size, size)), 1",
        file=OP,
    ),
)

ORDER = (
    one_edit(
        "cell left of the map named like the first",
        "run to run",
        "tl.where(left < 0, width - 1, left)",
        "tl.where(left < 0, 0, left)",
        file=ORDERED,
    ),
    one_edit(
        "order of tickets kept",
        "run to run",
        "tl.store(order_ptr + start + rank, item, mask=used)",
        "tl.store(order_ptr + position, item, mask=used)",
        file=ORDERED,
    ),
    one_edit(
        "cells that go on overwrite their first part",
        "run to run",
        "seen = (first > begin) & (first <= end)",
        "seen = (first > begin) & (first < begin)",
        file=ORDERED,
    ),
    one_edit(
        "last part of a long cell left out",
        "run to run",
        "for i in range(1, tl.max(most, axis=0) + 1):",
        "for i in range(1, tl.max(most, axis=0)):",
        file=ORDERED,
    ),
    one_edit(
        "ordered sum with two factors exchanged",
        "run to run",
        "c01 = (weight * (hy * lx))[:, None]",
        "c01 = (weight * (ly * hx))[:, None]",
        file=ORDERED,
    ),
    one_edit(
        "ordered sum around the torus",
        "run to run",
        "a01 += tl.where(((top >= 0) & (left + 1 < width))[:, None], c01 * g, 0.0)",
        "a01 += c01 * g",
        file=ORDERED,
    ),
    one_edit(
        "gradient of a sample that does not follow loaded",
        "run to run",
        "mask=follows[:, None] & channel_valid[None, :], other=0.0)",
        "mask=follows[:, None] | channel_valid[None, :], other=0.0)",
        file=ORDERED,
    ),
    one_edit(
        "ordered location gradient without the height",
        "run to run",
        "grad_y = height.to(COMPUTE) * weight",
        "grad_y = weight",
        file=ORDERED,
    ),
    one_edit(
        "weight of skipped samples kept beside the count",
        "run to run",
        "weight = tl.where(live, tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE), 0.0)",
        "weight = tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE)",
        file=ORDERED,
    ),
    # The kernel that runs where the gradient of value is wanted alone.
    one_edit(
        "first query not counted where value alone has a gradient",
        "run to run",
        "counter, ticket = _draw(counts_ptr, segment, cell, chunks, q * K + (j - level * K), live)",
        "counter, ticket = _draw(counts_ptr, segment, cell, chunks, q * K + (j - level * K), live & (q > 0))",
        file=ORDERED,
    ),
    one_edit(
        "samples up to two pixels left of the map counted",
        "run to run",
        "live = used & (x > -1.0)",
        "live = used & (x > -2.0)",
        file=ORDERED,
    ),
    Mutant(
        name="partial sums in float16",
        family="run to run",
        edits=(
            Edit(
                file="ordered.py",
                before="partial = _uninitialised((rows, 4, problem.channels), plan.compute, device)",
                after="partial = _uninitialised((rows, 4, problem.channels), torch.float16 if "
                "entries.value.dtype == torch.float16 else plan.compute, device)",
            ),
        ),
    ),
    one_edit(
        "pixels gather from their own cell alone",
        "run to run",
        "acc += _gather(p11, tl.where(any11, first + across, -1), stride,",
        "acc += _gather(p11, tl.where(any11, first + here, -1), stride,",
        file=ORDERED,
    ),
    one_edit(
        "sums written over what the cell before left",
        "run to run",
        "            a00 = tl.where(keep, a00, 0.0)\n",
        "",
        file=ORDERED,
    ),
)

MUTANTS = (*VALIDATION, *AUTOGRAD, *ORDER)
