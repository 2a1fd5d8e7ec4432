"""The tracer: hooks that it puts on a model's ops and takes off again. Off, nothing is paid.

Two sorts of pass: one that records which ops ran, in what order and on what shapes; and those that take the time, whose
hooks do nothing but read the clock.

What the hooks themselves take is measured on an op that does nothing (`hook_cost`) and subtracted: `inside` is the
interval that they time around it, `outside` is what else a call grows by when they are on.
"""

import statistics
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ridgeline.backends.timed_backend import look_seconds
from ridgeline.core.models.common.priced_module import PricedModule, listening
from ridgeline.core.ops.backend import Backend
from ridgeline.core.ops.op import Op
from ridgeline.insight.calibrate.gpu_timer import Pair
from ridgeline.insight.trace.timeline import Clock
from ridgeline.insight.trace.trace_ledger import Shape

_ROUNDS, _CALLS = 25, 64


@dataclass(frozen=True, slots=True)
class TracedCall:
    """An op that ran. experts_hit: for a mixture, how many distinct experts its tokens picked."""

    path: str
    op: Op
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    experts_hit: int | None = None


Span = tuple[int, int]
"""Of the calls of our kernels that a step makes: the first that is an op's, and the one after its last."""


@dataclass(frozen=True, slots=True)
class HookCost:
    """Seconds a hooked call: within the interval that is timed, and outside it. look: seconds of a look at the clock
    between two calls of a recording.
    """

    inside: float
    outside: float
    look: float = 0.0


class Tracer:
    """The ops of a model, the same that are priced, and hooks for them."""

    def __init__(self, model: PricedModule, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.ops = model.ops()
        self.on_card = any(parameter.is_cuda for parameter in model.parameters())

    @contextmanager
    def recording(self) -> Iterator[list[TracedCall]]:
        """While it lasts every op that runs is added to the list."""
        calls: list[TracedCall] = []

        def record(path: str, op: Op, inputs: tuple[Any, ...], output: Any) -> None:
            calls.append(TracedCall(path, op, shapes(inputs), shapes(output), op.experts_hit(inputs)))

        with listening(self.ops, record):
            yield calls

    @contextmanager
    def spans(self, backend: Backend) -> Iterator[list[Span]]:
        """Give a list that gets the span of each op that runs meanwhile, among the kernel calls of a backend that can
        be replayed.
        """
        calls: list[Any] = []
        begun: list[int] = []
        spans: list[Span] = []
        handles = [op.register_forward_pre_hook(lambda *_: begun.append(len(calls))) for _, op in self.ops]
        handles += [op.register_forward_hook(lambda *_: spans.append((begun.pop(), len(calls)))) for _, op in self.ops]
        backend.noted = calls
        try:
            yield spans
        finally:
            backend.noted = None
            for handle in handles:
                handle.remove()

    @contextmanager
    def timing(self) -> Iterator[tuple[list[float], list[float]]]:
        """While it lasts the moments at which ops begin and end are added to the two lists."""
        starts: list[float] = []
        ends: list[float] = []
        handles = _timing_hooks([op for _, op in self.ops], self.clock, starts, ends)
        try:
            yield starts, ends
        finally:
            for remove in handles:
                remove()

    @contextmanager
    def pairs(self, moment: Callable[[], torch.cuda.Event], places: Container[int]) -> Iterator[list[Pair]]:
        """While it lasts two events are recorded around every op that runs whose place among them is one of these, and
        added to the list.
        """
        found: list[Pair] = []
        begun: list[torch.cuda.Event] = []
        place = -1

        def before(_: nn.Module, __: tuple[Any, ...]) -> None:
            nonlocal place
            place += 1
            if place in places:
                begun.append(moment())
                begun[-1].record()

        def after(_: nn.Module, __: tuple[Any, ...], ___: Any) -> None:
            if place in places:
                found.append((begun.pop(), moment()))
                found[-1][1].record()

        handles = [op.register_forward_pre_hook(before) for _, op in self.ops]
        handles += [op.register_forward_hook(after) for _, op in self.ops]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def _timing_hooks(
    ops: Sequence[nn.Module], clock: Clock, starts: list[float], ends: list[float]
) -> list[Callable[[], None]]:
    """Install; returns what removes them."""
    begun, ended = starts.append, ends.append

    def before(_: nn.Module, __: tuple[Any, ...]) -> None:
        begun(clock())

    def after(_: nn.Module, __: tuple[Any, ...], ___: Any) -> None:
        ended(clock())

    handles = [op.register_forward_pre_hook(before) for op in ops] + [op.register_forward_hook(after) for op in ops]
    return [handle.remove for handle in handles]


def shapes(values: Any) -> tuple[Shape, ...]:
    """The shapes of the tensors among an op's arguments or results."""
    each = values if isinstance(values, tuple) else (values,)
    return tuple(tuple(value.shape) for value in each if isinstance(value, Tensor))


class _Nothing(nn.Module):
    @override
    def forward(self, x: Tensor) -> Tensor:
        return x


@torch.inference_mode()
def hook_cost(clock: Clock = time.perf_counter) -> HookCost:
    """What the hooks of `Tracer.timing` take on this machine now: the median over rounds of many ops that do nothing.

    Between them runs something small, as in a model: called in a tight loop, hooks take half of what they do there.
    """
    ops = [_Nothing() for _ in range(_CALLS)]
    plain: list[float] = []
    hooked: list[float] = []
    inside: list[float] = []
    for _ in range(_ROUNDS):
        plain.append(_round(ops, clock))
        starts: list[float] = []
        ends: list[float] = []
        removers = _timing_hooks(ops, clock, starts, ends)
        hooked.append(_round(ops, clock))
        for remove in removers:
            remove()
        inside.append(statistics.median(end - start for start, end in zip(starts, ends, strict=True)))
    interval = statistics.median(inside)
    total = (statistics.median(hooked) - statistics.median(plain)) / _CALLS
    return HookCost(interval, max(0.0, total - interval), look_seconds(clock))


def _round(ops: Sequence[nn.Module], clock: Clock) -> float:
    """Seconds of a round over ops that do nothing and work between them."""
    x, weight = torch.ones(1, 32), torch.ones(32, 32)
    start = clock()
    for op in ops:
        y = functional.linear(x, weight)
        op(y * x)
    return clock() - start
