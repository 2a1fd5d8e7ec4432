"""What a step takes beside its ops: the scheduler, the batch, Python between two ops, the sampler.

Measured through the engine. Greedy sampling, no text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ridgeline.backends.timed_backend import TimedBackend
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine_builder import run_requests
from ridgeline.engine.runner import Runner
from ridgeline.insight.calibrate.fit import least_squares
from ridgeline.insight.calibrate.probe import PaceProbe, undisturbed_pace
from ridgeline.insight.calibrate.steps import Stopwatch
from ridgeline.insight.calibrate.timer import Timer, undisturbed
from ridgeline.price.device import Device, HostTime
from ridgeline.price.price import Price
from ridgeline.price.slowdown import Slowdown

# Requests side by side, by the length of their prompts: none comes to a new page in the steps that count.
TRAFFIC = ((16,), (64,), (256,), (18,) * 4, (17,) * 16)
TOKENS = 13
COLD = 6
"""Decode steps after a prompt that find less at hand in the caches than all later ones, and so take longer
(docs/calibrate.md). No price knows of them."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step of one run: the seconds of all of it, and of its ops."""

    work: Work
    whole: float
    ops: float


@dataclass(frozen=True, slots=True)
class StepOverhead:
    """What a step of `ops` ops took beside them, of `whole` seconds in all. nbytes: that the ops moved, as far as a
    cache holds them. recorded: whether the step was recorded, so that nobody asked for its ops.
    """

    work: Work
    ops: int
    nbytes: float
    seconds: float
    whole: float
    recorded: bool = False


def overheads(
    model: Model, timer: Timer, probe: PaceProbe, pace: Slowdown, roofs: Device, budget: float
) -> list[StepOverhead]:
    """Of the steps of all the traffic, again and again for `budget` seconds of the wall, once at least; as if at
    `pace`. roofs: of the machine.

    What is left of a long step is a small difference of two times, each of them noisy: those of undisturbed runs are
    subtracted. Warm-up runs are not counted: the first of each, and the first after a probe, which has had the
    caches to itself. Nor are the first COLD decode steps of a run, the first of which is also recorded, and the last,
    which ends all requests.
    """
    watch, price = Stopwatch(model, timer), Price(model)
    timed: dict[tuple[Sequence[int], int], list[StepTime]] = {}
    for prompts in TRAFFIC:
        list(run_requests(model, prompts, TOKENS, timer.now))
    begin, before = timer.wall(), len(probe.taken)
    while not timed or timer.wall() - begin < budget:
        probe()
        list(run_requests(model, TRAFFIC[0], TOKENS, timer.now))
        for prompts in TRAFFIC:
            since = 0
            for index, step in enumerate(_step_times(model, watch, prompts)[:-1]):
                since = since + 1 if step.work.is_verify else 0
                if not 1 <= since <= COLD:
                    timed.setdefault((prompts, index), []).append(step)
    slower = undisturbed_pace(probe.taken[before:]).over(pace).launch
    return [_overhead(runs, price, roofs, slower) for runs in timed.values()]


def _step_times(model: Model, watch: Stopwatch, prompts: Sequence[int]) -> list[StepTime]:
    """The steps of a run without the watch, which would be in the way between ops: there it takes longer than it does
    when it is all that runs. The seconds of their ops are those of another run.
    """
    whole = list(run_requests(model, prompts, TOKENS, watch.timer.now))
    runner = partial(Runner, backend=TimedBackend(watch))
    inside = list(_ops_seconds(watch, run_requests(model, prompts, TOKENS, watch.timer.now, runner)))
    return [StepTime(work, seconds, ops) for (work, seconds), ops in zip(whole, inside, strict=True)]


def _ops_seconds(watch: Stopwatch, steps: Iterator[tuple[Work, float]]) -> Iterator[float]:
    """The seconds of each step's ops."""
    with watch.on():
        watch.clear()
        for _ in steps:
            yield watch.spent
            watch.clear()


def _overhead(runs: Sequence[StepTime], price: Price, roofs: Device, slower: float) -> StepOverhead:
    """What its ops leave of a step, both undisturbed, as if it ran so many times faster."""
    work = runs[0].work
    nbytes, recorded = min(roofs.cached_bytes, price.step(work).total_bytes), price.recorded(roofs, work)
    whole, inside = (undisturbed(each) / slower for each in ([r.whole for r in runs], [r.ops for r in runs]))
    return StepOverhead(work, len(price.calls), nbytes, max(0.0, whole - inside), whole, recorded)


def fit_host(between: Sequence[StepOverhead]) -> tuple[HostTime, float]:
    """The seven constants, none below 0, that leave the least squares of errors relative to whole steps; and the median
    of those errors without their signs.
    """
    features = np.array(
        [
            [
                *(1, 0 if o.recorded else o.ops, o.work.sequences, o.work.tokens, o.nbytes),
                *(not o.recorded, not o.work.is_verify),
            ]
            for o in between
        ],
        dtype=float,
    )
    whole = np.array([o.whole for o in between])
    scaled, target = features / whole[:, None], np.array([o.seconds for o in between]) / whole
    constants = least_squares(scaled, target)
    errors = np.abs(scaled @ constants - target)
    step, op, sequence, token, byte, asked, prompts = (float(c) for c in constants)
    return HostTime(step, op, sequence, token, byte, asked=asked, prompts=prompts), float(np.median(errors))
