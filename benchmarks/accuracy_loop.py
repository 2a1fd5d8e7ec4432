"""A serving benchmark, step by step on a priced clock: `users` ask, wait for their answer and ask again; or requests
come at a rate, and wait where `users` of them are under way.

All prompts and all outputs have one length, as in the tables that publish such runs, so users that are prefilled in one
step also finish in one, and their next prompts arrive together: that is what makes their first tokens late, and what no
formula for steady arrivals sees.

Policies: `mixed` gives every running request its next token and the rest of a step's positions to the oldest prompts
(vLLM, TensorRT-LLM); `prefill first` lets prompts have a step to themselves (SGLang).
"""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.ops.work import AttentionPattern, StepSegment, Work
from ridgeline.price.device import Device
from ridgeline.price.price import Price

Seconds = Callable[[Work], float]


@dataclass(frozen=True, slots=True)
class Loop:
    """What the users do. rounds: how many requests each of them makes. step_tokens: positions a step may run. rate:
    where it is above 0, `requests` come evenly spaced, so many a second, instead of users that ask again."""

    users: int
    input: int
    output: int
    policy: str = "mixed"
    rounds: int = 10
    step_tokens: int = 8192
    rate: float = 0.0
    requests: int = 0

    def arrivals(self) -> list[float]:
        """When the requests come that do not wait for the end of another one."""
        return [i / self.rate for i in range(self.requests)] if self.rate else [0.0] * self.users

    @property
    def following(self) -> int:
        """How many requests follow the end of another one."""
        return 0 if self.rate else self.users * (self.rounds - 1)


@dataclass(slots=True)
class _Request:
    arrived: float
    computed: int = 0  # prompt positions
    emitted: int = 0
    first: float = 0.0


def replay(loop: Loop, price: Price, device: Device) -> tuple[float, float]:
    """Mean TTFT and mean TPOT in seconds, expected."""
    return run(loop, lambda work: price.price_step(device, work).expected, price.reaches)


def run(loop: Loop, seconds: Seconds, reaches: frozenset[AttentionPattern]) -> tuple[float, float]:
    """The same with the clock as an argument."""
    waiting, following = [_Request(at) for at in reversed(loop.arrivals())], loop.following
    live: list[_Request] = []
    now, ttfts, tpots = 0.0, [], []
    while live or waiting:
        now = now if live else max(now, waiting[-1].arrived)
        while waiting and waiting[-1].arrived <= now and len(live) < loop.users:
            live.append(waiting.pop())
        granted = _grant(live, loop)
        now += seconds(_work(granted, reaches))
        for request, count in granted:
            request.computed += count if request.computed < loop.input else 0
            if request.computed < loop.input:
                continue
            request.emitted += 1
            if request.emitted == 1:
                request.first = now
                ttfts.append(now - request.arrived)
            if request.emitted == loop.output:
                tpots.append((now - request.first) / (loop.output - 1))
        left = [request for request in live if request.emitted < loop.output]
        new = min(len(live) - len(left), following)
        following -= new
        live = left + [_Request(now) for _ in range(new)]
    return sum(ttfts) / len(ttfts), sum(tpots) / len(tpots)


def _grant(live: list[_Request], loop: Loop) -> list[tuple[_Request, int]]:
    """Who runs how many positions in the next step."""
    prompts = [request for request in live if request.computed < loop.input]
    granted = [] if prompts and loop.policy == "prefill first" else [(r, 1) for r in live if r.computed >= loop.input]
    room = loop.step_tokens - len(granted)
    for request in prompts:
        count = min(room, loop.input - request.computed)
        if count <= 0:
            break
        granted.append((request, count))
        room -= count
    return granted


def _work(granted: list[tuple[_Request, int]], reaches: frozenset[AttentionPattern]) -> Work:
    ends = [request.computed + request.emitted + (count if not request.emitted else 0) for request, count in granted]
    if all(count == 1 for _, count in granted):
        return Work.decode(ends, reaches)
    return Work.of([StepSegment(count, end) for (_, count), end in zip(granted, ends, strict=True)], reaches)
