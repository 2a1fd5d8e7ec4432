"""Models of a server's CPU time outside the engine's steps: host time between steps, and the API server's core.

The costs are measured on an idle server and given as options; nothing is fitted to a load. Between two steps, the
engine process receives new requests and publishes sampled tokens. The API server has a core of its own: it parses
requests before the engine gets them, writes tokens to clients after each step, and starts and finishes responses. Step
messages are short and are handled first come, first served. The work for a request is divided into many small parts
between them, so it takes twice as long if half of the core is busy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from ridgeline.util.times import parse_time

_LONGEST = round(3600e9)  # nanoseconds


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs in nanoseconds; each field of a subclass is one."""

    def times(self, factor: float) -> Self:
        """Return the overhead with all costs multiplied by a factor."""
        return replace(self, **{each.name: round(getattr(self, each.name) * factor) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class HostOverhead(_Costs):
    """The nanoseconds of host time between two steps."""

    step: int = 0
    """The host time before each engine step, regardless of the step's content."""
    sequence: int = 0
    """The additional host time per sequence of the next engine step."""
    request: int = 0
    """The additional host time per request that is new in the next engine step."""
    idle: int = 0
    """The additional host time of an engine step before which the engine was idle."""
    after: int = 0
    """The additional host time of a step without new requests right after one with new requests, without idle time."""

    def of(self, sequences: int, requests: int, *, before: int = 0, waited: bool = False) -> int:
        """Return the nanoseconds of host time before a step.

        Args:
            sequences: The sequences of the step.
            requests: The number of these that are new.
            before: The number of new requests in the previous step.
            waited: Whether the engine was idle before the step.
        """
        more = self.after if before and not requests else 0
        return self.step + self.sequence * sequences + self.request * requests + (self.idle if waited else more)

    @property
    def counts(self) -> bool:
        """Whether the overhead depends on the number of new requests."""
        return bool(self.request or self.after)


@dataclass(frozen=True, slots=True)
class ApiServerOverhead(_Costs):
    """The nanoseconds of CPU time on the API server's core."""

    request: int = 0
    """The API server's CPU time for a request before the engine gets it."""
    step: int = 0
    """The API server's CPU time for the messages of an engine step."""
    token: int = 0
    """The API server's CPU time per token until the client has it."""
    first: int = 0
    """The API server's additional CPU time for the first token of a response."""
    answer: int = 0
    """The API server's CPU time for finishing a response."""


_WHILE = 100e6  # the minimum time constant of the core's average utilization, in nanoseconds
_TIMES = 20  # the minimum time constant in units of the longest cost, so that no single request dominates
_MOST = 0.95  # the highest utilization that the queueing formula uses


class ApiServerCore:
    """A simulated CPU core of the API server: a queue that computes when each piece of work completes."""

    def __init__(self, costs: ApiServerOverhead) -> None:
        self._costs = costs
        self._steps_done = self._requests_done = 0  # when the messages of steps are done, and the work of requests
        self._read = self._latest = 0  # when the last request is parsed, and when all work is done
        over = max(_WHILE, _TIMES * max(getattr(costs, each.name) for each in fields(costs)))
        self._messages, self._all = _CoreShare(over), _CoreShare(over)
        self.of_steps = self.of_requests = 0
        """Total nanoseconds of work for step messages (`of_steps`) and for requests (`of_requests`)."""

    @property
    def free(self) -> int:
        """The time at which all queued work is complete."""
        return max(self._steps_done, self._latest)

    def parse_request(self, now: int) -> int:
        """Parse a request that arrives at `now`; return when the engine gets it, in order of arrival."""
        self._read = max(self._read, self._serve(now, self._costs.request))
        return self._read

    def handle_step(self, now: int) -> None:
        """Add the API server's work for the message of an engine step that ended at `now`; its tokens follow."""
        self.of_steps += self._costs.step
        self._add_message_work(now, self._costs.step)

    def write_token(self, *, first: bool = False) -> int:
        """Add the work of writing a token of the latest step, and return when its client has it.

        Args:
            first: Whether it is the first token of its response.
        """
        self.of_requests += self._costs.token
        self._add_message_work(self._steps_done, self._costs.token)
        return self._serve(self._steps_done, self._costs.first) if first and self._costs.first else self._steps_done

    def finish_response(self) -> None:
        """Finish a response whose last token was just written."""
        self._serve(self._steps_done, self._costs.answer)

    def _add_message_work(self, now: int, cost: int) -> None:
        for share in (self._messages, self._all):
            share.add(now, cost)
        self._steps_done = max(self._steps_done, now) + cost

    def _serve(self, now: int, cost: int) -> int:
        """Add work for a request to the API server's core, and return when it completes.

        Requests share what the messages leave of the core. The work completes after the requests' earlier work, and no
        sooner than under processor sharing of the whole core: cost / (1 - utilization) (Kleinrock, Queueing Systems 2,
        4.4).
        """
        shared = now + self._all.stretched(now, cost)
        self._requests_done = max(self._requests_done, now) + self._messages.stretched(now, cost)
        self.of_requests += cost
        self._all.add(now, cost)
        done = max(self._requests_done, shared)
        self._latest = max(self._latest, done)
        return done


class _CoreShare:
    """The recent utilization of the core by one kind of work or by all work, as an exponentially weighted average."""

    def __init__(self, over: float) -> None:
        """Create an average over a time constant in nanoseconds."""
        self._over, self._share, self._at = over, 0.0, 0

    def add(self, now: int, cost: int) -> None:
        """Count work of `cost` nanoseconds, which arrives at time `now`, in the average utilization of the core."""
        self._share, self._at = self._of(now) + cost / self._over, max(self._at, now)

    def stretched(self, now: int, cost: int) -> int:
        """Return the nanoseconds that work of `cost` nanoseconds takes at time `now` on the core's remaining share."""
        return round(cost / (1 - min(_MOST, self._of(now))))

    def _of(self, now: int) -> float:
        return self._share * math.exp(min(0, self._at - now) / self._over)


def parse_host_overhead(text: str) -> HostOverhead:
    """Parse a host overhead: `110us`, or `110us+20us/sequence+330us/request+400us/idle+300us/after`.

    Raises:
        ValueError: If the text is malformed.
    """
    form = "110us+20us/sequence+330us/request+400us/idle+300us/after"
    found = _costs(text, "--between-steps", ("step", "sequence", "request", "idle", "after"), form)
    return HostOverhead(**found)


def parse_api_server_overhead(text: str) -> ApiServerOverhead:
    """Parse an API server overhead, such as `0.8ms/request+190us/step+90us/token+1.2ms/first+1.4ms/answer`.

    Raises:
        ValueError: If the text is malformed.
    """
    form = "0.8ms/request+190us/step+90us/token+1.2ms/first+1.4ms/answer"
    return ApiServerOverhead(**_costs(text, "--front", ("", "request", "step", "token", "first", "answer"), form))


def _costs(text: str, option: str, names: tuple[str, ...], form: str) -> Mapping[str, int]:
    """Return nanoseconds by cost name; a time without a name belongs to the first of `names`, if that is not empty.

    Raises:
        ValueError: If the text is malformed, repeats a name, or has a time of more than an hour.
    """
    found: dict[str, int] = {}
    for part in text.split("+"):
        time, slash, name = part.strip().partition("/")
        name, cost = name if slash else names[0], parse_time(time)
        if cost is None or name not in names or not name:
            raise ValueError(f"{option} has {part.strip()!r}; write it like {form}")
        if name in found:
            raise ValueError(f"{option} has {name} twice; give it once")
        if cost > _LONGEST:
            raise ValueError(f"{option} has {part.strip()!r}, which is more than an hour; write it like {form}")
        found[name] = cost
    return found
