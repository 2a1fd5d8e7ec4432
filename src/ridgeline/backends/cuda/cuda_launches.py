"""The launches of the Triton kernels in a step, with their kernel classes, for pricing."""

from functools import cache

from msgspec import structs

from ridgeline.backends.cuda.cuda_coverage import keeps
from ridgeline.backends.kernel_support import has_operands, own_product, suffixed, takes_norm
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.norm import AddRMSNorm
from ridgeline.core.ops.op import Launch, Op, kernel_by_head_dim
from ridgeline.core.ops.work import RowAxis, Work


def launches(op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return the kernel launches of an op in a step, as `Backend.launches` defines them."""
    match op:
        case Attention() if keeps(op):
            return _attention(op, work, space)
        case MatrixOp() if has_operands(op):
            return tuple(
                suffixed(op, own_product(op, launch)) if launch.matrices else launch
                for launch in op.launches(work, space)
            )
        case AddRMSNorm() if takes_norm(op):
            rows = work.rows.get(space, 0)
            return (op.whole_launch(rows),) if rows else ()
    return op.launches(work, space)


def _attention(op: Attention, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return an attention layer's launches: rotation and storage, single-query sequences, and the other sequences."""
    total = work.attention[op.attention_pattern].total
    attends = [structs.replace(own, calls=1) for own in op.launches(work, space) if own.method == "attend"]
    if not total.written:
        return tuple(attends)
    values = Cost(activation_bytes=total.written * op.spec.heads * op.spec.v_dim * op.spec.dtype.itemsize)
    cost = op.rotate_cost(total, 2) + values
    return (Launch(_keep_class(op.spec.k_dim), op.number_format, 1, cost, "keep"), *attends)


@cache
def _keep_class(head_dim: int) -> str:
    """Return the kernel class of the kernel that rotates queries and keys and stores keys and values."""
    return kernel_by_head_dim("elementwise.keep", head_dim)
