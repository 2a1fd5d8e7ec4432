"""Facts about our kernels that hold on processors and GPUs alike: the norms and matrices that they take, the kernel
classes of products, and how attention over pages scores and reads what is kept.

Products of one row are a class, those of a few rows another, those of many a third. Codes have classes of their own.
"""

from dataclasses import dataclass

from msgspec import structs
from torch import Tensor

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.linear import Linear, MatrixOp
from ridgeline.core.ops.matrix import stored_alike
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.number_formats import WeightFormat, format_of
from ridgeline.core.ops.op import Launch

FEW_ROWS = 8
"""The most rows for which our products read a matrix as it is stored; for more they lay it out first (STREAMED_ROWS of
backends/cpu/native/product.h)."""


def product_class(kind: str, rows: int, stored: WeightFormat | None = None) -> str:
    """Return the kernel class of products of so many rows with matrices of a format."""
    name = f"{kind}.{'one' if rows == 1 else 'few' if rows <= FEW_ROWS else 'many'}"
    return f"{name}.{stored.kind}" if stored and stored.code else name


def own_product(op: MatrixOp, launch: Launch) -> Launch:
    """Return the call of our kernel in the place of PyTorch's product.

    Ours reads what is held in memory, which may be more than a checkpoint stores, and computes in the model's dtype,
    whatever the format of the product is. It multiplies rows with all matrices of an op at once, if they are stored
    alike.
    """
    first = launch.matrices[0]
    read = launch.cost.weight_bytes + sum(matrix.repacked_bytes for matrix in launch.matrices)
    return structs.replace(
        launch,
        name=product_class(op.kind, launch.rows, first.stored),
        number_format=format_of(first.spec.dtype).name,
        cost=structs.replace(launch.cost, weight_bytes=read),
        calls=1 if stored_alike(op.matrices) else launch.calls,
    )


def suffixed(op: MatrixOp, launch: Launch) -> Launch:
    """Return the call with the suffix of the op's kernel classes, if it has one."""
    suffix = op.kernel_suffix if isinstance(op, Linear) else ""
    return structs.replace(launch, name=launch.name + suffix) if suffix else launch


def has_operands(op: MatrixOp) -> bool:
    """Return whether our kernels take each matrix of an op."""
    return all(matrix.operands is not None for matrix in op.matrices)


def takes_norm(op: RMSNorm) -> bool:
    """Return whether one kernel does all of a norm, and of the addition before it."""
    return op.plain and op.rounds_alike and (not isinstance(op, AddRMSNorm) or op.multiplier == 1)


@dataclass(frozen=True, slots=True)
class AttentionScoring:
    """What a layer's attention is beside its sizes. reach, size: as of Reach. softcap, sinks_H: as of Attention."""

    reach: str
    size: int
    scale: float
    softcap: float | None
    sinks_H: Tensor | None

    @classmethod
    def of(cls, op: Attention) -> "AttentionScoring":
        """Return the scoring of an op."""
        return cls(op.reach.kind, op.reach.size, op.scale, op.softcap, op.sinks_H)


@dataclass(frozen=True, slots=True)
class KVCodes:
    """What the codes of a layer's keys and values stand for (`core/ops/kv_quantisation.py`). kind: int8 or fp8.
    k_scales_PKS1, v_scales_PKS1: views of all pages, bf16, None where there are none. k_scale, v_scale: of the
    layer.
    """

    kind: str
    k_scales_PKS1: Tensor | None
    v_scales_PKS1: Tensor | None
    k_scale: float
    v_scale: float

    @classmethod
    def of(cls, op: Attention, pages: LayerPages) -> "KVCodes | None":
        """Return the codes of an op's pages, or None if these hold plain numbers."""
        return cls(pages.code, pages.k_scales, pages.v_scales, *op.kv_scales) if pages.code else None
