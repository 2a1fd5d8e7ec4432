"""A serving benchmark, step by step on a priced clock: `users` ask, wait for their answer and ask again.

All prompts and all outputs have one length, as in the tables that publish such runs, so users that are prefilled in one
step also finish in one, and their next prompts arrive together: that is what makes their first tokens late, and what no
formula for steady arrivals sees.

Policies: `mixed` gives every running request its next token and the rest of a step's positions to the oldest prompts
(vLLM, TensorRT-LLM); `prefill first` lets prompts have a step to themselves (SGLang).
"""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.ops.work import Reach, Segment, Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.price import Price

Seconds = Callable[[Work], float]


@dataclass(frozen=True, slots=True)
class Loop:
    """What the users do. rounds: how many requests each of them makes. step_tokens: positions a step may run."""

    users: int
    input: int
    output: int
    policy: str = "mixed"
    rounds: int = 10
    step_tokens: int = 8192


@dataclass(slots=True)
class _Request:
    arrived: float
    computed: int = 0  # prompt positions
    emitted: int = 0
    first: float = 0.0


def replay(loop: Loop, price: Price, device: Device) -> tuple[float, float]:
    """Mean TTFT and mean TPOT in seconds, expected."""
    return run(loop, lambda work: price.on(device, work).expected, price.reaches)


def run(loop: Loop, seconds: Seconds, reaches: frozenset[Reach]) -> tuple[float, float]:
    """The same with the clock as an argument."""
    live = [_Request(0.0) for _ in range(loop.users)]
    asked, now, ttfts, tpots = loop.users, 0.0, [], []
    while live:
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
        new = min(len(live) - len(left), loop.users * loop.rounds - asked)
        asked += new
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


def _work(granted: list[tuple[_Request, int]], reaches: frozenset[Reach]) -> Work:
    ends = [request.computed + request.emitted + (count if not request.emitted else 0) for request, count in granted]
    if all(count == 1 for _, count in granted):
        return Work.decode(ends, reaches)
    return Work.of([Segment(count, end) for (_, count), end in zip(granted, ends, strict=True)], reaches)
