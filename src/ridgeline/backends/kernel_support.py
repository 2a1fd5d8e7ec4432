"""Properties of our kernels that hold on CPUs and GPUs: supported norms and matrices, kernel classes, attention inputs.

Matrix products of one row, of a few rows and of many rows are separate kernel classes. Products with quantised codes
have classes of their own.
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
"""The most rows of a matrix product in the kernel class "few".

Up to this number of rows, our CPU kernels read a matrix as it is stored. From more rows on, by instruction set, they
may repack it first (STREAMED_ROWS of backends/cpu/native/product.h).
"""


def product_class(kind: str, rows: int, stored: WeightFormat | None = None) -> str:
    """Return the kernel class of a matrix product with this number of rows and this weight format."""
    name = f"{kind}.{'one' if rows == 1 else 'few' if rows <= FEW_ROWS else 'many'}"
    return f"{name}.{stored.kind}" if stored and stored.code else name


def own_product(op: MatrixOp, launch: Launch) -> Launch:
    """Return the launch of our kernel that replaces PyTorch's matrix product.

    Our kernel reads the matrix as it is in memory, which can be larger than in the checkpoint, and computes in the
    model's dtype, whatever the number format of the product. The launch counts as one call if all matrices of the op
    have the same storage format.
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
    """Return a kernel launch with the op's suffix added to the name of its kernel class, if it has one."""
    suffix = op.kernel_suffix if isinstance(op, Linear) else ""
    return structs.replace(launch, name=launch.name + suffix) if suffix else launch


def has_operands(op: MatrixOp) -> bool:
    """Return whether our kernels support every matrix of an op."""
    return all(matrix.operands is not None for matrix in op.matrices)


def takes_norm(op: RMSNorm) -> bool:
    """Return whether one kernel computes a norm completely, including the residual addition before it."""
    return op.plain and op.rounds_alike and (not isinstance(op, AddRMSNorm) or op.multiplier == 1)


@dataclass(frozen=True, slots=True)
class AttentionScoring:
    """The parameters of a layer's attention apart from its sizes: pattern, scale, soft cap and sinks."""

    reach: str
    """The kind of a layer's attention pattern: "causal", "window", "chunked" or "cross"."""
    size: int
    """The size of the attention window or chunk, in positions."""
    scale: float
    """The factor on a layer's attention scores."""
    softcap: float | None
    """The bound to which attention scores are squashed (Gemma 2), or None."""
    sinks_H: Tensor | None
    """The attention-sink score of each head, or None."""

    @classmethod
    def of(cls, op: Attention) -> "AttentionScoring":
        """Return the attention parameters of an op (pattern, scale, soft cap and sinks) as our kernels need them."""
        return cls(op.attention_pattern.kind, op.attention_pattern.size, op.scale, op.softcap, op.sinks_H)


@dataclass(frozen=True, slots=True)
class KVCodes:
    """The quantisation parameters of a layer's cached keys and values (`core/ops/kv_quantisation.py`)."""

    kind: str
    """The number format of quantised keys and values: int8 or fp8."""
    k_scales_PKS1: Tensor | None
    """The scales of cached keys, bf16, as a view of all pages; None if there are none."""
    v_scales_PKS1: Tensor | None
    """The scales of cached values, bf16, as a view of all pages; None if there are none."""
    k_scale: float
    """The single fp8 scale of all cached keys of a layer."""
    v_scale: float
    """The single fp8 scale of all cached values of a layer."""

    @classmethod
    def of(cls, op: Attention, pages: LayerPages) -> "KVCodes | None":
        """Return the quantisation parameters of an op's cached keys and values, or None if they are not quantised."""
        return cls(pages.code, pages.k_scales, pages.v_scales, *op.kv_scales) if pages.code else None
