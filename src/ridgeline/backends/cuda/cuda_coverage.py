"""The ops that the Triton kernels take."""

from ridgeline.backends.kernel_support import has_operands, takes_norm
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.op import Op

MAX_HEAD_DIM, MAX_SHARERS = 256, 64
"""The widest heads, and the most that share keys, of which the kernels take a tile."""

COPY_BYTES = 256 << 20
"""The most bytes of keys and values that attention copies out of their pages: 65,536 positions of 8 heads of 128
numbers in bf16. If there are more, it reads them where they lie."""

TAKES = (Attention, MatrixOp, RMSNorm)
"""The classes of ops that there are kernels for."""


def covers(op: Op) -> bool:
    """Return whether the kernels do all of an op."""
    match op:
        case RMSNorm():
            return takes_norm(op)
        case MatrixOp():
            return has_operands(op)
        case Attention():
            return attends(op)
    return False


def attends(op: Attention) -> bool:
    """Return whether the kernels attend over what an op keeps: keys and values next to each other, not too wide, and no
    bias of positions.
    """
    spec = op.spec
    sized = max(spec.k_dim, spec.v_dim) <= MAX_HEAD_DIM and op.heads // spec.heads <= MAX_SHARERS
    return spec.kept and spec.v_dim > 0 and op.bias is None and spec.dtype in DTYPES and sized


def keeps(op: Attention) -> bool:
    """Return whether one kernel rotates and keeps rows: unless neighbours are rotated."""
    return attends(op) and not op.rotates_neighbours
