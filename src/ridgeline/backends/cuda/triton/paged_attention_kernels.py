"""Attention kernels over KV pages (PagedAttention: Kwon et al., arXiv:2309.06180), tiled with an online softmax.

The softmax follows FlashAttention-2 (Dao, arXiv:2307.08691). The query heads that share keys are rows of one tile.
Exponentials are powers of 2, which GPUs compute in hardware. Tiles of keys that all queries of a tile see are not
compared with positions.

The keys of a sequence with one query are divided into SPLITS parts, because a GPU has more multiprocessors than a few
sequences have heads. A second kernel combines the results (Flash-Decoding: Dao et al., 2023).

Shapes: M rows of a tile (queries x the heads that share keys), N keys of a tile, D head dim, W width of a value.
"""

import triton
import triton.language as tl

from ridgeline.backends.cuda.triton.launch import let_next_start, wait_for_last

AT_ONCE = tl.constexpr(64)
"""The number of sequences that a GPU program checks per loop iteration to find the sequence of its tile."""

NOTHING = tl.constexpr(-1.0e30)
"""The initial maximum of attention scores; keys that are not seen have the score -inf."""


LOG2E = tl.constexpr(1.4426950408889634)
"""log2(e), which converts a power of e to a power of 2."""


@triton.jit
def first_seen(position, reach, REACH: tl.constexpr):
    """Return the first key that a query at a position attends to."""
    if REACH == "window":
        return tl.maximum(position - reach + 1, 0)
    if REACH == "chunked":
        return position // reach * reach
    return position * 0


@triton.jit
def sequence_of(tile, before_C, sequences, POSITIONS: tl.constexpr, SHARED: tl.constexpr):
    """Return the sequence to which a tile of queries or of copied keys belongs, and the first tile of that sequence.

    Tiles of POSITIONS positions are assigned to the sequences one after the other, as in the ragged grids of vLLM's
    Triton attention. before_C has the number of positions before each sequence. If SHARED, the last tile of a sequence
    has no rows of the next one, which then begins one tile later: T positions and C sequences need at most T //
    POSITIONS + C tiles.
    """
    found = tile * 0 - 1
    for start in range(0, sequences, AT_ONCE):
        c_C = start + tl.arange(0, AT_ONCE)
        first_C = tl.load(before_C + c_C, mask=c_C < sequences, other=0) // POSITIONS
        if SHARED:
            first_C += c_C
        found += tl.sum(((first_C <= tile) & (c_C < sequences)).to(tl.int32), axis=0)
    first = tl.load(before_C + found) // POSITIONS
    if SHARED:
        first += found
    return found, first


