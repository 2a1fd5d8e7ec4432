"""Routers: which of several replicas a request goes to, by what they have published of themselves.

What they see is as old as the signals are, and never how long an answer will be. Two random choices, of which the one
with less to do is taken (Mitzenmacher 2001), are the default: the least loaded of all is better where signals are fresh
and far worse where they are not, because all send everything there until the next ones come.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.insight.traffic.workload_trace import TraceRequest

REQUEST_TOKENS = 256
"""What a request under way counts for beside its prompt, as nobody knows how long its answer will be."""

_CAP = 1.5  # times the mean load: up to which a prefix's replica is kept to
_REMEMBERED = 100_000  # prefixes


@dataclass(frozen=True, slots=True)
class Signal:
    """What a replica has published. load: tokens of prompts under way, and REQUEST_TOKENS for each request."""

    load: int


class ReplicaRouter(Protocol):
    """Chooses a replica."""

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """The place of the one that a request goes to, among those that have published signals."""


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self, seed: int) -> None:
        self._next = 0

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """As Router.choose."""
        self._next += 1
        return (self._next - 1) % len(signals)


class RandomChoice:
    """Any."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"router/{seed}")

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """As Router.choose."""
        return self._draw.randrange(len(signals))


class TwoChoices:
    """The less loaded of two that are drawn."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"router/{seed}")

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """As Router.choose."""
        if len(signals) == 1:
            return 0
        return min(self._draw.sample(range(len(signals)), 2), key=lambda place: signals[place].load)


class LeastLoaded:
    """The least loaded; of equals the first."""

    def __init__(self, seed: int) -> None:
        """Nothing is drawn."""

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """As Router.choose."""
        return min(range(len(signals)), key=lambda place: signals[place].load)


class PrefixAware:
    """Where the last request with the same first block went, unless that has half more to do than all on average;
    else, and where prompts name no blocks, the less loaded of two.
    """

    def __init__(self, seed: int) -> None:
        self._others = TwoChoices(seed)
        self._places: dict[str, int] = {}

    def choose(self, request: TraceRequest, signals: Sequence[Signal]) -> int:
        """As Router.choose."""
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
"""By name; each is made with a seed, so that what it draws changes no other draw."""

BLIND = ("round-robin", "random")
"""Those that do not look at what replicas have to do."""


def router_named(name: str, seed: int) -> ReplicaRouter:
    """Raises ValueError with the names there are."""
    if name not in ROUTERS:
        raise ValueError(f"--router is {name!r}; it must be one of {', '.join(ROUTERS)}")
    return ROUTERS[name](seed)
