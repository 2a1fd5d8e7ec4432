"""The calls of the C++ library in a step, with their kernel classes, for pricing."""

from functools import cache

from msgspec import structs

from ridgeline.backends.cpu.cpu_coverage import attends, fuses, in_one_call
from ridgeline.backends.cpu.cpu_weight_layout import interleaves
from ridgeline.backends.cpu.library import AMX, library
from ridgeline.backends.kernel_support import has_operands, own_product, product_class, suffixed
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.number_formats import BF16, format_of
from ridgeline.core.ops.op import Launch, Op, kernel_by_head_dim, stored_name
from ridgeline.core.ops.work import RowAxis, Work

INTEGERS = "int8"
"""The number format of products with interleaved quantised weights, to which rows are rounded.

See native/interleaved.h.
"""

WHOLE_TILE = 4
"""The number of rows from which a tile of our matrix products is limited by arithmetic.

Tiles of two or three rows are limited by loads and prefetches and take as long as four rows. They have a kernel class
of their own, named "two".
"""

TILE_ROWS = 16
"""The number of rows of an AMX tile (native/tiles.h)."""

DIAGONAL_ROWS = 4
"""The maximum number of rows that are multiplied by diagonals of tiles, one by one (native/tile_products.h)."""

ROW_KEYS = 48
"""The number of additional keys per query that account for the overhead of the attention kernel.

The kernel computes scores for the keys that a query sees, but weights for whole blocks of 128 (native/attention.h), and
it finds the largest score and the sum of each query. Measured with heads of 8, 32, 64 and 128 numbers in two formats, a
query cost as much as 44 to 63 keys (35 for heads of 8 fp32 numbers).
"""

_BLOCK = 1024  # inputs after which our products add up the lanes of each output's sum (native/product.h, 16 lanes)
_LANE_SUMS = {"bf16": 3 * 64.0, "fp32": 3 * 32.0}
"""The cost of adding up the vector lanes of one output's sum, in FLOPs, by number format.

The FLOPs are those that the three instructions for it could have done (native/lanes.h).
"""


def launches(op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return the kernel calls of an op in a step, as `Backend.launches` defines them."""
    match op:
        case Attention():
            return _attention(op, work, space)
        case MatrixOp():
            return _products(op, work, space)
        case Experts() if in_one_call(op):
            rows = work.rows.get(space, 0)
            return (_experts(op, rows),) if rows else ()
    if fuses(op):
        rows = work.rows.get(space, 0)
        return (op.whole_launch(rows),) if rows else ()
    return op.launches(work, space)


def _attention(op: Attention, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return the launches of an attention layer: one that rotates queries and keys, if needed, and one for all queries.

    The second reads each page once. If our kernels do not support the layer, the launches are those of PyTorch.
    """
    total = work.attention[op.attention_pattern].total
    if not attends(op) or not (total.queries or total.written):
        return op.launches(work, space)
    worked = structs.replace(total, pairs=total.pairs + ROW_KEYS * total.queries)
    name = _paged_class(op.spec.k_dim, op.spec.code)
    attend = Launch(name, op.number_format, 1, op.attend_cost(worked), "attend")
    return (attend,) if op.rope is None else (op.rotate_launch(total), attend)


@cache
def _paged_class(head_dim: int, code: str) -> str:
    """Return the kernel class of attention over pages; quantised pages have separate classes."""
    name = kernel_by_head_dim("attention.paged", head_dim)
    return f"{name}.{code}" if code else name


def _products(op: MatrixOp, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return the kernel calls of matrix products, of the computations fused with them, and of LoRA adapters.

    The fused kernel of a gated MLP does not support adapters. Rows with an adapter use separate kernels, which read the
    matrices once more.
    """
    adapters = tuple(
        structs.replace(launch, name=product_class("linear", launch.rows)) for launch in op.adapter_launches(work)
    )
    rows, fused = work.rows.get(space, 0), fuses(op)
    adapted = op.adapted_rows(work) if fused else 0
    parts = op.launches_of(adapted if fused else rows) if (adapted or not fused) and rows else ()
    if fused:
        parts = tuple(structs.replace(launch, part="forward") for launch in parts)
    at_once = (op.whole_launch(rows - adapted),) if fused and rows > adapted else ()
    return (*(_own(op, launch) for launch in (*at_once, *parts)), *adapters)


def _own(op: MatrixOp, launch: Launch) -> Launch:
    """Return the launch of our CPU kernel that replaces PyTorch's matrix product.

    It computes in integers if the codes are interleaved. For plain matrices it adds up vector lanes, which for many
    rows with few inputs is as much work as the products, or it multiplies whole tiles. A launch without matrices that
    our kernels support is returned unchanged.
    """
    if not launch.matrices or not has_operands(op):
        return launch
    own, first = own_product(op, launch), launch.matrices[0]
    if all(map(interleaves, op.matrices)):
        flops = dict(own.cost.flops)
        products = flops.pop(first.number_format)
        flops[INTEGERS] = flops.get(INTEGERS, 0.0) + products
        cost = structs.replace(own.cost, flops=flops)
        own = structs.replace(own, name=f"{own.name}.interleaved", number_format=INTEGERS, cost=cost)
    elif first.stored is None and own.number_format == BF16.name and multiplies_tiles():
        name = f"{op.kind}.diagonal" if 1 < launch.rows <= DIAGONAL_ROWS else own.name
        products = own.cost.flops[first.number_format]
        unused = Cost({own.number_format: products * (tile_factor(launch.rows) - 1)})
        own = structs.replace(own, name=name, cost=own.cost + unused)
    elif first.stored is None and own.number_format in _LANE_SUMS:
        name = f"{op.kind}.two" if 1 < launch.rows < WHOLE_TILE else own.name
        sums = launch.rows * sum(matrix.outputs for matrix in launch.matrices) * -(-first.inputs // _BLOCK)
        lanes = Cost({own.number_format: sums * _LANE_SUMS[own.number_format]})
        own = structs.replace(own, name=name, cost=own.cost + lanes)
    return suffixed(op, own)


def tile_factor(rows: int) -> float:
    """Return the FLOPs of the tiles that multiply this number of rows, relative to the FLOPs of the rows alone."""
    if rows <= DIAGONAL_ROWS:
        return TILE_ROWS
    return -(-rows // TILE_ROWS) * TILE_ROWS / rows


def multiplies_tiles() -> bool:
    """Return whether this CPU's kernels multiply bf16 matrices by AMX tiles."""
    kernels = library()
    return kernels is not None and kernels.name == AMX


def _experts(op: Experts, rows: int) -> Launch:
    """Return the single call of a layer's experts, whose kernel class depends on the rows per active expert.

    It reads the matrices as they are in memory, which can be larger than in the checkpoint.
    """
    touched, cost, stored = op.touched(rows), op.cost_of(rows), next(iter(op.stored.values()))
    name = product_class(op.kind, round(rows * op.active / touched), stored)
    read = cost.weight_bytes + touched / op.count * op.repacked_bytes
    cost = structs.replace(cost, weight_bytes=read)
    return Launch(name, format_of(op.dtype).name, 1, cost, weight_format=stored_name(stored))
