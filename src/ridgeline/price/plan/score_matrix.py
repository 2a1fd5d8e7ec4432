"""The price of attention with its score matrix in memory and without, which shows what a fused kernel saves."""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.core.ops.work import Work
from ridgeline.price.op_time import compute_seconds, memory_seconds
from ridgeline.price.plan.scenario import Scenario

_SHORTEST = 512


@dataclass(frozen=True, slots=True)
class ScoresRow:
    """The attention of all layers in one step on one device, fused and unfused."""

    prompt: int
    """The number of positions that the last row of the step attends to."""
    flops: float
    nbytes: float
    """The bytes of queries, keys, values and attention results."""
    score_bytes: float
    """The additional bytes of an unfused kernel, which writes the attention scores and reads them back."""
    fused: float
    """The seconds of an ideal kernel for fused attention, which does not write the score matrix to memory."""
    unfused: float
    """The seconds of an ideal kernel for unfused attention, which writes and rereads the score matrix."""


def score_rows(case: Scenario) -> list[ScoresRow]:
    """Return the price of attention, fused and unfused, for prompts of 512, 2,048, ... positions up to the context.

    A speech model has one row, for a window. A model without attention has none.
    """
    prompts = (case.longest,) if case.model.encoder_width else _prompts(case.longest)
    works = {prompt: Work.of([case.prompt(prompt)], case.price.reaches) for prompt in prompts}
    rows = [scores_of(case, work, prompt) for prompt, work in works.items()]
    return [row for row in rows if row.flops]


def _prompts(context: int) -> Iterator[int]:
    length = min(_SHORTEST, context)
    while length < context:
        yield length
        length *= 4
    yield context


def scores_of(case: Scenario, work: Work, prompt: int, working_set: float | None = None) -> ScoresRow:
    """Return the bytes and seconds of fused and unfused attention in any step on a device.

    Args:
        case: The scenario.
        work: The step.
        prompt: The prompt length to show.
        working_set: The bytes of weights and KV that the step reads and writes; they determine the memory that holds
            keys and values. None counts those of a single attention op.
    """
    device = case.device
    flops = nbytes = scores = fused = unfused = 0.0
    for priced in case.price.ops:
        if priced.op.score_heads is None:
            continue
        cost, moved = priced.cost(work), priced.op.score_matrix_bytes(work)
        arithmetic = compute_seconds(cost, device)
        memory = memory_seconds(cost, device, working_set or cost.memory_bytes)
        flops += cost.total_flops * priced.count
        nbytes += cost.total_bytes * priced.count
        scores += moved * priced.count
        fused += max(arithmetic, memory) * priced.count
        unfused += max(arithmetic, memory + moved / device.bandwidth_of(moved)) * priced.count
    return ScoresRow(prompt, flops, nbytes, scores, fused, unfused)
