"""The engine that runs image and video pipelines; requests take turns between work units.

It runs in a thread of the server's own process (model_loop.py), unlike the engine of a language model that is served
alone: a denoising step is one long call outside of Python, so it does not compete with the event loop, and pixels need
not cross a process boundary.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from torch import Tensor

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.work_units import StageName, WorkUnit, count_by_stage, count_work_units, run_work_units
from ridgeline.price.device import Device
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.server.fair_queue import FairQueue
from ridgeline.server.images.work_unit_prices import WorkUnitPrices
from ridgeline.server.model_loop import ModelLoop

PATIENCE = 10
"""The factor over the predicted time after which a running work unit counts as late."""

logger = logging.getLogger(__name__)

Encode = Callable[[Tensor, int], bytes | None]
"""A function that encodes the pixels [channels, rows, columns] of an image, given its index in the request.

It gets each part [channels, frames, rows, columns] of a video instead, and returns None because the file is written
elsewhere.
"""


@dataclass(frozen=True, slots=True)
class DiffusionSubmission:
    """An image or video request as submitted to the diffusion engine."""

    model: str
    """The name of the pipeline."""
    plan: DiffusionPlan
    encode: Encode
    """The function that encodes finished pixels as a file."""
    previews: frozenset[int] = frozenset()
    """The denoising steps, counted from 1, after which the predicted image is decoded as a preview."""


@dataclass(frozen=True, slots=True)
class WorkUnitReport:
    """The report of a finished work unit (encoding, denoising step or decoding) of an image or video request."""

    stage: StageName
    number: int
    """The number of the work unit within its request, counted from 1."""
    of: int
    """The total number of work units of the request."""
    started: int
    """The time at which the work unit started, in nanoseconds of `time.perf_counter_ns`."""
    finished: int
    """The time at which the work unit finished, in nanoseconds of `time.perf_counter_ns`."""
    predicted: float
    """The predicted seconds of the work unit."""
    left: float
    """The predicted seconds of the request's remaining work units."""
    interval: ErrorInterval
    """The interval in which 8 of 10 measured times of such work units lie."""
    preview: bytes | None = None
    """The file of a preview image, if the work unit made one."""
    image: int | None = None
    """The index of the image or video that the work unit completed, or None."""
    file: bytes | None = None
    """The file of the completed image; a video's file is written elsewhere."""
    skipped: int = 0
    """The number of denoiser passes of the work unit that a step cache shortened."""

    @property
    def seconds(self) -> float:
        """The measured seconds of the work unit."""
        return (self.finished - self.started) * 1e-9


Take = Callable[[WorkUnitReport | Exception], None]
"""A function that takes each work unit's report of a request, or the exception that ended it; it must not raise."""


@dataclass(eq=False, slots=True)
class _ActiveDiffusion:
    """A request in progress in the diffusion engine."""

    order: DiffusionSubmission
    take: Take
    loop: asyncio.AbstractEventLoop
    seconds: dict[StageName, float] = field(default_factory=dict)
    """The predicted seconds of one work unit, by stage."""
    tiling: Tiling | None = None
    units_left: dict[StageName, int] = field(default_factory=dict)
    """The number of the request's remaining work units, by stage."""
    run: Iterator[WorkUnit] | None = None
    """The iterator that runs the request's work units."""
    number: int = 0
    """The number of the request's work units that have run."""
    left: bool = False
    """Whether the caller of the request no longer waits for it."""
    begun: Callable[[], None] | None = None
    """The callback, on the event loop, just before the request's first work unit runs."""