@triton.jit
def kept(
    of, table, n_N, there_N, head, stride, scales, scale_stride, scale, d_D,
    WHOLE: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, CODE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load keys or values of one head at some positions [N, D] through a sequence's page table.

    WHOLE: all positions exist.
    """
    seen_N = there_N | WHOLE
    page_N = tl.load(table + n_N // SIZE, mask=seen_N, other=0).to(tl.int64)
    at_N = page_N * stride + head * SIZE * DIM + (n_N % SIZE) * DIM
    keep_ND = seen_N[:, None] if DIM == BLOCK_D else seen_N[:, None] & (d_D < DIM)[None, :]
    held_ND = tl.load(of + at_N[:, None] + d_D[None, :], mask=keep_ND, other=0)
    if CODE == "":
        return held_ND.to(DTYPE)
    if CODE == "fp8":
        return (held_ND.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale).to(DTYPE)
    step_N = tl.load(scales + page_N * scale_stride + head * SIZE + n_N % SIZE, mask=seen_N, other=0.0).to(tl.float32)
    return ((held_ND.to(tl.float32) - 128.0) * step_N[:, None]).to(DTYPE)


@triton.jit
def over_keys(
    out_MW, most_M, sum_M, q_MD, position_M, start, stop, table, head, k, v, k_stride, v_stride, k_scales, v_scales,
    scale_stride, scale, softcap, k_scale, v_scale, reach,
    SEEN: tl.constexpr, REACH: tl.constexpr, CAPPED: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, CODE: tl.constexpr, DTYPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Attend with a tile of queries to the keys from `start` to `stop`, and update the running softmax.

    The state is the sum of weighted values [M, W], the maximum score (as an exponent of 2) and the sum of weights [M].
    SEEN is "whole" if these keys fill whole tiles that all queries see, "all" if all queries see them, and "some" if
    positions decide. If DENSE, k and v are descriptors of contiguous rows, and table is the sequence's first row.
    """
    d_D, w_W = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
    factor = LOG2E if CAPPED else scale * LOG2E
    for at in range(start, stop, BLOCK_N):
        n_N = at + tl.arange(0, BLOCK_N)
        there_N = n_N < stop
        if DENSE:
            k_ND = k.load([table + at, 0]).to(DTYPE)
        else:
            k_ND = kept(k, table, n_N, there_N, head, k_stride, k_scales, scale_stride, k_scale, d_D,
                        SEEN == "whole", DIM, SIZE, CODE, DTYPE, BLOCK_D)  # fmt: skip
        s_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        if CAPPED:
            s_MN = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(s_MN * (scale / softcap * 2.0 * LOG2E))))
        if SEEN != "whole":
            seen_MN = there_N[None, :]
            if SEEN == "some":
                seen_MN = seen_MN & (n_N[None, :] <= position_M[:, None])
                if REACH != "causal":
                    seen_MN = seen_MN & (n_N[None, :] >= first_seen(position_M, reach, REACH)[:, None])
            s_MN = tl.where(seen_MN, s_MN, float("-inf"))
        more_M = tl.maximum(most_M, tl.max(s_MN, axis=1) * factor)
        p_MN, fade_M = tl.exp2(s_MN * factor - more_M[:, None]), tl.exp2(most_M - more_M)
        sum_M = sum_M * fade_M + tl.sum(p_MN, axis=1)
        if DENSE:
            v_NW = v.load([table + at, 0]).to(DTYPE)
        else:
            v_NW = kept(v, table, n_N, there_N, head, v_stride, v_scales, scale_stride, v_scale, w_W,
                        SEEN == "whole", WIDTH, SIZE, CODE, DTYPE, BLOCK_W)  # fmt: skip
        out_MW = tl.dot(p_MN.to(DTYPE), v_NW, out_MW * fade_M[:, None], input_precision="ieee")
        most_M = more_M
    return out_MW, most_M, sum_M


