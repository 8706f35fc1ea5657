"""The Triton kernels behind determinism="run_to_run": grad_value as sums in an order that only the inputs decide.

Instead of scattering into pixels, samples are sorted by the cell they lie in, each cell is summed once, and each pixel
gathers from its four cells. What is atomic is integer: counts, which come out the same in any order, and tickets, whose
order `arrange` undoes.

A cell is named by its top left pixel, on a torus: column -1 is column W - 1 and row -1 is row H - 1. Two cells that
share a name touch disjoint sets of pixels, because what lies across the edge of the map takes part in neither. So a
level has exactly as many cells as pixels, and buffers need no knowledge of the level table.

A segment is what one (batch, head, level) holds, an item a sample numbered inside its segment: q * K + k. A cell has
`chunks` counters, and an item goes by its number modulo `chunks`, so that small levels do not mean long lists. The
counters of a level start at head * per_head + first pixel of the level + level * quota, and there are chunks * cells of
them, at most the larger of cells and quota. Counts are shifted by one entry, so their inclusive sum is exclusive.

A run is 2 ** run_bits consecutive items of a sorted segment. The part of a cell inside a run is summed at once: into
the row of the cell if it is the cell's first part, else into the row of the run. Cells of many items are thereby spread
over programs, and which item is summed where follows from the counts alone.
"""

import triton
import triton.language as tl

from .kernels import _channel_block, _gather, _program, _samples, _tile


@triton.jit
def _level(shapes_ptr, starts_ptr, level, used):
    # Pixels of one (batch, head) are numbered in 32 bits here: the host has checked it.
    height = tl.load(shapes_ptr + 2 * level, mask=used, other=1).to(tl.int32)
    width = tl.load(shapes_ptr + 2 * level + 1, mask=used, other=1).to(tl.int32)
    return height, width, tl.load(starts_ptr + level, mask=used, other=0).to(tl.int32)


