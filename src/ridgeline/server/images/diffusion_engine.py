"""Drawer: what runs pipelines. Requests, of one pipeline or of several, take turns between strides.

It runs in a thread of the server's own process (model_loop.py), unlike the engine of a language model that is served
alone: a step of a denoiser is one long call out of Python, so that the event loop costs it nothing, and pixels need not
cross a process.
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
from ridgeline.server.fair_queue import FairQueue
from ridgeline.server.images.work_unit_prices import WorkUnitPrices
from ridgeline.server.model_loop import ModelLoop

PATIENCE = 10
"""Times its price that a stride may take before requests count as waiting in vain."""

logger = logging.getLogger(__name__)

Encode = Callable[[Tensor, int], bytes | None]
"""Makes the file of a picture: takes its pixels [channels, lines, columns] and its number in the request, counted from
0. Of a clip it takes each part [channels, frames, lines, columns] and returns None: the file is written elsewhere."""


@dataclass(frozen=True, slots=True)
class DiffusionSubmission:
    """What is to be drawn. model: the pipeline's name. previews: after which steps of the denoiser, counted from 1, the
    guess is decoded too.
    """

    model: str
    plan: DiffusionPlan
    encode: Encode
    previews: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkUnitReport:
    """What is told of a stride that has run.

    number, of: which stride of the request it was, counted from 1, and how many there are. started, finished:
    nanoseconds of time.perf_counter_ns. predicted: its seconds by the price. left: seconds by the price of the strides
    that are to come. preview: a file of what the picture may become. image: which picture or clip it finished, counted
    from 0. file: of that picture; a clip's is written elsewhere. skipped: of its
    passes those that a step cache cut short.
    """

    stage: StageName
    number: int
    of: int
    started: int
    finished: int
    predicted: float
    left: float
    preview: bytes | None = None
    image: int | None = None
    file: bytes | None = None
    skipped: int = 0

    @property
    def seconds(self) -> float:
        """Seconds that it took."""
        return (self.finished - self.started) * 1e-9


Take = Callable[[WorkUnitReport | Exception], None]
"""Is called with each stride of a request, or with what ended it. It is not to raise."""


@dataclass(eq=False, slots=True)
class _ActiveDiffusion:
    """A request under way. seconds: of one stride of each stage, by the price. ahead: strides that are left, by stage.
    run: gives its next stride. number: strides that have run. left: whether nobody waits for it any more. begun:
    called on the loop just before its first stride runs.
    """

    order: DiffusionSubmission
    take: Take
    loop: asyncio.AbstractEventLoop
    seconds: dict[StageName, float] = field(default_factory=dict)
    tiling: Tiling | None = None
    ahead: dict[StageName, int] = field(default_factory=dict)
    run: Iterator[WorkUnit] | None = None
    number: int = 0
    left: bool = False
    begun: Callable[[], None] | None = None


class DiffusionEngine:
    """Draws with pipelines, by their names, for many callers. Use `async with`, or call `close`."""

    def __init__(self, pipelines: Mapping[str, Pipeline], device: Device, room: float, loop: ModelLoop) -> None:
        """device: that strides are priced on. room: bytes that activations may have. loop: where they run."""
        self.pipelines, self.device, self.loop = dict(pipelines), device, loop
        self.alive = True
        """Whether requests are taken now."""
        self.ended: Future[str] = Future()
        """Done, with the reason, when the thread is gone."""
        self.heard = 0
        """Strides that have run."""
        self._prices = {name: WorkUnitPrices(pipeline, device, room) for name, pipeline in pipelines.items()}
        self._turns: FairQueue[_ActiveDiffusion] = FairQueue()
        self._runs: set[_ActiveDiffusion] = set()  # of callers that wait, touched on the event loop
        self._expected_by = 0.0  # seconds of time.monotonic
        loop.join(self)

    @property
    def awaited(self) -> int:
        """Requests that somebody waits for while the present stride takes longer than it may; 0 while it is on time.
        Where there are any and `heard` does not move, a stride hangs.
        """
        return 0 if self.on_time else len(self._runs)

    @property
    def on_time(self) -> bool:
        """Whether the present stride began no longer ago than PATIENCE times the price of a stride of each stage."""
        return time.monotonic() <= self._expected_by

    def submit(
        self, order: DiffusionSubmission, take: Take, begun: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Have a request drawn and `take` told of it, on the event loop that runs now. Returns what to call when nobody
        waits any more: what is left of it is dropped before its next stride. `take` gets a ValueError for a request
        that does not fit into memory. begun: called there just before the first stride of the request runs.
        Raises RuntimeError where the thread is gone.
        """
        if not self.alive:
            raise RuntimeError("pictures are not drawn any more")
        run = _ActiveDiffusion(order, take, asyncio.get_running_loop(), begun=begun)
        self._runs.add(run)
        self.loop.ask(partial(self._begin, run))

        def leave() -> None:
            run.left = True
            self._runs.discard(run)

        return leave

    def close(self) -> None:
        """End the thread after its present step. Requests under way hear of it."""
        self.alive = False
        self.loop.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    # -- in the thread -------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request has a stride left."""
        return len(self._turns) > 0

    def step(self) -> float:
        """Run a stride of the request that has had the fewest priced seconds. Returns the stride's own."""
        return self._step(self._turns.next())

    def gone(self, reason: str) -> None:
        """As Party.gone."""
        self.alive = False
        for run in list(self._runs):
            self._tell(run, RuntimeError(f"the thread that draws has ended: {reason}"))
        self.ended.set_result(reason)

    def _begin(self, run: _ActiveDiffusion) -> None:
        order, pipeline = run.order, self.pipelines[run.order.model]
        if run.left:
            return
        try:
            run.seconds, run.tiling = self._prices[order.model].of(order.plan)
        except Exception as error:
            self._tell(run, error)
            return
        run.ahead, run.run = count_by_stage(order.plan), run_work_units(pipeline, order.plan, run.tiling)
        self._turns.join(run)

    def _step(self, run: _ActiveDiffusion) -> float:
        """Run a stride of a request, or drop the request if nobody waits for it. Returns its priced seconds."""
        if run.left:
            self._turns.leave(run)
            return 0.0
        self._expected_by = time.monotonic() + PATIENCE * sum(run.seconds.values())
        if not run.number and run.begun is not None:
            self._on_loop(run, run.begun)
        try:
            told = self._stride(run)
        except Exception as error:  # of this request alone; the others go on
            self._turns.leave(run)
            self._tell(run, error)
            return 0.0
        self._turns.took(run, told.predicted)
        if told.number == told.of:
            self._turns.leave(run)
        self._tell(run, told)
        return told.predicted

    def _stride(self, run: _ActiveDiffusion) -> WorkUnitReport:
        order, started = run.order, time.perf_counter_ns()
        assert run.run is not None
        stride = next(run.run)
        run.number += 1
        predicted, preview, file = run.seconds[stride.stage], None, None
        run.ahead[stride.stage] -= 1
        step = stride.step
        if step is not None and step.number in order.previews and not step.last:
            pixels = self.pipelines[order.model].decode(step.guess, run.tiling)
            preview, predicted = order.encode(pixels[0], step.images[0]), predicted + run.seconds["decode"]
        if stride.pixels is not None:
            assert stride.image is not None
            file = order.encode(stride.pixels, stride.image)
        finished, left = time.perf_counter_ns(), sum(run.seconds[stage] * many for stage, many in run.ahead.items())
        return WorkUnitReport(
            *(stride.stage, run.number, count_work_units(order.plan), started, finished, predicted, left),
            *(preview, stride.image if stride.whole else None, file, 0 if step is None else step.skipped),
        )

    def _tell(self, run: _ActiveDiffusion, told: WorkUnitReport | Exception) -> None:
        self.heard += 1

        def take() -> None:
            if not run.left:
                run.take(told)

        self._on_loop(run, take)

    @staticmethod
    def _on_loop(run: _ActiveDiffusion, work: Callable[[], None]) -> None:
        """Schedule a call on the event loop of the coroutine that waits for a request."""
        try:
            run.loop.call_soon_threadsafe(work)
        except RuntimeError:  # the event loop is closed: nobody is left to tell
            run.left = True
