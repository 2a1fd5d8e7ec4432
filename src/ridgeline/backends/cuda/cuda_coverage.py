"""The ops that the Triton kernels support."""

from ridgeline.backends.kernel_support import has_operands, takes_norm
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.op import Op

MAX_HEAD_DIM, MAX_SHARERS = 256, 64
"""The largest head dimension, and the most query heads per KV head, that the GPU attention kernels support."""

COPY_BYTES = 256 << 20
"""The maximum number of bytes of keys and values that attention copies out of their pages.

This is 65,536 positions of 8 heads with 128 numbers in bf16. If there are more, attention reads them from their pages.
"""

TAKES = (Attention, MatrixOp, RMSNorm)
"""The classes of ops for which there are Triton kernels."""


def covers(op: Op) -> bool:
    """Return whether the Triton kernels compute an op completely."""
    match op:
        case RMSNorm():
            return takes_norm(op)
        case MatrixOp():
            return has_operands(op)
        case Attention():
            return attends(op)
    return False


def attends(op: Attention) -> bool:
    """Return whether the Triton kernels support the attention of an op.

    The op must cache separate keys and values in a model dtype of fp32 or bf16. Its head size and the query heads per
    KV head are limited, and it must not add a position bias.
    """
    spec = op.spec
    sized = max(spec.k_dim, spec.v_dim) <= MAX_HEAD_DIM and op.heads // spec.heads <= MAX_SHARERS
    return spec.is_cached and spec.v_dim > 0 and op.bias is None and spec.dtype in DTYPES and sized


def keeps(op: Attention) -> bool:
    """Return whether one GPU kernel rotates an op's queries and keys and stores its keys and values.

    The kernel cannot rotate adjacent pairs of numbers (`rotates_neighbours`).
    """
    return attends(op) and not op.rotates_neighbours
