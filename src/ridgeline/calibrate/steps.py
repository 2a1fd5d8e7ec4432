"""Timing every op of a step where it stands: in its model, after the op before it, as the engine runs it.

An op in a loop of its own is faster than the same op in a model, by up to two times for small ones: the processor has
its code at hand and nothing else. What a price adds up is the op in the model.

Shapes as in ops/paged.py.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.calibrate.timer import Timer
from ridgeline.calibrate.trials import Sequences
from ridgeline.models.model import Model
from ridgeline.ops.kv import deal_layers
from ridgeline.ops.op import Op
from ridgeline.ops.paged import PagedDecode, PagedGroup, PagedKV, PagedSegment, layer_pages
from ridgeline.ops.work import Segment, Work

PAGE = 16
_SHORTEST = 1e-8  # seconds: no call is shorter, whatever the watch subtracts


@dataclass(frozen=True, slots=True)
class TimedOp:
    """A part of an op in a step (`Op.parts`): its median seconds there."""

    op: Op
    part: str
    seconds: float


class Stopwatch:
    """Times every op of a model while it is `on`. inside: seconds of each interval that are the watch's own."""

    def __init__(self, model: Model, timer: Timer) -> None:
        self.ops = [op for _, op in model.ops()]
        self.timer = timer
        self.seconds: dict[tuple[Op, str], list[float]] = {(op, part): [] for op in self.ops for part in op.parts}
        self.inside = _own_seconds(timer)

    @property
    def calls(self) -> int:
        """How many calls were timed."""
        return sum(map(len, self.seconds.values()))

    @property
    def spent(self) -> float:
        """Seconds of all calls that were timed, without those of the watch."""
        return sum(map(sum, self.seconds.values())) - self.calls * self.inside

    @contextmanager
    def on(self) -> Iterator[None]:
        """While it lasts, calls of ops are timed."""
        for (op, part), seconds in self.seconds.items():
            setattr(op, part, _timed(getattr(op, part), self.timer, seconds))
        try:
            yield
        finally:
            for op, part in self.seconds:
                delattr(op, part)

    def clear(self) -> None:
        """Forget what was timed."""
        for seconds in self.seconds.values():
            seconds.clear()

    def medians(self) -> list[TimedOp]:
        """The ops that ran, each with its median."""
        return [
            TimedOp(op, part, max(_SHORTEST, statistics.median(times) - self.inside))
            for (op, part), times in self.seconds.items()
            if times
        ]


def _timed(forward: Any, timer: Timer, seconds: list[float]) -> Any:
    def call(*arguments: Any) -> Any:
        start = timer.now()
        result = forward(*arguments)
        seconds.append(timer.now() - start)
        return result

    return call


def _own_seconds(timer: Timer) -> float:
    """Seconds that the watch adds to an interval that it times."""
    seconds: list[float] = []
    watched = _timed(lambda: None, timer, seconds)
    for _ in range(200):
        watched()
    return statistics.median(seconds)


class Stage:
    """A model with KV memory of its own, to run steps of any shape without what came before them."""

    def __init__(self, model: Model, device: torch.device, positions: int) -> None:
        """`positions`: that one step's sequences have together, at most."""
        self.model, self.device = model, device
        layout = deal_layers(model.kv_specs, PAGE, positions)
        self._groups, self._group_of_layer = len(layout.groups), layout.group_of_layer
        # The tables of a step list every group's pages alike, so the groups write over each other: only time counts.
        buffer = torch.zeros(positions // PAGE + 2, layout.page_bytes, dtype=torch.uint8, device=device)
        self._layers = layer_pages(buffer, layout)

    @torch.inference_mode()
    def run(self, sequences: Sequences) -> Tensor:
        """One step; its logits."""
        positions = torch.cat([torch.arange(kv - q, kv) for q, kv in sequences]).to(self.device)
        ends = torch.tensor([q for q, _ in sequences]).cumsum(0).to(self.device) - 1
        group = _paged(sequences, self.device)
        kv = PagedKV(self._layers, self._group_of_layer, [group] * self._groups)
        # Every row another token, or a router would send all to the same experts.
        ids = torch.arange(len(positions), device=self.device) % self.model.vocabulary
        logits: Tensor = self.model(ids, positions, kv, ends)
        return logits

    def work(self, sequences: Sequences) -> Work:
        """What such a step asks."""
        return Work.of([Segment(q, kv) for q, kv in sequences], self.model.reaches)


def _paged(sequences: Sequences, device: torch.device) -> PagedGroup:
    """The view of a step whose sequences lie behind each other in KV memory, page 0 left out."""
    tables: list[list[int]] = []
    slots: list[int] = []
    page = 1
    for q, kv in sequences:
        tables.append(list(range(page, page + -(-kv // PAGE))))
        slots += [page * PAGE + position for position in range(kv - q, kv)]
        page += len(tables[-1])
    if all(q == 1 for q, _ in sequences):
        return PagedGroup(torch.tensor(slots, device=device), [_decodes(sequences, tables, device)], [])
    segments = []
    start = 0
    for (q, kv), table in zip(sequences, tables, strict=True):
        pages = None if q == kv else torch.tensor(table, device=device)
        segments.append(PagedSegment(start, q, kv, 0, pages))
        start += q
    return PagedGroup(torch.tensor(slots, device=device), [], segments)


def _decodes(sequences: Sequences, tables: Sequence[Sequence[int]], device: torch.device) -> PagedDecode:
    count = len(sequences)
    return PagedDecode(
        torch.arange(count, device=device),
        torch.tensor(tables, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.tensor([kv for _, kv in sequences], device=device),
    )


def time_ops(stage: Stage, watch: Stopwatch, sequences: Sequences, budget: float) -> list[TimedOp]:
    """Every op of a step, timed in place for about `budget` seconds."""
    watch.clear()
    with watch.on():
        stage.run(sequences)
        watch.clear()
        watch.timer.each(lambda: stage.run(sequences), budget)
    return watch.medians()
