"""A tracer that attaches hooks to the ops of a model and removes them again, so that it costs nothing when off.

There are two kinds of pass: some record which ops ran, in which order and on which shapes or kernel calls; the others
measure time, and their hooks only read the clock or record CUDA events.

The cost of the hooks is measured on an empty op (`hook_cost`) and subtracted: `inside` is the interval that they
measure around it, `outside` is the remaining cost of a hooked call.
"""

import statistics
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ridgeline.backends.timed_backend import clock_seconds
from ridgeline.core.models.common.priced_module import PricedModule, call_hooks
from ridgeline.core.ops.backend import Backend
from ridgeline.core.ops.op import Op
from ridgeline.insight.calibrate.gpu_timer import Pair
from ridgeline.insight.trace.timeline import Clock
from ridgeline.insight.trace.trace_ledger import Shape

_ROUNDS, _CALLS = 25, 64


@dataclass(frozen=True, slots=True)
class TracedCall:
    """An op call that the tracer recorded, with the shapes of its inputs and outputs."""

    path: str
    op: Op
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    experts_hit: int | None = None
    """The number of distinct experts that the tokens of a mixture of experts selected; None for other ops."""


Span = tuple[int, int]
"""The range of an op's kernel calls within a step: the first, and one past the last."""


@dataclass(frozen=True, slots=True)
class HookCost:
    """The time that hooks add to each call, in seconds."""

    inside: float
    """The part of the hooks' time that lies within the interval they measure."""
    outside: float
    """The part of the hooks' time that lies outside the interval they measure."""
    look: float = 0.0
    """The seconds of reading the clock once, between two calls of a replayed recording."""


class Tracer:
    """A tracer that puts recording or timing hooks on the priced ops of a model."""

    def __init__(self, model: PricedModule, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.ops = model.ops()
        self.on_gpu = any(parameter.is_cuda for parameter in model.parameters())

    @contextmanager
    def recording(self) -> Iterator[list[TracedCall]]:
        """Append every op that runs within this context to the yielded list."""
        calls: list[TracedCall] = []

        def record(path: str, op: Op, inputs: tuple[Any, ...], output: Any) -> None:
            calls.append(TracedCall(path, op, shapes(inputs), shapes(output), op.experts_hit(inputs)))

        with call_hooks(self.ops, record):
            yield calls

    @contextmanager
    def spans(self, backend: Backend) -> Iterator[list[Span]]:
        """Append the span of each op that runs within this context, among a backend's replayable kernel calls."""
        calls: list[Any] = []
        begun: list[int] = []
        spans: list[Span] = []
        backend.noted = calls
        try:
            with self._hooks(lambda *_: begun.append(len(calls)), lambda *_: spans.append((begun.pop(), len(calls)))):
                yield spans
        finally:
            backend.noted = None

    def timing(self) -> AbstractContextManager[tuple[list[float], list[float]]]:
        """Append the times at which ops start and end within this context to the two yielded lists."""
        return _timing([op for _, op in self.ops], self.clock)

    @contextmanager
    def pairs(self, moment: Callable[[], torch.cuda.Event], places: Container[int]) -> Iterator[list[Pair]]:
        """Record a pair of events around selected ops within this context, and append it to the yielded list.

        Args:
            moment: Creates an event.
            places: The indices of the selected ops, in execution order.
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

        with self._hooks(before, after):
            yield found

    def _hooks(self, before: Callable[..., None], after: Callable[..., None]) -> AbstractContextManager[None]:
        return _around([op for _, op in self.ops], before, after)


@contextmanager
def _around(ops: Iterable[nn.Module], before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
    """Call hooks before and after each op that runs within this context."""
    with ExitStack() as hooks:
        for op in ops:
            hooks.enter_context(op.register_forward_pre_hook(before))
            hooks.enter_context(op.register_forward_hook(after))
        yield


@contextmanager
def _timing(ops: Iterable[nn.Module], clock: Clock) -> Iterator[tuple[list[float], list[float]]]:
    """Append the times at which ops start and end within this context to the two yielded lists."""
    starts: list[float] = []
    ends: list[float] = []
    begun, ended = starts.append, ends.append

    def before(_: nn.Module, __: tuple[Any, ...]) -> None:
        begun(clock())

    def after(_: nn.Module, __: tuple[Any, ...], ___: Any) -> None:
        ended(clock())

    with _around(ops, before, after):
        yield starts, ends


def shapes(values: Any) -> tuple[Shape, ...]:
    """Return the shapes of the tensors among an op's arguments or results."""
    each = values if isinstance(values, tuple) else (values,)
    return tuple(tuple(value.shape) for value in each if isinstance(value, Tensor))


class _Nothing(nn.Module):
    @override
    def forward(self, x: Tensor) -> Tensor:
        return x


@torch.inference_mode()
def hook_cost(clock: Clock = time.perf_counter) -> HookCost:
    """Measure the time that the hooks of `Tracer.timing` take on this machine, as a median over rounds of empty ops.

    A small op runs between them, as in a model: in a tight loop, hooks take only half as long.
    """
    ops = [_Nothing() for _ in range(_CALLS)]
    plain: list[float] = []
    hooked: list[float] = []
    inside: list[float] = []
    for _ in range(_ROUNDS):
        plain.append(_round(ops, clock))
        with _timing(ops, clock) as (starts, ends):
            hooked.append(_round(ops, clock))
        inside.append(statistics.median(end - start for start, end in zip(starts, ends, strict=True)))
    interval = statistics.median(inside)
    total = (statistics.median(hooked) - statistics.median(plain)) / _CALLS
    return HookCost(interval, max(0.0, total - interval), clock_seconds(clock))


def _round(ops: Sequence[nn.Module], clock: Clock) -> float:
    """Return the seconds of a round over empty ops with work between them."""
    x, weight = torch.ones(1, 32), torch.ones(32, 32)
    start = clock()
    for op in ops:
        y = functional.linear(x, weight)
        op(y * x)
    return clock() - start
