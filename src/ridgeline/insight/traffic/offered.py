"""Offered traffic: requests to come, known by their lengths and the names of their blocks alone.

An open loop has moments of its own; users ask again when they have their answer. Requests are made as they are wanted,
so that a trace of ten hours is never in memory.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, takewhile
from typing import Protocol

from ridgeline.insight.traffic.lengths import Fixed, Lengths, Uniform
from ridgeline.insight.traffic.workload_trace import TraceRequest

_LATEST = 2**62  # nanoseconds: what is done with moments stays in 64 bits
SPREAD = 0.1  # of a length: how much shorter or longer it may be where equal ones would march in step


def check_moment(at: int, cure: str) -> None:
    """Raises ValueError for a request that comes later than a moment can be."""
    if at > _LATEST:
        raise ValueError(f"requests come over more than a century; {cure}")


class Offered(Protocol):
    """Requests to come, one after the other."""

    @property
    def upcoming(self) -> int | None:
        """When the next one comes, in nanoseconds; None where none is known to."""

    def take(self) -> TraceRequest:
        """That one."""

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """A request that was taken has its answer, or was refused: its user may ask again."""


class OpenLoop:
    """Requests that come at moments of their own, whatever became of those before them."""

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        """requests: in the order of their moments."""
        self._requests = iter(requests)
        self._next = next(self._requests, None)

    @property
    def upcoming(self) -> int | None:
        """As Offered.upcoming."""
        return None if self._next is None else self._next.at

    def take(self) -> TraceRequest:
        """As Offered.take."""
        taken, self._next = self._next, next(self._requests, None)
        assert taken is not None, "nothing is left to take"
        return taken

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """It changes nothing."""


class ClosedLoop:
    """A closed loop: so many users, each of whom asks, waits for the answer, thinks, and asks again."""

    def __init__(self, users: int, think: int, requests: Iterable[TraceRequest], until: int | None, seed: int) -> None:
        """think: nanoseconds. Users begin within one time of thinking, not all at once. requests: what they ask, whose
        moments do not count. until: when they ask no more; who would begin later never asks.
        """
        self._requests, self._think, self._until = iter(requests), think, until
        draw = random.Random(f"users/{seed}")
        begin = sorted(draw.randrange(think) if think else 0 for _ in range(users))
        self._asking = begin if until is None else [at for at in begin if at < until]
        self._next = next(self._requests, None)

    @property
    def upcoming(self) -> int | None:
        """As Offered.upcoming."""
        return self._asking[0] if self._asking and self._next is not None else None

    def take(self) -> TraceRequest:
        """As Offered.take."""
        assert self._next is not None, "nothing is left to take"
        taken, self._next = replace(self._next, at=heapq.heappop(self._asking)), next(self._requests, None)
        return taken

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """One of them begins to think. Who is refused leaves: to ask again would be to be refused for ever."""
        if not answered:
            return
        asks = now + self._think
        if self._until is None or asks < self._until:
            check_moment(asks, "give a shorter --think")
            heapq.heappush(self._asking, asks)


def sizes_and_classes(offered: Offered) -> tuple[int, int, set[str]]:
    """Tokens in and out of all that is offered by itself, on average; and which classes it is of."""
    count, given, made, classes = 0, 0, 0, set[str]()
    while offered.upcoming is not None:
        request = offered.take()
        count, given, made = count + 1, given + request.input, made + request.output
        classes.add(request.slo_class)
    return max(1, round(given / max(1, count))), max(1, round(made / max(1, count))), classes


# -- what requests are like -------------------------------------------------------------------------------------------


def draw_requests(moments: Iterable[int], given: Lengths, made: Lengths, seed: int) -> Iterator[TraceRequest]:
    """Requests at these moments, of drawn lengths in and out."""
    draw = random.Random(f"lengths/{seed}")
    return (TraceRequest(at, given.draw(draw), made.draw(draw)) for at in moments)


def jittered(lengths: Lengths) -> Lengths:
    """A fixed length as one that differs by up to a tenth; others as they are. Requests of equal lengths that come
    together end together, and so march in step for ever.
    """
    if not isinstance(lengths, Fixed):
        return lengths
    off = round(lengths.most * SPREAD)
    return Uniform(max(1, lengths.most - off), lengths.most + off) if off else lengths


def with_arrivals(requests: Iterable[TraceRequest], moments: Iterable[int]) -> Iterator[TraceRequest]:
    """The same requests at other moments."""
    return (replace(request, at=at) for request, at in zip(requests, moments, strict=False))


def time_scaled(requests: Iterable[TraceRequest], speed: float) -> Iterator[TraceRequest]:
    """So many times as fast: bursts become sharper by that much."""
    return (replace(request, at=round(request.at / speed)) for request in requests)


def subsampled(requests: Iterable[TraceRequest], share: float, seed: int) -> Iterator[TraceRequest]:
    """A share of them, each kept by chance: fewer requests in bursts of the same shape."""
    draw = random.Random(f"keep/{seed}")
    return (request for request in requests if draw.random() < share)


def bounded(requests: Iterable[TraceRequest], count: int | None, until: int | None) -> Iterator[TraceRequest]:
    """The first so many of them, of those that come before `until`. Raises ValueError, as they come, as
    `check_moment`.
    """

    def within(request: TraceRequest) -> bool:
        if until is not None and request.at >= until:
            return False
        check_moment(request.at, "give a higher --rate or --speed")
        return True

    return islice(takewhile(within, requests), count)
