"""Offered traffic: requests that will arrive, with only their lengths and the names of their blocks.

In an open loop, arrivals have times of their own; in a closed loop, users send the next request after a response.
Requests are created on demand, so a trace of ten hours is never in memory as a whole.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, takewhile
from typing import Protocol

from ridgeline.insight.traffic.lengths import Fixed, Lengths, Uniform
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest

_LATEST = 2**62  # nanoseconds; sums of such times still fit in 64 bits
SPREAD = 0.1  # the relative variation of lengths that would keep requests synchronized if they were equal


def check_moment(at: int, cure: str) -> None:
    """Check that an arrival time is at most 2^62 nanoseconds, so that sums of such times fit in 64 bits.

    Raises:
        ValueError: If it is too late; the message includes the fix `cure`.
    """
    if at > _LATEST:
        raise ValueError(f"requests would arrive over more than a century; {cure}")


class Offered(Protocol):
    """A source of traffic that gives requests in order of arrival."""

    @property
    def upcoming(self) -> int | None:
        """The arrival time of the next request in nanoseconds; None if none is known."""

    def take(self) -> TraceRequest:
        """Take and return the next request of the traffic."""

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """Report that a request has its response or was rejected, so that its user may send another."""


class OpenLoop:
    """Open-loop traffic, whose arrival times do not depend on earlier responses."""

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        """Create traffic from requests in order of arrival."""
        self._requests = iter(requests)
        self._next = next(self._requests, None)

    @property
    def upcoming(self) -> int | None:
        """The arrival time of the next request in nanoseconds; None if there is none."""
        return None if self._next is None else self._next.at

    def take(self) -> TraceRequest:
        """Take and return the next request of the traffic."""
        taken, self._next = self._next, next(self._requests, None)
        assert taken is not None, "there are no more requests to take"
        return taken

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """Ignore that a request has ended, because open-loop arrivals do not depend on responses."""


class ClosedLoop:
    """Closed-loop traffic: users who each send a request, wait for the response, think, and send another."""

    def __init__(
        self,
        users: int,
        think: ThinkTime,
        requests: Iterable[TraceRequest],
        until: int | None,
        seed: int,
        starts: Iterable[int] | None = None,
    ) -> None:
        """Create a closed loop, whose users first think, independently of each other, or start at given times.

        Args:
            users: The number of users.
            think: The think time.
            requests: The requests that users send; their arrival times are ignored.
            until: The time after which no request is sent; None for no limit.
            seed: The seed of the start and think times.
            starts: The start times of the users in nanoseconds, instead of random ones.
        """
        self._requests, self._think, self._until = iter(requests), think, until
        self._draw = random.Random(f"users/{seed}")
        if starts is None:
            starts = (think.draw_start(self._draw) for _ in range(users))
        begin = sorted(starts)
        self._asking = begin if until is None else [at for at in begin if at < until]
        self._next = next(self._requests, None)

    @property
    def upcoming(self) -> int | None:
        """The arrival time of the next request in nanoseconds; None if no user or request is available."""
        return self._asking[0] if self._asking and self._next is not None else None

    def take(self) -> TraceRequest:
        """Take and return the next request, at the time at which a user sends it."""
        assert self._next is not None, "there are no more requests to take"
        taken, self._next = replace(self._next, at=heapq.heappop(self._asking)), next(self._requests, None)
        return taken

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """Let the request's user think and send another.

        After a rejection the user leaves, because every retry would be rejected too.
        """
        if not answered:
            return
        asks = now + self._think.draw(self._draw)
        if self._until is None or asks < self._until:
            check_moment(asks, "give a shorter --think")
            heapq.heappush(self._asking, asks)


def sizes_and_classes(offered: Offered) -> tuple[int, int, set[str]]:
    """Take all requests of open-loop traffic; return their average prompt and output tokens, and their classes."""
    count, given, made, classes = 0, 0, 0, set[str]()
    while offered.upcoming is not None:
        request = offered.take()
        count, given, made = count + 1, given + request.input, made + request.output
        classes.add(request.slo_class)
    return max(1, round(given / max(1, count))), max(1, round(made / max(1, count))), classes


# -- what requests are like -------------------------------------------------------------------------------------------


def draw_requests(moments: Iterable[int], given: Lengths, made: Lengths, seed: int) -> Iterator[TraceRequest]:
    """Return requests at given arrival times, with random prompt and response lengths."""
    draw = random.Random(f"lengths/{seed}")
    return (TraceRequest(at, given.draw(draw), made.draw(draw)) for at in moments)


def jittered(lengths: Lengths) -> Lengths:
    """Return a fixed length as a uniform one of up to 10 % more or less; leave other distributions unchanged.

    Requests of equal lengths that arrive together also end together, and would stay synchronized. Lengths of only a few
    tokens stay fixed.
    """
    if not isinstance(lengths, Fixed):
        return lengths
    off = round(lengths.p99 * SPREAD)
    return Uniform(max(1, lengths.p99 - off), lengths.p99 + off) if off else lengths


def with_arrivals(requests: Iterable[TraceRequest], moments: Iterable[int]) -> Iterator[TraceRequest]:
    """Yield requests with their arrival times replaced by others, until either runs out."""
    return (replace(request, at=at) for request, at in zip(requests, moments, strict=False))


def time_scaled(requests: Iterable[TraceRequest], speed: float) -> Iterator[TraceRequest]:
    """Return requests that arrive `speed` times as fast, which makes bursts sharper."""
    return (replace(request, at=round(request.at / speed)) for request in requests)


def subsampled(requests: Iterable[TraceRequest], share: float, seed: int) -> Iterator[TraceRequest]:
    """Return a random subset of requests, which keeps the shape of bursts."""
    draw = random.Random(f"keep/{seed}")
    return (request for request in requests if draw.random() < share)


def bounded(requests: Iterable[TraceRequest], count: int | None, until: int | None) -> Iterator[TraceRequest]:
    """Return the first `count` requests among those that arrive before `until`.

    Raises:
        ValueError: During iteration, if an arrival time is too late for `check_moment`.
    """

    def within(request: TraceRequest) -> bool:
        if until is not None and request.at >= until:
            return False
        check_moment(request.at, "give a higher --rate or --speed")
        return True

    return islice(takewhile(within, requests), count)
