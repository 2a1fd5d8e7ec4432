"""A dense copy of paged keys and values, for prompts whose attention is expensive compared with the copy.

In the copy the positions of each head are contiguous. A tile of keys is then one request to the GPU's copy engine (TMA,
Hopper and later), and no thread computes addresses.

Shapes: N positions of a tile, D head dim, W width of a value; `rows` positions of all sequences, each of which begins
at a multiple of ROW_MULTIPLE.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ridgeline.backends.cuda.triton.launch import let_next_start, wait_for_last
from ridgeline.backends.cuda.triton.paged_attention_kernels import kept, sequence_of

ROW_MULTIPLE = 128
"""The multiple to which the positions of each sequence are padded in a dense copy of keys and values.

It is the size of the largest tile of keys, so that no tile contains positions of two sequences.
"""

FEWEST_QUERIES = 768
"""The fewest queries of a step's longest prompt chunk for which keys and values are copied out of their pages.

On an H200 512 queries are as fast without a copy; 1,024 queries take 42 us with it and 53 us without.
"""


@triton.jit(
    do_not_specialize=["rows", "sequences"],
    do_not_specialize_on_alignment=["pages", "offset_C", "length_C", "begin_C"],
)
def gather(
    k_out, v_out, rows, pages, offset_C, length_C, begin_C, sequences, k, v, k_stride, v_stride, k_scales, v_scales,
    scale_stride, k_scale, v_scale,
    SIZE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, CODE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copy the keys and values of sequences out of their pages.

    Grid: tiles of all rows x KV heads. Positions after the end of a sequence in its last tile become 0, so that a
    weight of 0 times them is not NaN. Rows that belong to no sequence are not written.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    head = tl.program_id(1)
    c, before = sequence_of(tl.program_id(0), begin_C, sequences, BLOCK_N, False)
    at, length = (tl.program_id(0) - before) * BLOCK_N, tl.load(length_C + c)
    if at < length:
        n_N, d_D, w_W = at + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
        table, there_N = pages + tl.load(offset_C + c), n_N < length
        to_N = (head * rows + tl.load(begin_C + c) + n_N).to(tl.int64)
        k_ND = kept(k, table, n_N, there_N, head, k_stride, k_scales, scale_stride, k_scale, d_D,
                    False, DIM, SIZE, CODE, DTYPE, BLOCK_D)  # fmt: skip
        v_NW = kept(v, table, n_N, there_N, head, v_stride, v_scales, scale_stride, v_scale, w_W,
                    False, WIDTH, SIZE, CODE, DTYPE, BLOCK_W)  # fmt: skip
        tl.store(k_out + to_N[:, None] * DIM + d_D[None, :], k_ND.to(k_out.dtype.element_ty), mask=(d_D < DIM)[None, :])
        tl.store(
            v_out + to_N[:, None] * WIDTH + w_W[None, :], v_NW.to(v_out.dtype.element_ty), mask=(w_W < WIDTH)[None, :]
        )


def tiled(x_RD: torch.Tensor, positions: int) -> Any:
    """Return a TMA descriptor (for the GPU's copy engine) of rows, with tiles of this many positions."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x_RD, [positions, x_RD.shape[1]])
