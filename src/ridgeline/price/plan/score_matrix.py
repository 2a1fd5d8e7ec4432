"""Attention with its score matrix in memory and without: what a fused kernel is for, by length of the prompt."""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.core.ops.work import Work
from ridgeline.price.op_time import compute_seconds, memory_seconds
from ridgeline.price.plan.scenario import Scenario

_SHORTEST = 512


@dataclass(frozen=True, slots=True)
class ScoresRow:
    """Attention of all layers in a step, on one card.

    prompt: positions that the last row sees. flops; nbytes: of queries, keys, values and results; score_bytes: what a
    kernel moves beside them that writes the scores of queries and keys and reads them again. fused, unfused: the bounds
    in seconds without and with those.
    """

    prompt: int
    flops: float
    nbytes: float
    score_bytes: float
    fused: float
    unfused: float


def score_rows(case: Scenario) -> list[ScoresRow]:
    """One row for each prompt of 512, 2,048, ... positions up to what the model takes; of speech for a window; none for
    a model without attention.
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
    """The row of any step. working_set: bytes of weights and KV that the step goes over, as keys and values are read
    from what holds all of them; None for those of one layer alone.
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
