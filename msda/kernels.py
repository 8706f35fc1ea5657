"""The Triton kernels: forward and backward of multi-scale deformable attention.

A sample is one (query, level, point). The samples of a query are numbered j = level * K + point, and a program walks
them in runtime chunks, so neither the number of levels nor the number of points is compiled in. Inside a chunk the
tile has one row per sample (BLOCK_Q queries x BLOCK_P samples) and one column per channel: gathers and reductions
both run along the channels, which are contiguous in memory.

Per-sample quantities are one-dimensional and meet the tile only as a pixel number and a factor for each corner. Corners
that must not be touched have pixel number -1: the mask is then made where it is used, instead of travelling through
shared memory beside the number.

What is left to the compiler is small on purpose: random shapes must not mean a compilation each. Integers are not
specialised, and 16-byte accesses, which Triton would otherwise prove from specialised integers, are declared by VEC
(elements in 16 bytes, or 1). The host must have checked the alignment that VEC > 1 declares: a wrong VEC faults.
"""

import triton
import triton.language as tl


@triton.jit
def _program(q_blocks, d_blocks, M):
    # One grid axis, because the other two end at 65535. Query blocks of one (batch, head) are neighbours: they read
    # the same slice of value, which then stays in the caches.
    pid = tl.program_id(0)
    d_block = pid % d_blocks
    pid = pid // d_blocks
    q_block = pid % q_blocks
    pid = pid // q_blocks
    return (pid // M).to(tl.int64), pid % M, q_block, d_block


@triton.jit
def _samples(b, m, q_block, p_start, Q, M, LK, BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr):
    # Rows of the tile -> (sample j of its query, index in the (B, Q, M, L*K) tensors, whether the row is in use).
    row = tl.arange(0, BLOCK_Q * BLOCK_P)
    q = q_block * BLOCK_Q + row // BLOCK_P
    j = p_start + row % BLOCK_P
    return j, ((b * Q + q) * M + m) * LK + j, (q < Q) & (j < LK)


@triton.jit
def _axis(position, size, used, COMPUTE: tl.constexpr):
    # One coordinate -> (whether a sample there counts, position in pixels). NaN and infinities fail the comparisons.
    extent = size.to(COMPUTE)
    x = position.to(COMPUTE) * extent - 0.5
    return used & (x > -1.0) & (x < extent), x


@triton.jit
def _stencil(
    loc_ptr, attn_ptr, shapes_ptr, starts_ptr, j, sample, used, K, WIDE: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    # Per sample: weight, position inside the cell, size of the level, and the pixel of each corner (row, column), -1
    # where the corner or the whole sample does not count.
    level = j // K
    height = tl.load(shapes_ptr + 2 * level, mask=used, other=1)
    width = tl.load(shapes_ptr + 2 * level + 1, mask=used, other=1)
    start = tl.load(starts_ptr + level, mask=used, other=0)
    if not WIDE:
        height, width, start = height.to(tl.int32), width.to(tl.int32), start.to(tl.int32)
    near_x, x = _axis(tl.load(loc_ptr + 2 * sample, mask=used, other=0.0), width, used, COMPUTE)
    near_y, y = _axis(tl.load(loc_ptr + 2 * sample + 1, mask=used, other=0.0), height, used, COMPUTE)
    live = near_x & near_y
    # Before anything becomes an integer: what NaN and huge values are converted to differs between devices.
    x = tl.where(live, x, 0.0)
    y = tl.where(live, y, 0.0)
    x_floor = tl.floor(x)
    y_floor = tl.floor(y)
    left = x_floor.to(width.dtype)
    top = y_floor.to(width.dtype)
    # A select, not a product: a NaN weight of a skipped sample must contribute nothing.
    weight = tl.where(live, tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE), 0.0)
    pixel = start + top * width + left
    in_left = live & (left >= 0)
    in_right = live & (left + 1 < width)
    in_top = top >= 0
    in_bottom = top + 1 < height
    p00 = tl.where(in_top & in_left, pixel, -1)
    p01 = tl.where(in_top & in_right, pixel + 1, -1)
    p10 = tl.where(in_bottom & in_left, pixel + width, -1)
    p11 = tl.where(in_bottom & in_right, pixel + width + 1, -1)
    return weight, x - x_floor, y - y_floor, width, height, p00, p01, p10, p11


@triton.jit
def _tile(base, row, stride, channel, VEC: tl.constexpr):
    # Offsets are added up before they meet the 64-bit base, so that only the sum takes two registers.
    pointers = base + (row[:, None] * stride + channel[None, :])
    if VEC > 1:
        pointers = tl.multiple_of(pointers, (1, 16))
    return pointers


@triton.jit
def _gather(base, row, stride, channel, channel_valid, VEC: tl.constexpr, COMPUTE: tl.constexpr):
    # Rows of -1 read as 0 and touch no memory. The cast comes right after the load because bfloat16 arithmetic is
    # neither wanted nor right in the interpreter.
    mask = (row[:, None] >= 0) & channel_valid[None, :]
    return tl.load(_tile(base, row, stride, channel, VEC), mask=mask, other=0.0).to(COMPUTE)


@triton.jit
def _scatter(base, row, stride, channel, channel_valid, contribution, VEC: tl.constexpr):
    # Relaxed and with its result unused, this is one vector reduction instruction and no fence.
    mask = (row[:, None] >= 0) & channel_valid[None, :]
    pointers = _tile(base, row, stride, channel, VEC)
    contribution = contribution.to(base.dtype.element_ty)
    tl.atomic_add(pointers, contribution, mask=mask, sem="relaxed")


@triton.jit(
    do_not_specialize=["stride_vb", "stride_vs", "stride_vm", "Q", "M", "K", "LK", "D_VECS", "q_blocks", "d_blocks"],
    do_not_specialize_on_alignment=["value_ptr", "shapes_ptr", "starts_ptr", "loc_ptr", "attn_ptr", "out_ptr"],
)
def forward(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    stride_vb: tl.int64, stride_vs: tl.int64, stride_vm: tl.int64,
    Q, M, K, LK, D_VECS, q_blocks, d_blocks,
    VEC: tl.constexpr, WIDE: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[b, q, m, :] = sum over samples of weight * bilinear(value), for one block of queries and channels."""
    b, m, q_block, d_block = _program(q_blocks, d_blocks, M)
    D = D_VECS * VEC  # proves to the compiler that masks are constant over VEC channels
    channel = d_block * BLOCK_D + tl.arange(0, BLOCK_D)
    channel_valid = channel < D
    base = value_ptr + b * stride_vb + m * stride_vm
    if not WIDE:
        stride_vs = stride_vs.to(tl.int32)
    acc = tl.zeros((BLOCK_Q, BLOCK_D), COMPUTE)
    for p_start in range(0, LK, BLOCK_P):
        j, sample, used = _samples(b, m, q_block, p_start, Q, M, LK, BLOCK_Q, BLOCK_P)
        weight, lx, ly, _, _, p00, p01, p10, p11 = _stencil(
            loc_ptr, attn_ptr, shapes_ptr, starts_ptr, j, sample, used, K, WIDE, COMPUTE
        )
        hx = 1.0 - lx
        hy = 1.0 - ly
        v00 = _gather(base, p00, stride_vs, channel, channel_valid, VEC, COMPUTE)
        v01 = _gather(base, p01, stride_vs, channel, channel_valid, VEC, COMPUTE)
        v10 = _gather(base, p10, stride_vs, channel, channel_valid, VEC, COMPUTE)
        v11 = _gather(base, p11, stride_vs, channel, channel_valid, VEC, COMPUTE)
        s = (hy * hx)[:, None] * v00 + (hy * lx)[:, None] * v01 + (ly * hx)[:, None] * v10 + (ly * lx)[:, None] * v11
        acc += tl.sum(tl.reshape(weight[:, None] * s, (BLOCK_Q, BLOCK_P, BLOCK_D)), axis=1)
    q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    out_row = (b * Q + q) * M + m
    mask = (q < Q)[:, None] & channel_valid[None, :]
    tl.store(_tile(out_ptr, out_row, D, channel, VEC), acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _channel_block(
    grad_out_base, base, grad_base, g_row, p00, p01, p10, p11, c00, c01, c10, c11,
    d_start, D, stride, grad_stride, need_value, VEC: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # One block of channels of the backward: the dot products of g with the four corners, and the scatter.
    channel = d_start + tl.arange(0, BLOCK_D)
    ok = channel < D
    g = _gather(grad_out_base, g_row, grad_stride, channel, ok, VEC, COMPUTE)
    d00 = tl.sum(g * _gather(base, p00, stride, channel, ok, VEC, COMPUTE), axis=1)
    d01 = tl.sum(g * _gather(base, p01, stride, channel, ok, VEC, COMPUTE), axis=1)
    d10 = tl.sum(g * _gather(base, p10, stride, channel, ok, VEC, COMPUTE), axis=1)
    d11 = tl.sum(g * _gather(base, p11, stride, channel, ok, VEC, COMPUTE), axis=1)
    if need_value:
        _scatter(grad_base, p00, grad_stride, channel, ok, c00[:, None] * g, VEC)
        _scatter(grad_base, p01, grad_stride, channel, ok, c01[:, None] * g, VEC)
        _scatter(grad_base, p10, grad_stride, channel, ok, c10[:, None] * g, VEC)
        _scatter(grad_base, p11, grad_stride, channel, ok, c11[:, None] * g, VEC)
    return d00, d01, d10, d11


@triton.jit(
    do_not_specialize=[
        "stride_vb", "stride_vs", "stride_vm", "S", "Q", "M", "K", "LK", "D_VECS", "q_blocks",
        "need_value", "need_samples",
    ],
    do_not_specialize_on_alignment=[
        "grad_out_ptr", "value_ptr", "shapes_ptr", "starts_ptr", "loc_ptr", "attn_ptr",
        "grad_value_ptr", "grad_loc_ptr", "grad_attn_ptr",
    ],
)  # fmt: skip
def backward(
    grad_out_ptr, value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_value_ptr, grad_loc_ptr, grad_attn_ptr,
    stride_vb: tl.int64, stride_vs: tl.int64, stride_vm: tl.int64, S: tl.int64,
    Q, M, K, LK, D_VECS, q_blocks, need_value, need_samples,
    VEC: tl.constexpr, WIDE: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, LOOP_D: tl.constexpr,
):  # fmt: skip
    """All three gradients for one block of queries; grad_value is accumulated with atomics and must start at zero."""
    b, m, q_block, _ = _program(q_blocks, 1, M)
    D = D_VECS * VEC
    base = value_ptr + b * stride_vb + m * stride_vm
    grad_base = grad_value_ptr + (b * S * M + m) * D
    grad_stride = M.to(tl.int64) * D
    if not WIDE:
        stride_vs = stride_vs.to(tl.int32)
        grad_stride = grad_stride.to(tl.int32)
    grad_out_base = grad_out_ptr + ((b * Q + q_block * BLOCK_Q) * M + m) * D
    for p_start in range(0, LK, BLOCK_P):
        j, sample, used = _samples(b, m, q_block, p_start, Q, M, LK, BLOCK_Q, BLOCK_P)
        weight, lx, ly, width, height, p00, p01, p10, p11 = _stencil(
            loc_ptr, attn_ptr, shapes_ptr, starts_ptr, j, sample, used, K, WIDE, COMPUTE
        )
        hx = 1.0 - lx
        hy = 1.0 - ly
        w00, w01, w10, w11 = hy * hx, hy * lx, ly * hx, ly * lx
        c00, c01, c10, c11 = weight * w00, weight * w01, weight * w10, weight * w11
        # Rows of grad_output are counted from the program's first query, which keeps them in 32 bits.
        g_row = tl.where(used, tl.arange(0, BLOCK_Q * BLOCK_P) // BLOCK_P, -1)
        # All channels in one program: the gradients of location and weight are sums over them, without atomics.
        if LOOP_D:
            d00 = tl.zeros((BLOCK_Q * BLOCK_P,), COMPUTE)
            d01, d10, d11 = d00, d00, d00
            for d_start in range(0, D, BLOCK_D):
                e00, e01, e10, e11 = _channel_block(
                    grad_out_base, base, grad_base, g_row, p00, p01, p10, p11, c00, c01, c10, c11,
                    d_start, D, stride_vs, grad_stride, need_value, VEC, COMPUTE, BLOCK_D,
                )  # fmt: skip
                d00 += e00
                d01 += e01
                d10 += e10
                d11 += e11
        else:
            d00, d01, d10, d11 = _channel_block(
                grad_out_base, base, grad_base, g_row, p00, p01, p10, p11, c00, c01, c10, c11,
                0, D, stride_vs, grad_stride, need_value, VEC, COMPUTE, BLOCK_D,
            )  # fmt: skip
        if need_samples:
            # A corner outside the map read 0, but 0 times an infinite g is NaN: select.
            d00 = tl.where(p00 >= 0, d00, 0.0)
            d01 = tl.where(p01 >= 0, d01, 0.0)
            d10 = tl.where(p10 >= 0, d10, 0.0)
            d11 = tl.where(p11 >= 0, d11, 0.0)
            grad_attn = w00 * d00 + w01 * d01 + w10 * d10 + w11 * d11
            grad_x = width.to(COMPUTE) * weight * (hy * (d01 - d00) + ly * (d11 - d10))
            grad_y = height.to(COMPUTE) * weight * (hx * (d10 - d00) + lx * (d11 - d01))
            tl.store(grad_attn_ptr + sample, grad_attn.to(grad_attn_ptr.dtype.element_ty), mask=used)
            tl.store(grad_loc_ptr + 2 * sample, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=used)
            tl.store(grad_loc_ptr + 2 * sample + 1, grad_y.to(grad_loc_ptr.dtype.element_ty), mask=used)