@triton.jit
def _chunks(height, width, quota):
    # Counters of a cell: about four items each when they are spread evenly.
    return tl.maximum(quota // (height * width), 1)


@triton.jit
def _pixels(position, size, COMPUTE: tl.constexpr):
    # Two kernels locate the same sample and must find the same cell, so contraction is not left to the compiler.
    return tl.fma(position.to(COMPUTE), size.to(COMPUTE), tl.full((1,), -0.5, COMPUTE))


@triton.jit
def _cell(left, top, height, width):
    row = tl.where(top < 0, height - 1, top)
    return row * width + tl.where(left < 0, width - 1, left)


@triton.jit
def _find(shapes_ptr, starts_ptr, loc_ptr, j, sample, used, K, COMPUTE: tl.constexpr):
    # Where samples lie: size and start of their level, corner of their cell, position inside it, whether they count.
    level = j // K
    height, width, start = _level(shapes_ptr, starts_ptr, level, used)
    x = _pixels(tl.load(loc_ptr + 2 * sample, mask=used, other=0.0), width, COMPUTE)
    y = _pixels(tl.load(loc_ptr + 2 * sample + 1, mask=used, other=0.0), height, COMPUTE)
    live = used & (x > -1.0) & (x < width.to(COMPUTE)) & (y > -1.0) & (y < height.to(COMPUTE))
    # Before anything becomes an integer: what NaN and huge values are converted to differs between devices.
    x = tl.where(live, x, 0.0)
    y = tl.where(live, y, 0.0)
    x_floor = tl.floor(x)
    y_floor = tl.floor(y)
    left = x_floor.to(tl.int32)
    top = y_floor.to(tl.int32)
    return level, height, width, start, live, left, top, x - x_floor, y - y_floor


@triton.jit
def _draw(counts_ptr, segment, cell, chunks, item, live):
    # A counter and a ticket for every live sample. Which of two samples comes first differs from run to run.
    counter = segment + cell * chunks + item % chunks
    ticket = tl.atomic_add(counts_ptr + 1 + counter, 1, mask=live, sem="relaxed")
    return tl.where(live, counter, -1), ticket


@triton.jit(
    do_not_specialize=["Q", "M", "K", "LK", "q_blocks", "quota", "per_head"],
    do_not_specialize_on_alignment=["shapes_ptr", "starts_ptr", "loc_ptr", "counts_ptr", "counter_ptr", "ticket_ptr"],
)
def count(
    shapes_ptr, starts_ptr, loc_ptr, counts_ptr, counter_ptr, ticket_ptr,
    Q, M, K, LK, q_blocks, quota, per_head,
    COMPUTE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Give every sample its counter and a ticket in it; counters of samples that do not count are -1."""
    b, m, q_block, _d_block = _program(q_blocks, 1, M)
    for p_start in range(0, LK, BLOCK_P):
        j, sample, used = _samples(b, m, q_block, p_start, Q, M, LK, BLOCK_Q, BLOCK_P)
        level, height, width, start, live, left, top, _lx, _ly = _find(
            shapes_ptr, starts_ptr, loc_ptr, j, sample, used, K, COMPUTE
        )
        q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q * BLOCK_P) // BLOCK_P
        segment = (b * M + m).to(tl.int32) * per_head + start + level * quota
        cell = _cell(left, top, height, width)
        chunks = _chunks(height, width, quota)
        counter, ticket = _draw(counts_ptr, segment, cell, chunks, q * K + (j - level * K), live)
        tl.store(counter_ptr + sample, counter, mask=used)
        tl.store(ticket_ptr + sample, ticket, mask=live)


@triton.jit(
    do_not_specialize=[
        "stride_vb", "stride_vs", "stride_vm", "Q", "M", "K", "LK", "D_VECS", "q_blocks", "quota", "per_head",
    ],
    do_not_specialize_on_alignment=[
        "grad_out_ptr", "value_ptr", "shapes_ptr", "starts_ptr", "loc_ptr", "attn_ptr", "grad_loc_ptr",
        "grad_attn_ptr", "counts_ptr", "counter_ptr", "ticket_ptr",
    ],
)  # fmt: skip
def count_and_differentiate(
    grad_out_ptr, value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_loc_ptr, grad_attn_ptr,
    counts_ptr, counter_ptr, ticket_ptr,
    stride_vb: tl.int64, stride_vs: tl.int64, stride_vm: tl.int64,
    Q, M, K, LK, D_VECS, q_blocks, quota, per_head,
    VEC: tl.constexpr, WIDE: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, LOOP_D: tl.constexpr,
):  # fmt: skip
    """`count`, and the gradients of locations and weights, which start from the same coordinates."""
    b, m, q_block, _d_block = _program(q_blocks, 1, M)
    D = D_VECS * VEC
    base = value_ptr + b * stride_vb + m * stride_vm
    g_stride = M.to(tl.int64) * D
    if not WIDE:
        stride_vs = stride_vs.to(tl.int32)
        g_stride = g_stride.to(tl.int32)
    g_base = grad_out_ptr + ((b * Q + q_block * BLOCK_Q) * M + m) * D
    for p_start in range(0, LK, BLOCK_P):
        j, sample, used = _samples(b, m, q_block, p_start, Q, M, LK, BLOCK_Q, BLOCK_P)
        level, height, width, start, live, left, top, lx, ly = _find(
            shapes_ptr, starts_ptr, loc_ptr, j, sample, used, K, COMPUTE
        )
        q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q * BLOCK_P) // BLOCK_P
        segment = (b * M + m).to(tl.int32) * per_head + start + level * quota
        cell = _cell(left, top, height, width)
        chunks = _chunks(height, width, quota)
        counter, ticket = _draw(counts_ptr, segment, cell, chunks, q * K + (j - level * K), live)
        tl.store(counter_ptr + sample, counter, mask=used)

        weight = tl.where(live, tl.load(attn_ptr + sample, mask=used, other=0.0).to(COMPUTE), 0.0)
        pixel = start + top * width + left
        p00 = tl.where(live & (top >= 0) & (left >= 0), pixel, -1)
        p01 = tl.where(live & (top >= 0) & (left + 1 < width), pixel + 1, -1)
        p10 = tl.where(live & (top + 1 < height) & (left >= 0), pixel + width, -1)
        p11 = tl.where(live & (top + 1 < height) & (left + 1 < width), pixel + width + 1, -1)
        g_row = tl.where(used, tl.arange(0, BLOCK_Q * BLOCK_P) // BLOCK_P, -1)
        if LOOP_D:
            d00 = tl.zeros((BLOCK_Q * BLOCK_P,), COMPUTE)
            d01, d10, d11 = d00, d00, d00
            for d_start in range(0, D, BLOCK_D):
                e00, e01, e10, e11 = _channel_block(
                    g_base, base, None, g_row, p00, p01, p10, p11, lx, lx, lx, lx,
                    d_start, D, stride_vs, g_stride, False, VEC, COMPUTE, BLOCK_D,
                )  # fmt: skip
                d00 += e00
                d01 += e01
                d10 += e10
                d11 += e11
        else:
            d00, d01, d10, d11 = _channel_block(
                g_base, base, None, g_row, p00, p01, p10, p11, lx, lx, lx, lx,
                0, D, stride_vs, g_stride, False, VEC, COMPUTE, BLOCK_D,
            )  # fmt: skip
        # A corner outside the map read 0, but 0 times an infinite g is NaN: select.
        d00 = tl.where(p00 >= 0, d00, 0.0)
        d01 = tl.where(p01 >= 0, d01, 0.0)
        d10 = tl.where(p10 >= 0, d10, 0.0)
        d11 = tl.where(p11 >= 0, d11, 0.0)
        hx = 1.0 - lx
        hy = 1.0 - ly
        grad_attn = (hy * hx) * d00 + (hy * lx) * d01 + (ly * hx) * d10 + (ly * lx) * d11
        grad_x = width.to(COMPUTE) * weight * (hy * (d01 - d00) + ly * (d11 - d10))
        grad_y = height.to(COMPUTE) * weight * (hx * (d10 - d00) + lx * (d11 - d01))
        tl.store(grad_attn_ptr + sample, grad_attn.to(grad_attn_ptr.dtype.element_ty), mask=used)
        tl.store(grad_loc_ptr + 2 * sample, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=used)
        tl.store(grad_loc_ptr + 2 * sample + 1, grad_y.to(grad_loc_ptr.dtype.element_ty), mask=used)
        # Last, because the ticket is on its way from memory.
        tl.store(ticket_ptr + sample, ticket, mask=live)


@triton.jit(
    do_not_specialize=["Q", "M", "K", "LK", "q_blocks"],
    do_not_specialize_on_alignment=["counter_ptr", "ticket_ptr", "offsets_ptr", "placed_ptr"],
)
def place(
    counter_ptr, ticket_ptr, offsets_ptr, placed_ptr, Q, M, K, LK, q_blocks,
    BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Put (counter, item) of every sample among those of its counter, in ticket order: 32 bits each."""
    b, m, q_block, _d_block = _program(q_blocks, 1, M)
    for p_start in range(0, LK, BLOCK_P):
        j, sample, used = _samples(b, m, q_block, p_start, Q, M, LK, BLOCK_Q, BLOCK_P)
        counter = tl.load(counter_ptr + sample, mask=used, other=-1)
        live = counter >= 0
        position = tl.load(offsets_ptr + counter, mask=live, other=0) + tl.load(ticket_ptr + sample, mask=live, other=0)
        q = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q * BLOCK_P) // BLOCK_P
        item = q * K + j % K
        tl.store(placed_ptr + position, (counter.to(tl.int64) << 32) | item.to(tl.int64), mask=live)


@triton.jit(do_not_specialize=["counters"], do_not_specialize_on_alignment=["placed_ptr", "offsets_ptr", "order_ptr"])
def arrange(placed_ptr, offsets_ptr, order_ptr, counters, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Turn ticket order, which differs from run to run, into the order of item numbers: one list per counter."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = position < tl.load(offsets_ptr + counters)
    placed = tl.load(placed_ptr + position, mask=used, other=0)
    counter = (placed >> 32).to(tl.int32)
    item = placed.to(tl.int32)
    start = tl.load(offsets_ptr + counter, mask=used, other=0)
    length = tl.load(offsets_ptr + counter + 1, mask=used, other=0) - start
    rank = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, tl.max(length, axis=0), UNROLL):
        for i in tl.static_range(UNROLL):
            inside = first + i < length
            other = tl.load(placed_ptr + start + first + i, mask=inside, other=0).to(tl.int32)
            rank += (inside & (other < item)).to(tl.int32)
    tl.store(order_ptr + start + rank, item, mask=used)


@triton.jit
def _sample(item, K, sample_stride, factor, shift):
    # Item -> query, and index of the sample counted from the first one of the segment. Divides by K; see the host.
    q = (tl.umulhi(item.to(tl.uint32) << 1, factor) >> shift).to(tl.int32)
    return q, (q * sample_stride + (item - q * K)).to(tl.int64)


@triton.jit
def _write(partial_ptr, row, D, channel, mask, a00, a01, a10, a11, VEC: tl.constexpr):
    # The four corners of a cell lie behind each other.
    tl.store(_tile(partial_ptr, row, 4 * D, channel, VEC), a00, mask=mask)
    tl.store(_tile(partial_ptr + D, row, 4 * D, channel, VEC), a01, mask=mask)
    tl.store(_tile(partial_ptr + 2 * D, row, 4 * D, channel, VEC), a10, mask=mask)
    tl.store(_tile(partial_ptr + 3 * D, row, 4 * D, channel, VEC), a11, mask=mask)


@triton.jit(
    do_not_specialize=[
        "run_rows", "S", "Q", "M", "L", "K", "D_VECS", "run_blocks", "d_blocks", "runs", "run_bits", "quota",
        "per_head",
        "divide_by", "divide_shift",
    ],
    do_not_specialize_on_alignment=[
        "grad_out_ptr", "shapes_ptr", "starts_ptr", "loc_ptr", "attn_ptr", "offsets_ptr", "order_ptr", "partial_ptr",
    ],
)  # fmt: skip
def sum_cells(
    grad_out_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, offsets_ptr, order_ptr, partial_ptr,
    run_rows, S, Q, M, L, K, D_VECS, run_blocks, d_blocks, runs, run_bits, quota, per_head,
    divide_by: tl.int64, divide_shift,
    VEC: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum w * a * g over each cell for its four corners: BLOCK_R runs side by side, each from its first item on."""
    pid = tl.program_id(0)
    d_block = pid % d_blocks
    pid = pid // d_blocks
    run_block = pid % run_blocks
    pid = pid // run_blocks
    level = pid % L
    head = pid // L
    height, width, start = _level(shapes_ptr, starts_ptr, level, True)
    first_counter = head * per_head + start + level * quota
    begin = tl.load(offsets_ptr + first_counter)
    end = tl.load(offsets_ptr + first_counter + height * width * _chunks(height, width, quota))

    D = D_VECS * VEC
    channel = d_block * BLOCK_D + tl.arange(0, BLOCK_D)
    channel_valid = channel < D
    # Offsets inside a batch entry are 32-bit integers until they meet the size of what they count.
    first_query = (head // M).to(tl.int64) * Q * M + head % M
    grad_base = grad_out_ptr + first_query * D
    loc_base = loc_ptr + 2 * (first_query * (L * K) + level * K)
    attn_base = attn_ptr + first_query * (L * K) + level * K
    grad_stride = (M * D).to(tl.int64)
    sample_stride = M * L * K
    factor = divide_by.to(tl.uint32)
    shift = divide_shift.to(tl.uint32)
    run = 1 << run_bits
    run_number = run_block * BLOCK_R + tl.arange(0, BLOCK_R)
    first = begin + run_number * run
    a00 = tl.zeros((BLOCK_R, BLOCK_D), COMPUTE)
    a01, a10, a11 = a00, a00, a00
    current = tl.full((BLOCK_R,), -1, tl.int32)
    row = run_rows + (head * L + level) * runs + run_number
    summed = tl.zeros((BLOCK_R,), tl.int32)
    # One step before the run sees in which cell the previous run ended, and one after it writes the last sum. What a
    # step computes with was loaded in the step before, from an item that was loaded one step earlier still.
    steps = tl.where(begin + run_block * BLOCK_R * run < end, run + 2, 0)
    seen = (first > begin) & (first <= end)
    item = tl.load(order_ptr + first - 1, mask=seen, other=0)
    next_item = tl.load(order_ptr + first, mask=first < end, other=0)
    q, sample = _sample(item, K, sample_stride, factor, shift)
    next_x = tl.load(loc_base + 2 * sample, mask=seen, other=0.0)
    next_y = tl.load(loc_base + 2 * sample + 1, mask=seen, other=0.0)
    next_weight = tl.zeros((BLOCK_R,), attn_ptr.dtype.element_ty)
    next_g = tl.zeros((BLOCK_R, BLOCK_D), grad_out_ptr.dtype.element_ty)
    for step in range(0, steps):
        x = _pixels(next_x, width, COMPUTE)
        y = _pixels(next_y, height, COMPUTE)
        weight = next_weight.to(COMPUTE)
        g = next_g.to(COMPUTE)
        position = first + step
        follows = (position < end) & (step < run)
        q, sample = _sample(next_item, K, sample_stride, factor, shift)
        next_x = tl.load(loc_base + 2 * sample, mask=follows, other=0.0)
        next_y = tl.load(loc_base + 2 * sample + 1, mask=follows, other=0.0)
        next_weight = tl.load(attn_base + sample, mask=follows, other=0.0)
        g_pointers = _tile(grad_base, q.to(tl.int64), grad_stride, channel, VEC)
        next_g = tl.load(g_pointers, mask=follows[:, None] & channel_valid[None, :], other=0.0)
        next_item = tl.load(order_ptr + position + 1, mask=(position + 1 < end) & (step + 1 < run), other=0)

        used = seen & (step > 0)
        x_floor = tl.floor(x)
        y_floor = tl.floor(y)
        left = x_floor.to(tl.int32)
        top = y_floor.to(tl.int32)
        lx = x - x_floor
        ly = y - y_floor
        hx = 1.0 - lx
        hy = 1.0 - ly
        c00 = (weight * (hy * hx))[:, None]
        c01 = (weight * (hy * lx))[:, None]
        c10 = (weight * (ly * hx))[:, None]
        c11 = (weight * (ly * lx))[:, None]
        cell = _cell(left, top, height, width)
        changed = seen & (cell != current)
        flush = (summed > 0) & (changed | (step > run))
        inside = (left >= 0) & (left + 1 < width) & (top >= 0) & (top + 1 < height)
        # Both conditions are rare. A NaN in g would do no harm in either branch: naming g makes the compiler reduce in
        # the layout of the tile, and not recompute all of the above in another one.
        if tl.max((flush[:, None] | (g != g)).to(tl.int32)) > 0:  # noqa: PLR0124
            mask = flush[:, None] & channel_valid[None, :]
            _write(partial_ptr, row.to(tl.int64), D, channel, mask, a00, a01, a10, a11, VEC)
            keep = (flush == 0)[:, None]
            a00 = tl.where(keep, a00, 0.0)
            a01 = tl.where(keep, a01, 0.0)
            a10 = tl.where(keep, a10, 0.0)
            a11 = tl.where(keep, a11, 0.0)
        if tl.max(((used & (inside == 0))[:, None] | (g != g)).to(tl.int32)) > 0:  # noqa: PLR0124
            # Beyond the edge is another cell of the torus, and 0 times an infinite g would be NaN there: select.
            a00 += tl.where(((top >= 0) & (left >= 0))[:, None], c00 * g, 0.0)
            a01 += tl.where(((top >= 0) & (left + 1 < width))[:, None], c01 * g, 0.0)
            a10 += tl.where(((top + 1 < height) & (left >= 0))[:, None], c10 * g, 0.0)
            a11 += tl.where(((top + 1 < height) & (left + 1 < width))[:, None], c11 * g, 0.0)
        else:
            a00 = tl.fma(c00, g, a00)
            a01 = tl.fma(c01, g, a01)
            a10 = tl.fma(c10, g, a10)
            a11 = tl.fma(c11, g, a11)
        row = tl.where(changed & used, head * S + start + cell, row)
        current = tl.where(changed, cell, current)
        summed = tl.where(used, 1, summed)
        seen = follows


@triton.jit
def _parts(offsets_ptr, segment, begin, cell, chunks, valid, run_bits):
    # Whether the cell holds anything, the run of its first item, and the number of runs that go on with it.
    start = tl.load(offsets_ptr + segment + cell * chunks, mask=valid, other=0)
    end = tl.load(offsets_ptr + segment + cell * chunks + chunks, mask=valid, other=0)
    first = (start - begin) >> run_bits
    return end > start, first, tl.where(end > start, ((end - 1 - begin) >> run_bits) - first, 0)


@triton.jit(
    do_not_specialize=[
        "run_rows", "S", "M", "L", "D_VECS", "pixel_blocks", "d_blocks", "runs", "run_bits", "quota", "per_head",
    ],
    do_not_specialize_on_alignment=["shapes_ptr", "starts_ptr", "offsets_ptr", "partial_ptr", "grad_value_ptr"],
)  # fmt: skip
def sum_pixels(
    shapes_ptr, starts_ptr, offsets_ptr, partial_ptr, grad_value_ptr,
    run_rows, S, M, L, D_VECS, pixel_blocks, d_blocks, runs, run_bits, quota, per_head,
    VEC: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """grad_value of a block of pixels: the sum over their four cells, written once, zeros included."""
    b, m, pixel_block, d_block = _program(pixel_blocks, d_blocks, M)
    D = D_VECS * VEC
    channel = d_block * BLOCK_D + tl.arange(0, BLOCK_D)
    channel_valid = channel < D
    pixel = pixel_block * BLOCK_S + tl.arange(0, BLOCK_S)
    valid = pixel < S
    level = tl.zeros((BLOCK_S,), tl.int32)
    for later in range(1, L):
        level = tl.where(pixel >= tl.load(starts_ptr + later), later, level)
    height, width, start = _level(shapes_ptr, starts_ptr, level, valid)
    y = (pixel - start) // width
    x = pixel - start - y * width
    above = tl.where(y == 0, height, y) - 1
    before = tl.where(x == 0, width, x) - 1
    head = b * M + m
    segment = head.to(tl.int32) * per_head + start + level * quota
    begin = tl.load(offsets_ptr + segment, mask=valid, other=0)
    chunks = _chunks(height, width, quota)
    here = y * width + x
    beside = y * width + before
    over = above * width + x
    across = above * width + before
    any00, run00, more00 = _parts(offsets_ptr, segment, begin, here, chunks, valid, run_bits)
    any01, run01, more01 = _parts(offsets_ptr, segment, begin, beside, chunks, valid, run_bits)
    any10, run10, more10 = _parts(offsets_ptr, segment, begin, over, chunks, valid, run_bits)
    any11, run11, more11 = _parts(offsets_ptr, segment, begin, across, chunks, valid, run_bits)
    p00, p01, p10, p11 = partial_ptr, partial_ptr + D, partial_ptr + 2 * D, partial_ptr + 3 * D
    stride = 4 * D
    first = head * S + start
    acc = _gather(p00, tl.where(any00, first + here, -1), stride, channel, channel_valid, VEC, COMPUTE)
    acc += _gather(p01, tl.where(any01, first + beside, -1), stride, channel, channel_valid, VEC, COMPUTE)
    acc += _gather(p10, tl.where(any10, first + over, -1), stride, channel, channel_valid, VEC, COMPUTE)
    acc += _gather(p11, tl.where(any11, first + across, -1), stride, channel, channel_valid, VEC, COMPUTE)
    first_run = run_rows + (head * L + level) * runs
    most = tl.maximum(tl.maximum(more00, more01), tl.maximum(more10, more11))
    for i in range(1, tl.max(most, axis=0) + 1):
        row = first_run + i
        acc += _gather(p00, tl.where(i <= more00, row + run00, -1), stride, channel, channel_valid, VEC, COMPUTE)
        acc += _gather(p01, tl.where(i <= more01, row + run01, -1), stride, channel, channel_valid, VEC, COMPUTE)
        acc += _gather(p10, tl.where(i <= more10, row + run10, -1), stride, channel, channel_valid, VEC, COMPUTE)
        acc += _gather(p11, tl.where(i <= more11, row + run11, -1), stride, channel, channel_valid, VEC, COMPUTE)
    mask = valid[:, None] & channel_valid[None, :]
    result_row = (b * S + pixel) * M + m
    pointers = _tile(grad_value_ptr, result_row, D, channel, VEC)
    tl.store(pointers, acc.to(grad_value_ptr.dtype.element_ty), mask=mask)