@triton.jit
def nothing_yet(BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr):
    """Return the initial running softmax of attention, before any key (see `over_keys`)."""
    most_M, sum_M = tl.full((BLOCK_M,), NOTHING, tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    return tl.zeros((BLOCK_M, BLOCK_W), tl.float32), most_M, sum_M


@triton.jit
def with_sink(sinks, h_M, keep_M, most_M, sum_M, HAS_SINKS: tl.constexpr):
    """Return the softmax's sum of weights including the attention sink of the head."""
    if HAS_SINKS:
        sink_M = tl.load(sinks + h_M, mask=keep_M, other=0.0).to(tl.float32)
        sum_M += tl.exp2(tl.minimum(sink_M * LOG2E - most_M, 120.0))
    return sum_M


@triton.jit(do_not_specialize_on_alignment=["pages", "offset_B", "length_B", "row_B"])
def decode(
    q, q_row, q_head, out, parts, sums, pages, offset_B, length_B, row_B, k, v, k_stride, v_stride, k_scales, v_scales,
    scale_stride, sinks, scale, softcap, k_scale, v_scale, heads, reach,
    REACH: tl.constexpr, CAPPED: tl.constexpr, HAS_SINKS: tl.constexpr, SHARERS: tl.constexpr, SPLITS: tl.constexpr,
    SIZE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, CODE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute attention for sequences with one query each.

    Grid: sequences x KV heads x SPLITS. A sequence of length 0 gives zeros, or nothing if its row is below 0.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    b, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, row = tl.load(length_B + b), tl.load(row_B + b).to(tl.int64)
    first = tl.maximum(first_seen(length - 1, reach, REACH), 0)
    span = tl.cdiv(tl.cdiv(length - first, SPLITS), BLOCK_N) * BLOCK_N
    start = first + split * span
    m_M, d_D, w_W = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
    h_M = head * SHARERS + m_M
    own_M = m_M < tl.where(row >= 0, SHARERS, 0)
    q_MD = tl.load(
        q + row * q_row + h_M[:, None] * q_head + d_D[None, :], mask=own_M[:, None] & (d_D < DIM)[None, :], other=0.0
    ).to(DTYPE)  # fmt: skip
    out_MW, most_M, sum_M = nothing_yet(BLOCK_M, BLOCK_W)
    out_MW, most_M, sum_M = over_keys(
        out_MW, most_M, sum_M, q_MD, m_M, start, tl.minimum(start + span, length), pages + tl.load(offset_B + b), head,
        k, v, k_stride, v_stride, k_scales, v_scales, scale_stride, scale, softcap, k_scale, v_scale, reach,
        "all", REACH, CAPPED, SIZE, DIM, WIDTH, CODE, DTYPE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_W, False,
    )  # fmt: skip
    keep_MW = own_M[:, None] & (w_W < WIDTH)[None, :]
    if SPLITS == 1:
        sum_M = with_sink(sinks, h_M, own_M, most_M, sum_M, HAS_SINKS)
        to_MW = out + (row * heads + h_M)[:, None] * WIDTH + w_W[None, :]
        tl.store(to_MW, (out_MW / tl.maximum(sum_M, 1e-30)[:, None]).to(out.dtype.element_ty), mask=keep_MW)
    else:
        at_M = (b * heads + h_M).to(tl.int64) * SPLITS + split
        tl.store(parts + at_M[:, None] * WIDTH + w_W[None, :], out_MW, mask=keep_MW)
        tl.store(sums + at_M * 2, most_M, mask=own_M)
        tl.store(sums + at_M * 2 + 1, sum_M, mask=own_M)


@triton.jit(do_not_specialize_on_alignment=["row_B"])
def combine_splits(
    out, parts, sums, row_B, sinks, heads,
    HAS_SINKS: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Combine the partial attention results that `decode` computed for parts of the keys; grid: sequences x heads."""
    let_next_start(EARLY)
    wait_for_last(EARLY)
    b, head = tl.program_id(0), tl.program_id(1)
    split_P, w_W = tl.arange(0, SPLITS), tl.arange(0, BLOCK_W)
    at_P = (b * heads + head).to(tl.int64) * SPLITS + split_P
    most_P, sum_P = tl.load(sums + at_P * 2), tl.load(sums + at_P * 2 + 1)
    most = tl.max(most_P, axis=0)
    share_P = tl.exp2(most_P - most)
    in_all = tl.sum(sum_P * share_P, axis=0)
    if HAS_SINKS:
        in_all += tl.exp2(tl.minimum(tl.load(sinks + head).to(tl.float32) * LOG2E - most, 120.0))
    row = tl.load(row_B + b).to(tl.int64)
    part_PW = tl.load(parts + at_P[:, None] * WIDTH + w_W[None, :], mask=(w_W < WIDTH)[None, :], other=0.0)
    out_W = tl.sum(part_PW * share_P[:, None], axis=0) / tl.maximum(in_all, 1e-30)
    keep_W = w_W < tl.where(row >= 0, WIDTH, 0)
    tl.store(out + (row * heads + head) * WIDTH + w_W, out_W.to(out.dtype.element_ty), mask=keep_W)


@triton.jit(
    do_not_specialize=["rows", "sequences"],
    do_not_specialize_on_alignment=["pages", "offset_C", "length_C", "row_C", "count_C", "before_C", "begin_C"],
)
def prefill(
    q, q_row, q_head, out, pages, offset_C, length_C, row_C, count_C, before_C, begin_C, sequences, rows, k, v,
    k_stride, v_stride, k_scales, v_scales, scale_stride, sinks, scale, softcap, k_scale, v_scale, heads, reach,
    REACH: tl.constexpr, CAPPED: tl.constexpr, HAS_SINKS: tl.constexpr, SHARERS: tl.constexpr, SIZE: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CODE: tl.constexpr, DTYPE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, DENSE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute attention for sequences with several queries.

    Grid: tiles of all sequences (`sequence_of`), or more, x KV heads; the last tiles, which see the most keys, come
    first. A sequence of length 0 gives zeros. If DENSE, k and v are not pages but the copies of `dense_kv.gather`, in
    which the rows of a sequence start at begin_C, in the `rows` of each head.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    head = tl.program_id(1)
    QUERIES: tl.constexpr = BLOCK_M // SHARERS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    c, before = sequence_of(tile, before_C, sequences, QUERIES, True)
    tile -= before
    length, count = tl.load(length_C + c), tl.load(count_C + c)
    if tile * QUERIES < count:
        m_M, d_D, w_W = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
        query_M, h_M = tile * QUERIES + m_M // SHARERS, head * SHARERS + m_M % SHARERS
        own_M = (m_M < QUERIES * SHARERS) & (query_M < count)
        row_M = tl.load(row_C + c).to(tl.int64) + query_M
        q_MD = tl.load(
            q + row_M[:, None] * q_row + h_M[:, None] * q_head + d_D[None, :],
            mask=own_M[:, None] & (d_D < DIM)[None, :], other=0.0,
        ).to(DTYPE)  # fmt: skip
        # First the whole tiles of keys that all of these queries see, then the others.
        first = length - count + tile * QUERIES
        if REACH == "cross":
            start, stop = 0, length
            whole = length // BLOCK_N * BLOCK_N
        else:
            start, stop = first_seen(first, reach, REACH), tl.minimum(first + QUERIES, length)
            start = tl.maximum(start, 0)
            whole = tl.maximum((first + 1) // BLOCK_N * BLOCK_N, 0) if REACH == "causal" else start
        # Padding rows see the same keys as the last query, so that no row is without a key.
        position_M = tl.minimum(length - count + query_M, length - 1)
        out_MW, most_M, sum_M = nothing_yet(BLOCK_M, BLOCK_W)
        table = head * rows + tl.load(begin_C + c) if DENSE else pages + tl.load(offset_C + c)
        if REACH == "causal" or REACH == "cross":
            out_MW, most_M, sum_M = over_keys(
                out_MW, most_M, sum_M, q_MD, position_M, start, whole, table, head, k, v, k_stride, v_stride, k_scales,
                v_scales, scale_stride, scale, softcap, k_scale, v_scale, reach,
                "whole", REACH, CAPPED, SIZE, DIM, WIDTH, CODE, DTYPE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_W, DENSE,
            )  # fmt: skip
        out_MW, most_M, sum_M = over_keys(
            out_MW, most_M, sum_M, q_MD, position_M, whole, stop, table, head, k, v, k_stride, v_stride, k_scales,
            v_scales, scale_stride, scale, softcap, k_scale, v_scale, reach,
            "all" if REACH == "cross" else "some", REACH, CAPPED, SIZE, DIM, WIDTH, CODE, DTYPE, BLOCK_M, BLOCK_N,
            BLOCK_D, BLOCK_W, DENSE,
        )  # fmt: skip
        sum_M = with_sink(sinks, h_M, own_M, most_M, sum_M, HAS_SINKS)
        to_MW = out + (row_M * heads + h_M)[:, None] * WIDTH + w_W[None, :]
        given_MW = (out_MW / tl.maximum(sum_M, 1e-30)[:, None]).to(out.dtype.element_ty)
        tl.store(to_MW, given_MW, mask=own_M[:, None] & (w_W < WIDTH)[None, :])
