"""The batch sweep: what one more user costs the others, and what the card gains."""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.ops.experts import Experts
from ridgeline.roofline.plan.case import Case
from ridgeline.roofline.plan.estimate import Estimate
from ridgeline.roofline.plan.phases import Phase, decode_phase
from ridgeline.roofline.plan.serving import Serving

_MOST_UNHELD = 256


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A decode step of `batch` sequences at the workload's running context.

    experts: distinct ones that a layer's tokens are expected to hit, None for a model without. gain: tokens a second
    by the bound, over those of batch 1. fits: whether memory holds such a batch to its end.
    """

    batch: int
    itl: Estimate
    tokens_per_second: Estimate
    gain: float
    intensity: float
    limit: str
    kv_bytes: float
    experts: float | None
    fits: bool


def batch_sweep(serving: Serving) -> list[SweepRow]:
    """Powers of two up to what memory holds, the largest batch that it holds, and the one asked for.

    Where not even one fits, what there would be if it did.
    """
    case, workload = serving.case, serving.workload
    most = serving.memory.users or _MOST_UNHELD
    alone = decode_phase(case, 1, workload.context)
    rows = []
    for batch in sorted({*_powers(most), most, workload.batch}):
        phase = decode_phase(case, batch, workload.context)
        rows.append(_row(serving, batch, phase, alone))
    return rows


def touched_experts(case: Case, tokens: int) -> float | None:
    """Distinct experts of one layer that so many tokens are expected to hit; None for a model without experts."""
    found = next((p.op for p in case.price.ops if isinstance(p.op, Experts)), None)
    return None if found is None else found.touched(tokens)


def _row(serving: Serving, batch: int, phase: Phase, alone: Phase) -> SweepRow:
    memory = serving.memory
    return SweepRow(
        batch,
        phase.seconds,
        phase.seconds.per_second(batch),
        batch * alone.seconds.bound / phase.seconds.bound,
        phase.intensity,
        phase.limit,
        memory.request_bytes * batch,
        touched_experts(serving.case, batch),
        batch <= memory.users,
    )


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 ... 64, then every fourth power: enough to see the curve bend."""
    batch = 1
    while batch <= most:
        yield batch
        batch *= 2 if batch < 64 else 4
