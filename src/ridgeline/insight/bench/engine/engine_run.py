"""A run of a workload on an engine, with the work and the end time of each step.

Steps until every request has its first token (`filled`) count as prefill, later steps as decode, if all requests are
alike. The work of the steps is computed after the run, so that it is not timed.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ridgeline.core.ops.work import Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.insight.bench.engine.workload import EngineWorkload

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A step that the engine ran, with its work, the tokens it generated and its end time."""

    work: Work
    tokens: int
    """The number of tokens that the step generated."""
    ended: float
    """The end of the step, in seconds after the start of the run, at which the requests are added."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A completed run of a workload."""

    workload: EngineWorkload
    prompt_tokens: int
    """The number of prompt tokens of all requests."""
    steps: tuple[EngineStep, ...]
    filled: int
    """The number of steps up to the one in which the last request got its first token."""
    preemptions: int
    """The number of times the engine preempted a request, which was then recomputed."""


def check_capacity(engine: Engine, workloads: Sequence[EngineWorkload]) -> None:
    """Check that no request exceeds the context or the KV memory.

    Raises:
        ValueError: If one does.
    """
    context, held = engine.traits.context, engine.kv_cache_manager.capacity()
    limit = (
        f"the model's context is {context:,}" if context <= held else (f"KV memory has room for {held:,} (--kv-memory)")
    )
    others = ", ".join(workload.name for workload in workloads if _fits(engine, workload))
    for workload in workloads:
        if not _fits(engine, workload):
            raise ValueError(
                f"workload {workload.name!r} has requests of {workload.longest:,} tokens, prompt and output; {limit}"
                + (f"; workloads that fit: {others}" if others else "")
            )


def _fits(engine: Engine, workload: EngineWorkload) -> bool:
    return workload.longest <= min(engine.traits.context, engine.kv_cache_manager.capacity())


def warm_up(engine: Engine, workloads: Iterable[EngineWorkload], otherwise: EngineWorkload) -> None:
    """Warm up the engine with one workload and one step with a full token budget.

    It runs the first workload that fits and whose requests are alike, or else `otherwise`. The first steps of a process
    are slower, because the system allocates memory page by page; the process keeps it for steps of up to as many rows.
    """
    run(engine, next((each for each in workloads if not each.mixed and _fits(engine, each)), otherwise))
    run(engine, _full_step(engine))


def _full_step(engine: Engine) -> EngineWorkload:
    limits = engine.scheduler.limits
    most = min(engine.traits.context, engine.kv_cache_manager.capacity()) - 1
    length = max(1, min(limits.tokens // limits.requests, most))
    return EngineWorkload("a full step", limits.requests, (length, length), (1, 1), mixed=False)


def run(engine: Engine, workload: EngineWorkload, clock: Clock = time.perf_counter) -> EngineRun:
    """Add all requests of a workload and run steps until they are done.

    Args:
        engine: The engine.
        workload: The workload.
        clock: Returns the time in seconds.

    Raises:
        ValueError: If a request fails, the engine rejects it, or the vocabulary is too small for random prompts.
    """
    asks = workload.asks(engine.traits.vocabulary)
    prompts = [(ask.prompt, workload.params(ask.output)) for ask in asks]
    before = engine.stats.preemptions
    ended: list[tuple[float, int]] = []
    plans = []
    start = clock()
    empty = {engine.add(GenerationRequest(prompt, params)) for prompt, params in prompts}
    filled = 0
    while engine.has_work:
        plan = engine.plan()
        assert plan is not None, "the engine has requests but runs no step"
        tokens = 0
        for event in engine.accept(plan, engine.execute(plan)):
            if event.error is not None:
                raise ValueError(f"workload {workload.name!r}: a request failed: {event.error}")
            if event.token is not None:
                tokens += 1
                empty.discard(event.request)
        ended.append((clock() - start, tokens))
        plans.append(plan)
        if not empty and not filled:
            filled = len(plans)
    steps = tuple(
        EngineStep(plan.work(engine.attention_patterns), tokens, seconds)
        for plan, (seconds, tokens) in zip(plans, ended, strict=True)
    )
    assert sum(step.tokens for step in steps) == sum(ask.output for ask in asks), (
        "a response has another length than requested"
    )
    return EngineRun(workload, sum(len(ask.prompt) for ask in asks), steps, filled, engine.stats.preemptions - before)
