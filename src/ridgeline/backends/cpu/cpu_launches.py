"""The calls of the C++ library in a step, with their kernel classes, as a price needs them."""

from functools import cache

from msgspec import structs

from ridgeline.backends.cpu.cpu_coverage import attends, fuses, in_one_call
from ridgeline.backends.cpu.cpu_weight_layout import interleaves
from ridgeline.backends.kernel_support import has_operands, own_product, product_class, suffixed
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, Op, by_head, stored_name
from ridgeline.core.ops.work import RowAxis, Work

INTEGERS = "int8"
"""The format of products with codes that are interleaved: rows are rounded to it (native/interleaved.h)."""

WHOLE_TILE = 4
"""Rows from which a tile of our products is bound by its arithmetic. One of two or three rows is bound by what it loads
and fetches ahead, and takes as long as one of four: these have a kernel class of their own, named after the two."""

ROW_KEYS = 48
"""Keys more than a query sees that the kernel of attention has work with: scores are made for those that it sees,
weights for whole blocks of 128 (native/attention.h), and each query has its largest score and its sum to find. Timed in
heads of 8, 32, 64 and 128 numbers of two formats, a query cost as much as 44 to 63 keys, of 8 fp32 ones 35."""

_BLOCK = 1024  # inputs after which our products add up the lanes of each output's sum (native/product.h, 16 lanes)
_LANE_SUMS = {"bf16": 3 * 64.0, "fp32": 3 * 32.0}
"""FLOPs that the instructions which add up the lanes of a sum could have done: three an output (native/lanes.h)."""


def launches(op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return the kernel calls of an op in a step, as `Backend.launches`."""
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
    """Return one call that rotates, and one for all queries, which reads each page once."""
    total = work.attention[op.reach].total
    if not attends(op) or not (total.queries or total.written):
        return op.launches(work, space)
    worked = structs.replace(total, pairs=total.pairs + ROW_KEYS * total.queries)
    name = _paged_class(op.spec.k_dim, op.spec.code)
    attend = Launch(name, op.number_format, 1, op.attend_cost(worked), "attend")
    return (attend,) if op.rope is None else (op.rotate_launch(total), attend)


@cache
def _paged_class(head_dim: int, code: str) -> str:
    """Return the kernel class of attention over pages; codes are widened on the way."""
    name = by_head("attention.paged", head_dim)
    return f"{name}.{code}" if code else name


def _products(op: MatrixOp, work: Work, space: RowAxis) -> tuple[Launch, ...]:
    """Return the calls of products, of what is fused with them, and of adapters.

    The kernel that does all of a gated MLP's first half knows no adapters: rows that have one go through those that do
    it in parts, which read the matrices once more.
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
    """Return the library's call in the place of PyTorch's.

    Where codes are interleaved it computes in integers. Otherwise it adds up lanes, which for many rows of few inputs
    is as much work as their products.
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
    elif first.stored is None and own.number_format in _LANE_SUMS:
        name = f"{op.kind}.two" if 1 < launch.rows < WHOLE_TILE else own.name
        sums = launch.rows * sum(matrix.outputs for matrix in launch.matrices) * -(-first.inputs // _BLOCK)
        lanes = Cost({own.number_format: sums * _LANE_SUMS[own.number_format]})
        own = structs.replace(own, name=name, cost=own.cost + lanes)
    return suffixed(op, own)


def _experts(op: Experts, rows: int) -> Launch:
    """Return the one call of a layer's experts, whose class is by the rows of an expert that is hit. It reads what is
    held in memory, which may be more than a checkpoint stores.
    """
    touched, cost, stored = op.touched(rows), op.cost_of(rows), next(iter(op.stored.values()))
    name = product_class(op.kind, round(rows * op.active / touched), stored)
    read = cost.weight_bytes + touched / op.count * op.repacked_bytes
    cost = structs.replace(cost, weight_bytes=read)
    return Launch(name, format_of(op.dtype).name, 1, cost, stored=stored_name(stored))