class DiffusionEngine:
    """An engine that runs image and video pipelines, selected by name, for many concurrent requests.

    Use it with `async with`, or call `close`.
    """

    def __init__(self, pipelines: Mapping[str, Pipeline], device: Device, room: float, loop: ModelLoop) -> None:
        """Create an engine whose work units run in a loop's thread.

        Args:
            pipelines: The pipelines by name.
            device: The device that predicts the time of work units.
            room: The bytes available for activations.
            loop: The loop that runs the work units.
        """
        self.pipelines, self.device, self.loop = dict(pipelines), device, loop
        self.alive = True
        """Whether the diffusion engine accepts requests."""
        self.ended: Future[str] = Future()
        """A future that completes with the reason when the thread has ended."""
        self.messages_received = 0
        """The number of reports to callers, which grows with each work unit."""
        self._prices = {name: WorkUnitPrices(pipeline, device, room) for name, pipeline in pipelines.items()}
        self._turns: FairQueue[_ActiveDiffusion] = FairQueue()
        self._runs: set[_ActiveDiffusion] = set()  # with a waiting caller; used on the event loop only
        self._expected_by = 0.0  # seconds of time.monotonic
        loop.join(self)

    @property
    def intervals(self) -> dict[str, ErrorInterval]:
        """The interval in which 8 of 10 measured times lie, by name of the pipeline."""
        return {name: prices.interval for name, prices in self._prices.items()}

    @property
    def num_awaited(self) -> int:
        """The number of unfinished requests while the current work unit is late; 0 while it is on time.

        If it is positive and `messages_received` does not grow, a work unit hangs.
        """
        return 0 if self.on_time else len(self._runs)

    @property
    def on_time(self) -> bool:
        """Whether the latest work unit is not late yet: `PATIENCE` times the predicted time has not passed.

        The predicted time is the sum over the stages of one work unit each.
        """
        return time.monotonic() <= self._expected_by

    def submit(
        self, order: DiffusionSubmission, take: Take, begun: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Submit a request and return a function that cancels it.

        The callbacks run on the event loop that is running now. A cancelled request is dropped before its next work
        unit.

        Args:
            order: The request.
            take: Called with each report, or with the exception that ended the request: a ValueError if it does not fit
                into memory.
            begun: Called just before the first work unit of the request runs.

        Raises:
            RuntimeError: If the thread has ended.
        """
        if not self.alive:
            raise RuntimeError("the image engine has stopped: restart the server")
        run = _ActiveDiffusion(order, take, asyncio.get_running_loop(), begun=begun)
        self._runs.add(run)
        self.loop.call_soon(partial(self._begin, run))

        def leave() -> None:
            run.left = True
            self._runs.discard(run)

        return leave

    def close(self) -> None:
        """End the thread after its current step; requests in progress get an error."""
        self.alive = False
        self.loop.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    # -- in the thread -------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request has a work unit to run."""
        return len(self._turns) > 0

    def step(self) -> float:
        """Run a work unit of the request with the fewest priced seconds so far, and return its predicted seconds.

        Return 0 if that request was cancelled, which drops it, or if the work unit failed.
        """
        return self._step(self._turns.next())

    def on_loop_end(self, reason: str) -> None:
        """Fail all requests in progress because the loop's thread has ended."""
        self.alive = False
        for run in list(self._runs):
            self._report(run, RuntimeError(f"the thread that generates images has ended: {reason}"))
        self.ended.set_result(reason)

    def _begin(self, run: _ActiveDiffusion) -> None:
        order, pipeline = run.order, self.pipelines[run.order.model]
        if run.left:
            return
        try:
            run.seconds, run.tiling = self._prices[order.model].predict(order.plan)
        except Exception as error:
            self._report(run, error)
            return
        run.units_left, run.run = count_by_stage(order.plan), run_work_units(pipeline, order.plan, run.tiling)
        self._turns.join(run)

    def _step(self, run: _ActiveDiffusion) -> float:
        """Run a work unit of a request, or drop a cancelled request; return the unit's predicted seconds."""
        if run.left:
            self._turns.leave(run)
            return 0.0
        self._expected_by = time.monotonic() + PATIENCE * sum(run.seconds.values())
        if not run.number and run.begun is not None:
            self._on_loop(run, run.begun)
        try:
            outcome = self._run_work_unit(run)
        except Exception as error:  # fails this request only
            self._turns.leave(run)
            self._report(run, error)
            return 0.0
        self._turns.took(run, outcome.predicted)
        if outcome.number == outcome.of:
            self._turns.leave(run)
        self._report(run, outcome)
        return outcome.predicted

    def _run_work_unit(self, run: _ActiveDiffusion) -> WorkUnitReport:
        order, started = run.order, time.perf_counter_ns()
        assert run.run is not None
        stride = next(run.run)
        run.number += 1
        predicted, preview, file = run.seconds[stride.stage], None, None
        run.units_left[stride.stage] -= 1
        step = stride.step
        if step is not None and step.number in order.previews and not step.last:
            pixels = self.pipelines[order.model].decode(step.predicted_latents, run.tiling)
            preview, predicted = order.encode(pixels[0], step.images[0]), predicted + run.seconds["decode"]
        if stride.pixels is not None:
            assert stride.image is not None
            file = order.encode(stride.pixels, stride.image)
        finished = time.perf_counter_ns()
        left = sum(run.seconds[stage] * many for stage, many in run.units_left.items())
        return WorkUnitReport(
            *(stride.stage, run.number, count_work_units(order.plan), started, finished, predicted, left),
            self._prices[order.model].interval,
            *(preview, stride.image if stride.whole else None, file, 0 if step is None else step.skipped),
        )

    def _report(self, run: _ActiveDiffusion, report: WorkUnitReport | Exception) -> None:
        self.messages_received += 1

        def take() -> None:
            if not run.left:
                run.take(report)

        self._on_loop(run, take)

    @staticmethod
    def _on_loop(run: _ActiveDiffusion, work: Callable[[], None]) -> None:
        """Schedule a call on the event loop of the coroutine that waits for a request."""
        try:
            run.loop.call_soon_threadsafe(work)
        except RuntimeError:  # the event loop is closed, so no caller is left
            run.left = True
