"""The gated activation act(gate) * up in one pass over memory.

Shapes: T rows, F columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.backends.cuda.triton.launch import early, let_next_start, wait_for_last

NAMES = {"silu": 0, "swish": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu_fast": 1}
"""The number in the Triton kernel of each activation that it supports, by its name in config.json."""

_TILE = 1024


@triton.jit
def _gated(
    gate, gate_row, up, up_row, y, columns, ACTIVATION: tl.constexpr, BLOCK_F: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Compute act(gate) * up for a tile of one row."""
    let_next_start(EARLY)
    wait_for_last(EARLY)
    t, f_F = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    keep_F = f_F < columns
    gate_F = tl.load(gate + t * gate_row + f_F, mask=keep_F, other=0.0).to(tl.float32)
    up_F = tl.load(up + t * up_row + f_F, mask=keep_F, other=0.0)
    if ACTIVATION == 0:
        active_F = gate_F / (1.0 + tl.exp(-gate_F))
    else:
        inner_F = 0.7978845608028654 * (gate_F + 0.044715 * gate_F * gate_F * gate_F)  # sqrt(2 / pi)
        active_F = gate_F * (1.0 - 1.0 / (1.0 + tl.exp(2.0 * inner_F)))  # equals 0.5 x (1 + tanh)
    # Round between activation and product, as PyTorch's two kernels do.
    active_F = active_F.to(up.dtype.element_ty).to(tl.float32)
    tl.store(y + t * columns + f_F, (active_F * up_F.to(tl.float32)).to(y.dtype.element_ty), mask=keep_F)


def gated(gate_TF: Tensor, up_TF: Tensor, activation: str) -> Tensor:
    """Return the gated activation act(gate) * up -> [T, F], by one GPU kernel."""
    rows, columns = gate_TF.shape
    y_TF = torch.empty_like(gate_TF, memory_format=torch.contiguous_format)
    if rows:
        _gated[(rows, triton.cdiv(columns, _TILE))](
            gate_TF, gate_TF.stride(0), up_TF, up_TF.stride(0), y_TF, columns, ACTIVATION=NAMES[activation],
            BLOCK_F=_TILE, num_warps=4, **early(gate_TF.device),
        )  # fmt: skip
    return y_TF
