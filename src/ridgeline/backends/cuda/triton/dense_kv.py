"""Keys and values of sequences copied out of their pages, each head's in one piece, where so many queries read them
that the copy costs little beside. A tile of keys is then one request to the card's copy engine (TMA, of Hopper and
later), and no thread computes addresses.

Shapes: N positions of a tile, D head dim, W width of a value; ROWS positions of all sequences, each of which begins at
a multiple of ROOM.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ridgeline.backends.cuda.triton.launch import let_next_start, wait_for_last
from ridgeline.backends.cuda.triton.paged_attention_kernels import kept, sequence_of

ROOM = 128
"""Each sequence has a multiple of so many positions: the largest tile of keys, which then has nobody else's in it."""

FEWEST_QUERIES = 768
"""Of a step's longest chunk: on an H200 512 are as fast without a copy, 1,024 take 42 us where they took 53."""


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
    """Grid: tiles of all rows x KV heads. What is behind a sequence's end is 0: a weight of 0 times it is not NaN. What
    no sequence has is left as it is.
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
    """Rows as the copy engine takes them, so many at a time."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x_RD, [positions, x_RD.shape[1]])
