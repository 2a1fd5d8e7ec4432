"""Routers that choose a replica for each request from the load that replicas publish.

A router sees load that may be stale, and never response lengths. The default takes the less loaded of two random
replicas (Mitzenmacher 2001). The least loaded of all is better if load is current, but far worse if it is stale,
because all requests then go to the same replica until the next update.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.insight.traffic.workload_trace import TraceRequest

REQUEST_TOKENS = 256
"""The load of an active request in addition to its prompt, because its response length is unknown."""

_CAP = 1.5  # the multiple of the mean load up to which a prefix stays on its replica
_REMEMBERED = 100_000  # the number of prefixes that are remembered


@dataclass(frozen=True, slots=True)
class Signal:
    """The load that a replica has published to the router."""

    load: int
    """The prompt tokens of active requests, plus `REQUEST_TOKENS` for each request."""


class ReplicaRouter(Protocol):
    """A router that chooses a replica for each request."""

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """Return the index of the replica for a request, among those with published signals."""


class RoundRobin:
    """A router that cycles through the replicas regardless of load."""

    def __init__(self, seed: int) -> None:
        self._next = 0

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """Return the index of the next replica in the cycle."""
        self._next += 1
        return (self._next - 1) % len(signals)


class RandomChoice:
    """A router that chooses a replica at random."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"router/{seed}")

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """Return the index of a uniformly random replica."""
        return self._draw.randrange(len(signals))


class TwoChoices:
    """A router that takes the less loaded of two random replicas."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"router/{seed}")

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """Return the index of the less loaded of two random replicas."""
        if len(signals) == 1:
            return 0
        return min(self._draw.sample(range(len(signals)), 2), key=lambda place: signals[place].load)


class LeastLoaded:
    """A router that takes the least loaded replica, the first of equals."""

    def __init__(self, seed: int) -> None:
        """Create a router to the least loaded replica; its seed is ignored, because it makes no random choice."""

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """Return the index of the least loaded replica."""
        return min(range(len(signals)), key=lambda place: signals[place].load)


class PrefixAware:
    """A router that sends requests with the same first block to the same replica.

    If no replica has that block yet, the replica has over 1.5 times the mean load plus one request, or the prompt names
    no blocks, it takes the less loaded of two random replicas.
    """

    def __init__(self, seed: int) -> None:
        self._others = TwoChoices(seed)
        self._places: dict[str, int] = {}

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """Return the index of the replica with the request's prefix, or of the less loaded of two random ones.

        The chosen replica is remembered for the prefix.
        """
        name = request.blocks[0] if request.blocks else None
        place = self._places.get(name) if name is not None else None
        mean = sum(signal.load for signal in signals) / len(signals)
        if place is None or signals[place].load > _CAP * mean + REQUEST_TOKENS:
            place = self._others.choose(request, signals)
        if name is not None:
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[name] = place
        return place


ROUTERS: dict[str, Callable[[int], ReplicaRouter]] = {
    "two": TwoChoices,
    "least": LeastLoaded,
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "prefix": PrefixAware,
}
"""The router classes by name; each is created with a seed of its own, so that its draws affect no others."""

BLIND = ("round-robin", "random")
"""The names of the routers that ignore the replicas' load."""


def router_named(name: str, seed: int) -> ReplicaRouter:
    """Return a new request router by its name.

    Raises:
        ValueError: If the name is unknown; the message lists all names.
    """
    if name not in ROUTERS:
        raise ValueError(f"--router is {name!r}; it must be one of {', '.join(ROUTERS)}")
    return ROUTERS[name](seed)
