"""Run: a workload through an engine, once, with what each of its steps asked and when it ended.

`filled` is the moment at which every request has its first token. What came until then is prefill, what came after it
decode: of requests that are alike. The work of the steps is told after the run, so that nothing but it is timed.
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
    """A step that ran. tokens: that requests had of it. ended: seconds after the requests began to be handed over."""

    work: Work
    tokens: int
    ended: float


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A workload that ran. prompt_tokens: of all requests. filled: the steps until every request had its first token.
    preemptions: how often a request gave its memory to another and had to be computed again.
    """

    workload: EngineWorkload
    prompt_tokens: int
    steps: tuple[EngineStep, ...]
    filled: int
    preemptions: int


def check_room(engine: Engine, workloads: Sequence[EngineWorkload]) -> None:
    """Refuse requests that the engine would cut short or not take. Raises ValueError."""
    context, held = engine.context, engine.kv_cache_manager.capacity()
    limit = f"the model's context is {context:,}" if context <= held else f"KV memory holds {held:,} (--kv-memory)"
    others = ", ".join(workload.name for workload in workloads if _fits(engine, workload))
    for workload in workloads:
        if not _fits(engine, workload):
            raise ValueError(
                f"workload {workload.name!r} has requests of {workload.longest:,} tokens, prompt and output; {limit}"
                + (f"; those that fit: {others}" if others else "")
            )


def _fits(engine: Engine, workload: EngineWorkload) -> bool:
    return workload.longest <= min(engine.context, engine.kv_cache_manager.capacity())


def warm_up(engine: Engine, workloads: Iterable[EngineWorkload], otherwise: EngineWorkload) -> None:
    """Run the first of the workloads whose requests are alike and fit, else another one, and a step of as many
    positions as one may have, as a server's first requests would. The first steps of a process are slower than those
    after them: the system gives memory page by page, which the process keeps, for as many rows as there were.
    """
    run(engine, next((each for each in workloads if not each.mixed and _fits(engine, each)), otherwise))
    run(engine, _full_step(engine))


def _full_step(engine: Engine) -> EngineWorkload:
    limits = engine.scheduler.limits
    most = min(engine.context, engine.kv_cache_manager.capacity()) - 1
    length = max(1, min(limits.tokens // limits.requests, most))
    return EngineWorkload("a full step", limits.requests, (length, length), (1, 1), mixed=False)


def run(engine: Engine, workload: EngineWorkload, clock: Clock = time.perf_counter) -> EngineRun:
    """Hand all requests over and take steps until they are done. clock: in seconds.

    Raises ValueError for a request that fails, and for what the engine does not take.
    """
    asks = workload.asks(engine.vocabulary)
    asked = [(ask.prompt, workload.params(ask.output)) for ask in asks]
    before = engine.stats.preemptions
    ended: list[tuple[float, int]] = []
    plans = []
    start = clock()
    empty = {engine.add(GenerationRequest(prompt, params)) for prompt, params in asked}
    filled = 0
    while engine.has_work:
        plan = engine.plan()
        assert plan is not None, "requests are under way, and no step runs them"
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
        EngineStep(plan.work(engine.reaches), tokens, seconds)
        for plan, (seconds, tokens) in zip(plans, ended, strict=True)
    )
    assert sum(step.tokens for step in steps) == sum(ask.output for ask in asks), "an answer has another length"
    return EngineRun(workload, sum(len(ask.prompt) for ask in asks), steps, filled, engine.stats.preemptions - before)
