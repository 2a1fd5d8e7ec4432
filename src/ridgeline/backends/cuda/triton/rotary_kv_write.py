"""A kernel that rotates queries and keys and writes keys and values to their pages, in one launch.

If the pages store codes, the kernel quantises on the way (`core/ops/kv_quantisation.py`).

Shapes: T rows, H heads, D numbers of a head; P pages of S positions.
"""

import triton
import triton.language as tl

from ridgeline.backends.cuda.triton.launch import let_next_start, wait_for_last


@triton.jit
def rotated(x, x_row, x_head, cos, sin, t, h_H, d_D, keep_HD, half, TURNS: tl.constexpr):
    """Return the heads of row t [H, D] in the dtype of x, rotated in their first 2 x `half` numbers each if TURNS."""
    at_H = t * x_row + h_H * x_head
    x_HD = tl.load(x + at_H[:, None] + d_D[None, :], mask=keep_HD, other=0.0)
    if TURNS:
        partner_D = tl.where(d_D < half, d_D + half, d_D - half)
        turns_D = d_D < 2 * half
        other_HD = tl.load(x + at_H[:, None] + partner_D[None, :], mask=keep_HD & turns_D[None, :], other=0.0)
        angle_D = tl.where(d_D < half, d_D, d_D - half)
        cos_D = tl.load(cos + t * half + angle_D, mask=turns_D, other=1.0)
        sin_D = tl.load(sin + t * half + angle_D, mask=turns_D, other=0.0)
        sin_D = tl.where(d_D < half, -sin_D, sin_D)
        x_HD = (x_HD.to(tl.float32) * cos_D[None, :] + other_HD.to(tl.float32) * sin_D[None, :]).to(x.dtype.element_ty)
    return x_HD


@triton.jit
def nearest(x, bits: tl.constexpr):
    """Round fp32 numbers to nearest even so that their lowest `bits` bits become 0.

    It is done by hand, because Triton's interpreter truncates.
    """
    as_bits = x.to(tl.int32, bitcast=True)
    as_bits = (as_bits + (1 << bits - 1) - 1 + ((as_bits >> bits) & 1)) >> bits << bits
    return as_bits.to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(x):
    """Round numbers to e4m3: to 4 significant bits, or below 2^-6 to multiples of 2^-9."""
    return tl.where(tl.abs(x) < 0.015625, (x + 24576.0) - 24576.0, nearest(x, 20))


@triton.jit
def put(x_HD, pages, page_stride, scales, scale_stride, slot, scale, h_H, d_D, keep_HD, heads, dim,
        SIZE: tl.constexpr, CODE: tl.constexpr):  # fmt: skip
    """Write the keys or values of one row's heads to a KV slot (page x S + offset)."""
    page, offset = (slot // SIZE).to(tl.int64), slot % SIZE
    at_HD = page * page_stride + h_H[:, None] * SIZE * dim + offset * dim + d_D[None, :]
    if CODE == "":
        tl.store(pages + at_HD, x_HD, mask=keep_HD)
    elif CODE == "fp8":
        wide_HD = x_HD.to(tl.float32) / scale
        within_HD = to_e4m3(tl.minimum(tl.maximum(wide_HD, -448.0), 448.0))
        code_HD = tl.where(wide_HD != wide_HD, wide_HD, within_HD).to(tl.float8e4nv)
        tl.store(pages + at_HD, code_HD.to(tl.uint8, bitcast=True), mask=keep_HD)
    else:
        wide_HD = tl.where(keep_HD, x_HD.to(tl.float32), 0.0)
        most_H = tl.max(tl.abs(wide_HD), axis=1) + 0.0 * tl.sum(wide_HD, axis=1)  # NaN if any of them is
        finite_H = (most_H - most_H) == 0.0
        scale_H = tl.where(finite_H, nearest(most_H / 127.0, 16), float("nan"))
        multiple_HD = tl.where((scale_H > 0.0)[:, None], wide_HD / scale_H[:, None], 0.0)
        # Round to the nearest integer, ties to even: fp32 addition does this for numbers near 1.5 x 2^23.
        nearest_HD = (multiple_HD + 12582912.0) - 12582912.0
        code_HD = tl.minimum(tl.maximum(nearest_HD, -127.0), 127.0) + 128.0
        tl.store(pages + at_HD, code_HD.to(tl.uint8), mask=keep_HD)
        at_H = page * scale_stride + h_H * SIZE + offset
        tl.store(scales + at_H, scale_H.to(tl.bfloat16), mask=h_H < heads)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def keep_rows(
    q, q_row, q_head, k, k_row, k_head, v, v_row, v_head, cos, sin, half, q_out, slots,
    k_pages, v_pages, k_stride, v_stride, k_scales, v_scales, scale_stride, k_scale, v_scale,
    heads, kv_heads, dim, width, q_blocks, kv_blocks,
    TURNS: tl.constexpr, CODE: tl.constexpr, SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Rotate queries and keys by their positions if TURNS, and store keys and values in KV pages.

    Grid: rows x blocks of heads; first those of the queries, then of the keys, then of the values. Rows with a slot
    below 0 are not stored.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    t, block, d_D = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_D)
    if block < q_blocks:
        h_H = block * BLOCK_H + tl.arange(0, BLOCK_H)
        keep_HD = (h_H < heads)[:, None] & (d_D < dim)[None, :]
        q_HD = rotated(q, q_row, q_head, cos, sin, t, h_H, d_D, keep_HD, half, TURNS)
        tl.store(q_out + t * heads * dim + h_H[:, None] * dim + d_D[None, :], q_HD, mask=keep_HD)
    else:
        slot = tl.load(slots + t)
        if slot >= 0:
            if block < q_blocks + kv_blocks:
                h_H = (block - q_blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
                keep_HD = (h_H < kv_heads)[:, None] & (d_D < dim)[None, :]
                k_HD = rotated(k, k_row, k_head, cos, sin, t, h_H, d_D, keep_HD, half, TURNS)
                put(k_HD, k_pages, k_stride, k_scales, scale_stride, slot, k_scale, h_H, d_D, keep_HD, kv_heads, dim,
                    SIZE, CODE)  # fmt: skip
            else:
                h_H = (block - q_blocks - kv_blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
                keep_HD = (h_H < kv_heads)[:, None] & (d_D < width)[None, :]
                v_HD = rotated(v, v_row, v_head, cos, sin, t, h_H, d_D, keep_HD, half, False)
                put(v_HD, v_pages, v_stride, v_scales, scale_stride, slot, v_scale, h_H, d_D, keep_HD, kv_heads, width,
                    SIZE, CODE)  # fmt: skip
