"""The largest logit of each row and its column, for greedy sampling.

Many programs read one row in parallel, and a second kernel combines their results. If a row contains NaN, its largest
number is NaN, as in PyTorch, but the column is that of its largest other number.

Shapes: R rows, V columns, P parts of a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.backends.cuda.triton.launch import early, let_next_start, wait_for_last

_BLOCK = 2048
_PROGRAMS = 1056  # eight per multiprocessor of the largest GPUs


@triton.jit
def _of_parts(x, row, columns, span, most_RP, at_RP, BLOCK_V: tl.constexpr, EARLY: tl.constexpr):
    """Find the largest logit of each part of a row.

    Grid: rows x parts of `span` columns, a multiple of BLOCK_V.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    r, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = part * span
    most_V, at_V = tl.full((BLOCK_V,), float("-inf"), tl.float32), start + tl.arange(0, BLOCK_V)
    nan_V = tl.zeros((BLOCK_V,), tl.int32)
    for begin in range(start, tl.minimum(start + span, columns), BLOCK_V):
        v_V = begin + tl.arange(0, BLOCK_V)
        x_V = tl.load(x + r * row + v_V, mask=v_V < columns, other=float("-inf"))
        nan_V |= (x_V != x_V).to(tl.int32)
        more_V = x_V > most_V
        most_V, at_V = tl.where(more_V, x_V, most_V), tl.where(more_V, v_V, at_V)
    most = tl.max(most_V, axis=0)
    at = tl.min(tl.where(most_V == most, at_V, columns), axis=0)
    place = r * tl.num_programs(1) + part
    tl.store(most_RP + place, tl.where(tl.max(nan_V, axis=0) > 0, float("nan"), most))
    tl.store(at_RP + place, at)


@triton.jit
def _of_rows(most_RP, at_RP, parts, out_R3, BLOCK_P: tl.constexpr, EARLY: tl.constexpr):
    """Combine the largest logits of the parts of each row; grid: rows."""
    let_next_start(EARLY)
    wait_for_last(EARLY)
    r, p_P = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_P)
    there_P = p_P < parts
    most_P = tl.load(most_RP + r * parts + p_P, mask=there_P, other=float("-inf"))
    at_P = tl.load(at_RP + r * parts + p_P, mask=there_P, other=2147483647)
    nan = tl.max((most_P != most_P).to(tl.int32), axis=0) > 0
    most = tl.max(tl.where(most_P != most_P, float("-inf"), most_P), axis=0)
    at = tl.min(tl.where(most_P == most, at_P, 2147483647), axis=0)
    most = tl.where(nan, float("nan"), most).to(tl.float64)
    tl.store(out_R3 + r * 3, at.to(tl.float64))
    tl.store(out_R3 + r * 3 + 1, most)
    tl.store(out_R3 + r * 3 + 2, most)


def argmax_logits(x_RV: Tensor) -> Tensor:
    """Return the first column with the largest logit of each fp32 row, and that logit twice, as float64 [R, 3].

    The sampler expects the logits before and after changes, which are equal here.
    """
    rows, columns = x_RV.shape
    assert x_RV.stride(1) == 1, "each row must be contiguous"
    parts = max(1, min(triton.cdiv(columns, _BLOCK), _PROGRAMS // max(1, rows)))
    span = triton.cdiv(triton.cdiv(columns, parts), _BLOCK) * _BLOCK
    parts = triton.cdiv(columns, span)
    most_RP, at_RP = x_RV.new_empty(rows, parts), x_RV.new_empty(rows, parts, dtype=torch.int32)
    out_R3 = x_RV.new_empty(rows, 3, dtype=torch.float64)
    if rows:
        stop_event = early(x_RV.device)
        _of_parts[(rows, parts)](
            x_RV, x_RV.stride(0), columns, span, most_RP, at_RP, BLOCK_V=_BLOCK, num_warps=8, **stop_event
        )
        _of_rows[(rows,)](
            most_RP, at_RP, parts, out_R3, BLOCK_P=triton.next_power_of_2(parts), num_warps=2, **stop_event
        )
    return out_R3
