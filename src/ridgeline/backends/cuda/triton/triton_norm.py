"""RMS norms of rows or of heads of rows, alone or with the residual addition before them.

Shapes: T rows, H vectors of a row, D numbers of a vector.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.backends.cuda.triton.launch import early, let_next_start, wait_for_last

_TILE = 4096
"""The number of elements that a GPU program normalises at once if vectors are shorter."""


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x, x_row, x_head, added, added_row, added_head, y, weight, eps, rows, heads, width,
    ADDS: tl.constexpr, FROM_ONE: tl.constexpr, CAST_LAST: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the RMS norm of a tile of vectors, after the residual addition if ADDS."""
    let_next_start(EARLY)
    n_N, d_D = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    t_N, h_N = (n_N // heads).to(tl.int64), n_N % heads
    keep_ND = (n_N < rows * heads)[:, None] & (d_D < width)[None, :]
    w_D = tl.load(weight + d_D, mask=d_D < width, other=0.0).to(tl.float32)
    wait_for_last(EARLY)
    x_ND = x + (t_N * x_row + h_N * x_head)[:, None] + d_D[None, :]
    held_ND = tl.load(x_ND, mask=keep_ND, other=0.0)
    if ADDS:
        more_ND = tl.load(added + (t_N * added_row + h_N * added_head)[:, None] + d_D[None, :], mask=keep_ND, other=0.0)
        held_ND = (held_ND.to(tl.float32) + more_ND.to(tl.float32)).to(x.dtype.element_ty)  # rounded as it is stored
        tl.store(x_ND, held_ND, mask=keep_ND)
    wide_ND = held_ND.to(tl.float32)
    scale_N = tl.rsqrt(tl.sum(wide_ND * wide_ND, axis=1) / width + eps)
    normed_ND = wide_ND * scale_N[:, None]
    if FROM_ONE:
        w_D += 1.0
    if not CAST_LAST:  # the cast comes before the weight, as in core/ops/norm.py
        normed_ND = normed_ND.to(x.dtype.element_ty).to(tl.float32)
    at_ND = (n_N.to(tl.int64) * width)[:, None] + d_D[None, :]
    tl.store(y + at_ND, (normed_ND * w_D[None, :]).to(y.dtype.element_ty), mask=keep_ND)


def rms_norm(x_THD: Tensor, weight_D: Tensor, eps: float, *, from_one: bool, added_THD: Tensor | None) -> Tensor:
    """Return the RMS norm of vectors [T, H, D], each contiguous -> a contiguous tensor of the same shape.

    The strides between vectors are arbitrary.

    Args:
        x_THD: Vectors.
        weight_D: Weight of the norm.
        eps: Epsilon of the norm.
        from_one: Whether the weight is added to 1 (Gemma).
        added_THD: Tensor that is added to the vectors in place first, or None.
    """
    rows, heads, width = x_THD.shape
    y_THD = torch.empty_like(x_THD, memory_format=torch.contiguous_format)
    if not rows:
        return y_THD
    added = x_THD if added_THD is None else added_THD
    block_d = triton.next_power_of_2(width)
    block_n = max(1, _TILE // block_d)
    _rms_norm[(triton.cdiv(rows * heads, block_n),)](
        x_THD, x_THD.stride(0), x_THD.stride(1), added, added.stride(0), added.stride(1), y_THD, weight_D, eps, rows,
        heads, width, ADDS=added_THD is not None, FROM_ONE=from_one, CAST_LAST=from_one, BLOCK_N=block_n,
        BLOCK_D=block_d, num_warps=8 if block_d >= 4096 else 4, **early(x_THD.device),
    )  # fmt: skip
    return y_THD
