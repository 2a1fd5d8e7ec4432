"""The ops for which the C++ library has kernels."""

from ridgeline.backends.kernel_support import has_operands, takes_norm
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.linear import LMHead, MatrixOp
from ridgeline.core.ops.matrix import stored_alike
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.rotary import RotaryTable
from ridgeline.core.ops.router import ExpertRouter, SharedGate

TAKES = (Attention, Embedding, Experts, MatrixOp, RMSNorm, RotaryTable)
"""The classes of ops for which the C++ library has kernels."""


def covers(op: Op) -> bool:
    """Return whether the C++ kernels compute an op completely, as a recorded step requires."""
    match op:
        case RotaryTable():
            return True
        case RMSNorm():
            return takes_norm(op)
        case MatrixOp():
            return _covers_products(op)
        case Embedding():
            plain = op.stored is None or (op.table is not None and op.table.operands is not None)
            return op.shard.size == 1 and op.scale is None and plain
        case Experts():
            return in_one_call(op)
        case Attention():
            return attends(op)
    return False


def fuses(op: Op) -> bool:
    """Return whether one C++ kernel computes an op that PyTorch computes in parts."""
    match op:
        case ActivatedProjections():
            return op.gated and len(op.matrices) == 2 and stored_alike(op.matrices) and has_operands(op)
        case AddRMSNorm():
            return takes_norm(op)
    return False


def attends(op: Attention) -> bool:
    """Return whether the C++ kernels support the attention of an op.

    The op must cache keys and values in a model dtype of fp32 or bf16, must not rotate adjacent pairs of numbers, must
    not add a position bias, and must not be latent attention.
    """
    kept = op.spec.is_cached and op.spec.dtype in DTYPES and not isinstance(op, LatentAttention)
    return kept and not op.rotates_neighbours and op.bias is None


def reads_latents(op: LatentAttention) -> bool:
    """Return whether the C++ attention kernel reads an op's latents, given queries multiplied by its key matrix."""
    return op.spec.dtype in DTYPES


def in_one_call(op: Experts) -> bool:
    """Return whether one kernel call runs all experts of a layer.

    They must have a gate, and matrices in one storage format that our kernels support. Experts that weight their inputs
    run in PyTorch, and those over the rows of several ranks are only priced.
    """
    return op.gated and op.has_operands and op.gathered_ranks == 1 and not op.weighs_inputs


def _covers_products(op: MatrixOp) -> bool:
    """Return whether the C++ kernels compute an op of weight matrices completely."""
    match op:
        case ActivatedProjections():
            return fuses(op)
        case SharedGate():
            return False  # PyTorch applies the gate
        case ExpertRouter() if op.rule.by_logits:
            return False
        case LMHead() if op.flops_per_logit:
            return False
    return has_operands(op)
