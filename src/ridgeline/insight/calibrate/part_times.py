"""The times of the scheduler and of building the batch, measured in the steps of an engine, and their constants."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine_builder import engine_with_requests
from ridgeline.engine.runner import Runner
from ridgeline.insight.calibrate.fit import least_squares
from ridgeline.insight.calibrate.overhead import TOKENS, TRAFFIC, warm
from ridgeline.insight.calibrate.probe import PaceProbe, undisturbed_pace
from ridgeline.insight.calibrate.timer import Timer, undisturbed
from ridgeline.price.host_parts import PartTime
from ridgeline.price.slowdown import Slowdown


@dataclass(frozen=True, slots=True)
class StepParts:
    """The seconds of the parts of a step that belong to no op, apart from sampling."""

    work: Work
    recorded: bool
    """Whether the step was replayed from a recording."""
    schedule: float
    """The seconds of planning the step and of accepting its tokens."""
    batch: float
    """The seconds from the plan to the tensors of the step."""
    whole: float
    """The seconds of the whole step."""


def part_times(model: Model, timer: Timer, probe: PaceProbe, pace: Slowdown, budget: float) -> list[StepParts]:
    """Measure the scheduler and the batch in the steps of several loads, repeatedly, converted to one pace.

    The steps that count are those of `overheads`.

    Args:
        model: The model.
        timer: The timer of the CPU.
        probe: Measures the pace of the machine.
        pace: The pace to convert to.
        budget: Seconds of wall time; every load runs at least once.
    """
    timed: dict[tuple[Sequence[int], int], list[StepParts]] = {}
    begin, before = timer.wall(), len(probe.taken)
    while not timed or timer.wall() - begin < budget:
        probe()
        list(run_in_parts(model, TRAFFIC[0], timer.now))
        for prompts in TRAFFIC:
            for index, step in warm(list(run_in_parts(model, prompts, timer.now))):
                timed.setdefault((prompts, index), []).append(step)
    slower = undisturbed_pace(probe.taken[before:]).over(pace).launch
    return [_typical(runs, slower) for runs in timed.values()]


@torch.inference_mode()
def run_in_parts(model: Model, prompts: Sequence[int], now: Callable[[], float]) -> Iterator[StepParts]:
    """Run requests in one batch as the engine does, and yield the times of each step's parts."""
    engine = engine_with_requests(model, prompts, TOKENS)
    runner = engine.executor
    assert isinstance(runner, Runner)
    while engine.has_work:
        begin = now()
        plan = engine.plan()
        assert plan is not None, "an engine that has work plans a step"
        planned = now()
        graph = runner.graph(plan)
        batch = None if graph is not None else runner.prepare(plan)
        built = now()
        if graph is not None:
            logits_RV = graph.replay()
        else:
            assert batch is not None
            logits_RV = runner.run(batch)
        outcomes = runner.sampler.sample(logits_RV, engine.rows(plan))
        sampled = now()
        engine.accept(plan, outcomes)
        end = now()
        work = plan.work(model.attention_patterns)
        yield StepParts(work, graph is not None, planned - begin + end - sampled, built - planned, end - begin)


def _typical(runs: Sequence[StepParts], slower: float) -> StepParts:
    """Return the undisturbed times of a step that ran repeatedly, divided by the slowdown `slower`."""
    schedule, batch, whole = (
        undisturbed(each) / slower for each in zip(*((r.schedule, r.batch, r.whole) for r in runs), strict=True)
    )
    return StepParts(runs[0].work, runs[0].recorded, schedule, batch, whole)


def fit_parts(steps: Sequence[StepParts]) -> tuple[PartTime, PartTime]:
    """Fit the non-negative constants of the scheduler and of the batch, by errors relative to whole steps."""
    counts = np.array(
        [[1, s.work.sequences, s.work.tokens, not s.recorded, not s.work.is_verify, s.work.prompts] for s in steps],
        dtype=float,
    )
    whole = np.array([s.whole for s in steps])
    scaled = counts / whole[:, None]
    in_batch = least_squares(scaled, np.array([s.batch for s in steps]) / whole)
    scaled[:, 3] = 0.0  # the scheduler does not know whether a step is replayed
    scheduling = least_squares(scaled, np.array([s.schedule for s in steps]) / whole)
    return PartTime(*map(float, scheduling)), PartTime(*map(float, in_batch))
