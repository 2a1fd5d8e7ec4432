"""The host time of a step outside its ops: the scheduler, the batch, Python between ops, and the sampler.

It is measured through the engine, with greedy sampling and without text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

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
from ridgeline.price.host_parts import HostParts
from ridgeline.price.price import Price
from ridgeline.price.slowdown import Slowdown

# Prompt lengths of concurrent requests. No request needs a new page in the steps that count.
TRAFFIC = ((16,), (64,), (256,), (18,) * 4, (17,) * 16)
TOKENS = 13
COLD = 6
"""The number of decode steps after a prompt that take longer because caches are cold (docs/calibrate.md).

The price does not model them.
"""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a whole step and of its ops in one run."""

    work: Work
    whole: float
    ops: float


class WorkTime(Protocol):
    """The measured times of a step, with the work that it did."""

    @property
    def work(self) -> Work:
        """The work of the step."""


Timed = TypeVar("Timed", bound=WorkTime)


@dataclass(frozen=True, slots=True)
class StepOverhead:
    """The measured time of an engine step outside its ops, with what it depends on."""

    work: Work
    ops: int
    """The number of ops in the step."""
    nbytes: float
    """The bytes that the ops moved, up to the size of the caches."""
    seconds: float
    """The seconds of the step outside its ops."""
    whole: float
    """The seconds of the whole step."""
    recorded: bool = False
    """Whether the engine replayed the step's kernel calls, so that no Python code launched its ops."""
    vocabulary: int = 0
    """The number of logits of a row."""


def overheads(
    model: Model, timer: Timer, probe: PaceProbe, pace: Slowdown, roofs: Device, budget: float
) -> list[StepOverhead]:
    """Measure the time outside ops in the steps of several loads, repeatedly, converted to one pace.

    The overhead of a long step is a small difference of two noisy times, so the times of undisturbed runs are
    subtracted. Warm-up runs are not counted: the first of each load, and the first after a probe, which evicts the
    caches. Nor are the first `COLD` decode steps of a run, the first of which is also recorded, and the last, which
    ends all requests.

    Args:
        model: The model.
        timer: The timer of the CPU.
        probe: Measures the pace of the machine.
        pace: The pace to convert to.
        roofs: The roofs of the machine.
        budget: Seconds of wall time; every load runs at least once.
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
            for index, step in warm(_step_times(model, watch, prompts)):
                timed.setdefault((prompts, index), []).append(step)
    slower = undisturbed_pace(probe.taken[before:]).over(pace).launch
    return [_overhead(runs, price, roofs, slower) for runs in timed.values()]


def warm(steps: Sequence[Timed]) -> Iterator[tuple[int, Timed]]:
    """Yield the steps of a run that count, each with its index: neither cold decode steps nor the last step."""
    since = 0
    for index, step in enumerate(steps[:-1]):
        since = since + 1 if step.work.is_verify else 0
        if not 1 <= since <= COLD:
            yield index, step


def _step_times(model: Model, watch: Stopwatch, prompts: Sequence[int]) -> list[StepTime]:
    """Return the steps of a run without op timing, which would lengthen the time between ops.

    The seconds of their ops come from another run.
    """
    whole = list(run_requests(model, prompts, TOKENS, watch.timer.now))
    runner = partial(Runner, backend=TimedBackend(watch))
    inside = list(_ops_seconds(watch, run_requests(model, prompts, TOKENS, watch.timer.now, runner)))
    return [StepTime(work, seconds, ops) for (work, seconds), ops in zip(whole, inside, strict=True)]


def _ops_seconds(watch: Stopwatch, steps: Iterator[tuple[Work, float]]) -> Iterator[float]:
    """Yield the total seconds of the ops of each step, as the stopwatch measures them."""
    with watch.on():
        watch.clear()
        for _ in steps:
            yield watch.spent
            watch.clear()


def _overhead(runs: Sequence[StepTime], price: Price, roofs: Device, slower: float) -> StepOverhead:
    """Return the time of a step outside its ops, undisturbed and divided by the slowdown `slower`."""
    work = runs[0].work
    nbytes, recorded = min(roofs.cached_bytes, price.step(work).total_bytes), price.recorded(roofs, work)
    whole, inside = (undisturbed(each) / slower for each in ([r.whole for r in runs], [r.ops for r in runs]))
    seconds = max(0.0, whole - inside)
    return StepOverhead(work, len(price.calls), nbytes, seconds, whole, recorded, price.vocabulary)


def fit_host(between: Sequence[StepOverhead], parts: HostParts | None = None) -> tuple[HostTime, float]:
    """Fit the seven non-negative constants of the host time, with least squares of errors relative to whole steps.

    Args:
        between: The measured time of steps outside their ops.
        parts: The constants of the parts that were measured one by one; the seven are then fitted to what remains.

    Returns:
        The host time, and the median absolute error.
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
    seconds = np.array([o.seconds for o in between])
    if parts is not None:
        seconds -= [parts.seconds(o.work, o.work.prompts, o.vocabulary, recorded=o.recorded) for o in between]
    scaled, target = features / whole[:, None], seconds / whole
    constants = least_squares(scaled, target)
    errors = np.abs(scaled @ constants - target)
    step, op, sequence, token, byte, asked, prompts = (float(c) for c in constants)
    host = HostTime(step, op, sequence, token, byte, asked=asked, prompts=prompts, parts=parts)
    return host, float(np.median(errors))
