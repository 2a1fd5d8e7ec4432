"""Published kernel times beside the price of the one op that each of them is."""

import statistics
from dataclasses import dataclass

import torch

from accuracy_replay import facts
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.experts import Experts, ExpertSizes
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import CAUSAL, TOKENS, StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.op_time import communication_seconds, floor_seconds, op_seconds


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel time as published, and as priced; microseconds."""

    id: str
    op: str
    shape: str
    tokens: str
    context: str
    card: str
    measured: float
    expected: float
    floor: float

    @property
    def error(self) -> float:
        """Expected over measured, less one."""
        return self.expected / self.measured - 1

    def line(self) -> list[str]:
        """The cells of its line in the report."""
        cells = [self.id, self.op, self.shape, self.tokens, self.context, self.card]
        return [*cells, *(f"{us:.4g}" for us in (self.measured, self.expected, self.floor)), f"{self.error:+.1%}"]


def rows() -> list[KernelRow]:
    """Every kernel on file, priced."""
    return [_row(line) for line in facts("kernels.csv")]


def summary(found: list[KernelRow]) -> str:
    """Median absolute error by sort of kernel."""
    kinds = dict.fromkeys(row.op for row in found)
    parts = []
    for kind in kinds:
        errors = [abs(row.error) for row in found if row.op == kind]
        parts.append(f"{kind} {statistics.median(errors):.1%} over {len(errors)}")
    return f"Median absolute error: {', '.join(parts)}."


def _row(line: dict[str, str]) -> KernelRow:
    device, devices = load_device(line["card"]), int(line["devices"])
    if line["op"] == "all-reduce":
        cost = Cost(communication={"all_reduce": float(line["shape"])})
        floor, expected = communication_seconds(cost, device, devices)
    else:
        op, work = _op(line)
        cost = op.cost(work)
        # A kernel that is timed over and over reads operands that no cache can keep.
        working_set = max(cost.memory_bytes, 1e9)
        expected = op_seconds(cost, op.launches(work), device, working_set).expected
        floor = floor_seconds(cost, device, cost.memory_bytes)
    return KernelRow(
        line["id"], line["op"], line["shape"], line["tokens"], line["context"], line["card"],
        float(line["us"]), expected * 1e6, floor * 1e6,
    )  # fmt: skip


def _op(line: dict[str, str]) -> tuple[Op, Work]:
    shape, tokens = [int(n) for n in line["shape"].split()], int(line["tokens"])
    with torch.device("meta"):
        match line["op"]:
            case "gemm":
                return Linear(MatrixSpec(shape[2], shape[1], torch.bfloat16)), Work({TOKENS: tokens}, tokens)
            case "experts":
                count, active, hidden, width = shape
                names = ("gate_proj", "up_proj", "down_proj")
                bf16 = torch.bfloat16
                op = Experts(ExpertSizes(count, active, width), hidden, "silu", bf16, names=names)
                return op, Work({TOKENS: tokens}, tokens)
            case "decode attention" | "prefill attention":
                heads, kv_heads, dim = shape
                attention = Attention(0, heads, KVSpec(kv_heads, dim, dim, CAUSAL, torch.bfloat16))
                context = int(line["context"])
                decode = Work.decode([context] * tokens)
                return attention, decode if line["op"].startswith("decode") else Work.of(
                    [StepSegment(context, context)]
                )
    raise ValueError(f"{line['id']}: no op is defined for {line['op']!r}")
