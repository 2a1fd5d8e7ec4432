"""The table of aten operations: the category of each, and its FLOPs.

Matrix products and convolutions have the FLOPs of `torch.utils.flop_counter`. The solution of triangular systems, which
that counter does not know, has those of half a product. For all other operations, a number of the result counts one
FLOP, or as many as our own ops count for the same function.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from ridgeline.core.ops.number_formats import FORMATS

ELEMENTWISE, COPY, REDUCTION, INDEX = "elementwise", "copy", "reduction", "index"
PRODUCT, CONVOLUTION, OTHER = "matrix product", "convolution", "other"
CATEGORIES = (PRODUCT, CONVOLUTION, REDUCTION, ELEMENTWISE, INDEX, COPY, OTHER)
"""The categories of aten operations; a fused kernel has the first of those of its operations."""
FUSED = frozenset({ELEMENTWISE, COPY, REDUCTION})
"""The categories whose operations a kernel can do together, without their intermediate results in memory."""

_SOLVE = "linalg_solve_triangular"
"""The solution of triangular systems, which is a product with each right side; recurrences in chunks have it."""
_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "addbmm", "_scaled_mm", "_grouped_mm", "linear", _SOLVE}
)
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "cudnn_convolution", "convolution_overrideable"})
_COPIES = frozenset(
    [
        "_to_copy",
        "arange",
        "cat",
        "clone",
        "constant_pad_nd",
        "copy",
        "copy_",
        "fill",
        "fill_",
        "flip",
        "full",
        "full_like",
        "lift_fresh_copy",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "repeat",
        "roll",
        "scalar_tensor",
        "stack",
        "tril",
        "triu",
        "zero_",
        "zeros",
        "zeros_like",
    ]
)
_INDEXED = frozenset(
    [
        "_index_put_impl_",
        "embedding",
        "gather",
        "index",
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "index_put",
        "index_put_",
        "index_select",
        "masked_scatter",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "take",
    ]
)
_REDUCED = frozenset(
    [
        "_log_softmax",
        "_safe_softmax",
        "_softmax",
        "cumprod",
        "cumsum",
        "logsumexp",
        "native_group_norm",
        "native_layer_norm",
    ]
)
"""The operations along a dimension that have no tag of a reduction."""
FILLS = frozenset(
    {"fill", "full", "full_like", "ones", "ones_like", "zero", "zeros", "zeros_like"}
    | {"new_full", "new_ones", "new_zeros"}
)
"""The operations that write one number everywhere, and read no more than the size of an input."""
GATHERS = frozenset({"embedding", "gather", "index", "index_select", "take"})
"""The operations that read no more of their first input than they write."""
_FREE = ("empty", "new_empty", "lift_fresh", "resize_", "set_")

_FLOPS: Mapping[str, int] = MappingProxyType(
    {
        "silu": 4, "sigmoid": 4, "gelu": 5, "softplus": 3, "mish": 5, "hardswish": 4, "leaky_relu": 2,
        "_softmax": 4, "_safe_softmax": 4, "_log_softmax": 4, "native_layer_norm": 7, "native_group_norm": 7,
    }
)  # fmt: skip
"""The FLOPs per number of functions that take several, as our own ops count them."""

SDPA = "scaled_dot_product_attention"
"""The name of the attention function, which is one kernel and never decomposed."""


def category_of(func: Any) -> str:
    """Return the category of an aten operation."""
    name = func.overloadpacket.__name__
    if name in _PRODUCTS or SDPA in name or "_attention_forward" in name:
        return PRODUCT
    if name in _CONVOLUTIONS:
        return CONVOLUTION
    if name in _COPIES:
        return COPY
    if name in _INDEXED:
        return INDEX
    if name in _REDUCED or torch.Tag.reduction in func.tags:
        return REDUCTION
    return ELEMENTWISE if torch.Tag.pointwise in func.tags else OTHER


def is_free(func: Any) -> bool:
    """Return whether an aten operation moves no data, because it only allocates memory or describes it anew."""
    return func.is_view or func.overloadpacket.__name__.startswith(_FREE)


def is_whole(func: Any) -> bool:
    """Return whether an operation is counted as one, although torch could decompose it into others."""
    return func.overloadpacket in flop_registry or func.overloadpacket.__name__ in (SDPA, "_grouped_mm")


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> dict[str, float]:
    """Return the FLOPs of an aten operation by number format: products in that of their inputs, all others in fp32."""
    packet, category = func.overloadpacket, category_of(func)
    if category in (PRODUCT, CONVOLUTION):
        first = next(each for each in args if isinstance(each, Tensor))
        return {_format_name(first.dtype): _product_flops(packet, args, kwargs, out)}
    result = out if isinstance(out, Tensor) else next((each for each in out if isinstance(each, Tensor)), None)
    if category in (COPY, INDEX) or result is None or not result.is_floating_point():
        return {}
    inputs = [each.numel() for each in args if isinstance(each, Tensor)]
    numbers = max([result.numel(), *inputs]) if category == REDUCTION else result.numel()
    return {"fp32": float(_FLOPS.get(packet.__name__.removesuffix("_"), 1) * numbers)}


def _product_flops(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> float:
    name = packet.__name__
    if name == "_grouped_mm":  # each row meets one matrix
        return 2.0 * args[0].shape[-2] * args[0].shape[-1] * args[1].shape[-1] * _groups(args)
    if SDPA in name:
        queries, keys, values = args[:3]
        return 2.0 * queries.shape[:-1].numel() * keys.shape[-2] * (queries.shape[-1] + values.shape[-1])
    if name == _SOLVE:  # half of the matrix is zeros
        return float(args[0].numel() * args[1].shape[-1])
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    return 2.0 * args[0].numel() * (args[1].shape[-1] if args[1].dim() > 1 else 1)


def _groups(args: Sequence[Any]) -> int:
    """Return how often a grouped product does the work of its first input and one matrix of its second."""
    return args[0].shape[0] if args[0].dim() == 3 else 1


def _format_name(dtype: torch.dtype) -> str:
    """Return the name of a number format, fp32 for dtypes that no op of ours computes in."""
    known = {each.long: each.name for each in FORMATS}
    return known.get(str(dtype).removeprefix("torch."), "fp32")
