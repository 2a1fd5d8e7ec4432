"""A backend wrapper that measures the time of each op of a step, including steps that are replayed call by call.

An `OpTimer` measures the parts of ops (`Op.parts`) when they are called. A replayed step does not call them, so the
timer measures its kernel calls one by one and adds up those of each part. A step that is replayed as a whole, such as a
CUDA graph, is not measured.
"""

import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.backends import prepared
from ridgeline.backends.cpu.call_recording import CallRecording
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.backend import Backend, ReplayedSteps, SamplingKernel
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.paged_state import StatePages
from ridgeline.core.ops.step_graphs import PageTables, PlannedStep, StepGraph, StepGraphs
from ridgeline.core.ops.work import RowAxis, Work

Part = tuple[Op, str]
"""An op, and the name of one of its methods that launch kernels, as the unit of timing."""
_OWN_CALLS = 200


class OpTimer:
    """A timer of the ops of a model, which measures their calls while it is `on`.

    `seconds` are the durations of the calls of each part. `inside` is the time in each call that the timer itself
    needs.
    """

    def __init__(self, model: PricedModule, now: Callable[[], float]) -> None:
        self.ops, self.backend, self.now = [op for _, op in model.ops()], prepared(model), now
        self.seconds: dict[Part, list[float]] = {(op, part): [] for op in self.ops for part in op.parts}
        self.inside = _own_seconds(now)
        self._owners: dict[StepGraph, list[Part | None]] = {}
        self._spans: list[tuple[Part, int, int]] = []

    @property
    def calls(self) -> int:
        """The number of measured calls of ops."""
        return sum(map(len, self.seconds.values()))

    @property
    def spent(self) -> float:
        """The total seconds of all measured calls of ops, without the time that the timer itself needs."""
        return sum(map(sum, self.seconds.values())) - self.calls * self.inside

    @contextmanager
    def on(self) -> Iterator[None]:
        """Measure the calls of ops inside this context."""
        for op, part in self.seconds:
            setattr(op, part, self._watched((op, part)))
        try:
            yield
        finally:
            for op, part in self.seconds:
                delattr(op, part)

    def _watched(self, part: Part) -> Any:
        """Return an op's method with a timer around it, which notes kernel calls instead while a step is recorded."""
        op, name = part
        forward, backend = getattr(op, name), self.backend
        timed = _timed(forward, self.now, self.seconds[part])

        def call(*arguments: Any) -> Any:
            noted = backend.noted
            if noted is None:
                return timed(*arguments)
            start = len(noted)
            result = forward(*arguments)
            self._spans.append((part, start, len(noted)))
            return result

        return call

    def register_graph(self, graph: StepGraph) -> None:
        """Store, for a recorded step, which op and method makes each of its kernel calls.

        If the step was recorded while the timer was on, they were noted then. Calls between ops belong to no op.
        """
        if graph not in self._owners:
            owners: list[Part | None] = [None] * len(graph.calls)
            for part, start, stop in self._spans:
                owners[start:stop] = [part] * (stop - start)
            self._owners[graph] = owners
        self._spans.clear()

    def again(self, graph: StepGraph) -> Tensor:
        """Replay a recorded step and add the time of its kernel calls to the op methods that made them.

        All calls of one method in the step count as one measured call. The step must have been registered with
        `register_graph`.
        """
        spent = dict[Part, float]()
        moments = graph.timed_replay(self.now)
        for owner, (start, end) in zip(self._owners[graph], pairwise(moments), strict=True):
            if owner is not None:
                spent[owner] = spent.get(owner, self.inside) + end - start - self.inside
        for owner, seconds in spent.items():
            self.seconds[owner].append(seconds)
        return graph.result

    def clear(self) -> None:
        """Delete all measured times of ops."""
        for seconds in self.seconds.values():
            seconds.clear()

    def aside(self, run: Callable[[], object]) -> None:
        """Run a function, and discard the times of the ops that it calls."""
        counts = {part: len(seconds) for part, seconds in self.seconds.items()}
        run()
        for part, count in counts.items():
            del self.seconds[part][count:]


def _timed(forward: Any, now: Callable[[], float], seconds: list[float]) -> Any:
    """Return a wrapper of a function that appends the duration of each call to `seconds`."""

    def call(*arguments: Any) -> Any:
        start = now()
        result = forward(*arguments)
        seconds.append(now() - start)
        return result

    return call


def _own_seconds(now: Callable[[], float]) -> float:
    """Return the seconds that the timer adds to an interval that it measures."""
    seconds: list[float] = []
    watched = _timed(lambda: None, now, seconds)
    for _ in range(_OWN_CALLS):
        watched()
    return statistics.median(seconds)


def clock_seconds(now: Callable[[], float]) -> float:
    """Return the seconds that reading the clock takes between two calls of a replay."""
    moments = CallRecording([(lambda: 0, ())] * _OWN_CALLS, torch.empty(0)).timed_replay(now)
    return statistics.median(end - start for start, end in pairwise(moments))


class TimedBackend(Backend):
    """A wrapper of a model's backend that measures steps that are replayed call by call, with an `OpTimer`."""

    def __init__(self, watch: OpTimer) -> None:
        self._watch, self._backend = watch, watch.backend

    # mypy 2.4 does not accept @override on a property that has a setter.
    @property  # type: ignore[explicit-override]
    def noted(self) -> list[Any] | None:
        """The list to which this thread appends its kernel calls for a recording, or None."""
        return self._backend.noted

    @noted.setter
    def noted(self, calls: list[Any] | None) -> None:
        self._backend.noted = calls

    @override
    def prepare(self, model: nn.Module) -> None:
        self._backend.prepare(model)

    @override
    def launches(self, op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
        return self._backend.launches(op, work, space)

    @override
    def replayed_steps(self, model: nn.Module) -> ReplayedSteps | None:
        return self._backend.replayed_steps(model)

    @override
    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> KVPages:
        return self._backend.pages(layers, groups, states)

    @override
    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        return _TimedGraphs(self._backend.step_graphs(model, pages), self._watch)

    @property
    @override
    def sampling_kernel(self) -> SamplingKernel | None:
        return self._backend.sampling_kernel

    @override
    def likeliest(self, logits_RV: Tensor) -> Tensor:
        return self._backend.likeliest(logits_RV)


class _TimedGraphs(StepGraphs):
    """The replayed steps of a model, measured call by call; a step that is replayed as a whole is not measured."""

    def __init__(self, graphs: StepGraphs, watch: OpTimer) -> None:
        self._graphs, self._watch, self.by_call = graphs, watch, graphs.by_call

    @override
    def bucket(self, step: PlannedStep) -> Hashable | None:
        return self._graphs.bucket(step)

    @override
    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor | None:
        if not self.by_call:
            return self._graphs.logits(step, bucket, tables)
        graph = self.graph(step, bucket, tables)
        return None if graph is None else self._watch.again(graph)

    @override
    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> StepGraph | None:
        found = self._graphs.graph(step, bucket, tables)
        if found is not None:
            self._watch.register_graph(found)
        return found
