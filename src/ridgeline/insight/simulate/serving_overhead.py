"""What a server takes beside its engine's steps: between two of them, and on the core that HTTP and texts share.

Both are measured of an idle server and stated; nothing here is fitted to a load. Between two steps the engine's process
hears of what came and tells what was sampled. The front is a core of its own: requests are read before the engine has
them, tokens are written to clients after each step, an answer is begun and closed. The messages of steps are short and
are done one after the other. What a request takes is done in many parts between them: where half of the core is taken,
it takes twice as long.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from ridgeline.util.times import parse_time

_LONGEST = round(3600e9)  # nanoseconds


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Nanoseconds between two steps: of each, and for each sequence and each request that is new in the next one. idle:
    more for a step that the engine had to wait for, which finds nothing at hand. after: more for a step without new
    requests that follows one with some.
    """

    step: int = 0
    sequence: int = 0
    request: int = 0
    idle: int = 0
    after: int = 0

    def of(self, sequences: int, requests: int, *, before: int = 0, waited: bool = False) -> int:
        """Before a step of so many sequences, of which so many are new, and so many were in the step before. waited:
        whether nothing ran until now.
        """
        more = self.after if before and not requests else 0
        return self.step + self.sequence * sequences + self.request * requests + (self.idle if waited else more)

    def times(self, factor: float) -> "HostOverhead":
        """The same where all of it takes so many times as long."""
        return _times(self, factor)

    @property
    def counts(self) -> bool:
        """Whether it matters how many requests are new."""
        return bool(self.request or self.after)


@dataclass(frozen=True, slots=True)
class ApiServerOverhead:
    """Nanoseconds of the server's core: for a request before the engine has it, for the messages of a step, for each of
    its tokens until the client has it, for the first of an answer beside that, and for one that has ended.
    """

    request: int = 0
    step: int = 0
    token: int = 0
    first: int = 0
    answer: int = 0

    def times(self, factor: float) -> "ApiServerOverhead":
        """The same where all of it takes so many times as long."""
        return _times(self, factor)


_Costs = TypeVar("_Costs", HostOverhead, ApiServerOverhead)


def _times(costs: _Costs, factor: float) -> _Costs:
    return replace(costs, **{each.name: round(getattr(costs, each.name) * factor) for each in fields(costs)})


_WHILE = 100e6  # nanoseconds over which the core's work is averaged, at the least
_TIMES = 20  # of its longest cost: over less the share would be of whether somebody has just come
_MOST = 0.95  # of the core that is taken already, where more is


class ApiServerCore:
    """The core at work."""

    def __init__(self, costs: ApiServerOverhead) -> None:
        self._costs = costs
        self._told = self._asked = 0  # when the messages of steps are done, and what requests take
        self._read = self._latest = 0  # when the last request is read, and all is done that was given
        over = max(_WHILE, _TIMES * max(getattr(costs, each.name) for each in fields(costs)))
        self._messages, self._all = _CoreShare(over), _CoreShare(over)
        self.of_steps = self.of_requests = 0
        """Nanoseconds of what it was given: messages of steps, and all that each request brings."""

    @property
    def free(self) -> int:
        """When it has done all that it was given."""
        return max(self._told, self._latest)

    def reads(self, now: int) -> int:
        """A request comes; when the engine has it, which is not before those that came earlier."""
        self._read = max(self._read, self._serve(now, self._costs.request))
        return self._read

    def hears(self, now: int) -> None:
        """A step is over, whose tokens follow."""
        self.of_steps += self._costs.step
        self._tell(now, self._costs.step)

    def writes(self, *, first: bool = False) -> int:
        """A token of that step; when its client has it. first: of its answer."""
        self.of_requests += self._costs.token
        self._tell(self._told, self._costs.token)
        return self._serve(self._told, self._costs.first) if first and self._costs.first else self._told

    def closes(self) -> None:
        """The token was an answer's last."""
        self._serve(self._told, self._costs.answer)

    def _tell(self, now: int, cost: int) -> None:
        for share in (self._messages, self._all):
            share.add(now, cost)
        self._told = max(self._told, now) + cost

    def _serve(self, now: int, cost: int) -> int:
        """When something that a request takes is done: after what others took, in what messages leave of the core; and
        no sooner than where all share it, in cost / (1 - share taken) (Kleinrock, Queueing Systems 2, 4.4).
        """
        shared = now + self._all.stretched(now, cost)
        self._asked = max(self._asked, now) + self._messages.stretched(now, cost)
        self.of_requests += cost
        self._all.add(now, cost)
        done = max(self._asked, shared)
        self._latest = max(self._latest, done)
        return done


class _CoreShare:
    """The share of the core that some work took lately."""

    def __init__(self, over: float) -> None:
        """over: nanoseconds that are averaged."""
        self._over, self._share, self._at = over, 0.0, 0

    def add(self, now: int, cost: int) -> None:
        """So much more of it."""
        self._share, self._at = self._of(now) + cost / self._over, max(self._at, now)

    def stretched(self, now: int, cost: int) -> int:
        """What a cost becomes in the rest."""
        return round(cost / (1 - min(_MOST, self._of(now))))

    def _of(self, now: int) -> float:
        return self._share * math.exp(min(0, self._at - now) / self._over)


def parse_between(text: str) -> HostOverhead:
    """Of `110us`, `110us+20us/sequence+330us/request+400us/idle+300us/after`. Raises ValueError."""
    form = "110us+20us/sequence+330us/request+400us/idle+300us/after"
    found = _costs(text, "--between-steps", ("step", "sequence", "request", "idle", "after"), form)
    return HostOverhead(**found)


def parse_front(text: str) -> ApiServerOverhead:
    """Of `0.8ms/request+190us/step+90us/token+1.2ms/first+1.4ms/answer`. Raises ValueError."""
    form = "0.8ms/request+190us/step+90us/token+1.2ms/first+1.4ms/answer"
    return ApiServerOverhead(**_costs(text, "--front", ("", "request", "step", "token", "first", "answer"), form))


def _costs(text: str, option: str, names: tuple[str, ...], form: str) -> Mapping[str, int]:
    """Nanoseconds by what they are for; a time alone is for the first of `names`."""
    found: dict[str, int] = {}
    for part in text.split("+"):
        time, slash, name = part.strip().partition("/")
        name, cost = name if slash else names[0], parse_time(time)
        if cost is None or name not in names or not name:
            raise ValueError(f"{option} has {part.strip()!r}; write it like {form}")
        if name in found:
            raise ValueError(f"{option} says {name} twice; say it once")
        if cost > _LONGEST:
            raise ValueError(f"{option} has {part.strip()!r}, which is more than an hour; write it like {form}")
        found[name] = cost
    return found
