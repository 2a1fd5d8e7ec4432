"""Admission: a bounded queue before the engine. Whoever finds it full is told so at once, and when to come back.

A bound does not lower throughput: what would wait longer than it may is refused before it has cost anything
(vllm#49445, kaito#2205). Prompt tokens are bounded beside requests because one request may bring as much work as a
thousand.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from ridgeline.engine.worker.engine_messages import EngineInfo
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.server_settings import ServerSettings

MAX_RETRY_SECONDS = 60
"""Of Retry-After. openai-python gives up at more than 120."""


class RequestQueue:
    """Counts requests in and out. A choice is a place: n = 8 takes eight.

    places: choices that may be in the server. tokens: prompt tokens that may wait for their first step.
    """

    def __init__(self, info: EngineInfo, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._settings = settings
        self.resize(info)
        self.draining = False
        self._inside: dict[InFlightRequest, None] = {}
        self._retry = RetryAfter(clock)

    def resize(self, info: EngineInfo) -> None:
        """Places for an engine, or for as many as there are now."""
        queued, tokens = self._settings.queued_requests, self._settings.queued_tokens
        self.places = info.requests + (4 * info.requests if queued is None else queued)
        self.tokens = 2 * info.capacity * info.replicas if tokens is None else tokens

    def admit(self, live: InFlightRequest) -> None:
        """Count a request in. Raises ApiError: 400 where it asks for more than there are places, 429 where the queue is
        full, 503 where the server is to end.
        """
        if self.draining:
            raise shutting_down()
        if (choices := live.generation.choices) > self.places:
            raise invalid(
                f"{choices} choices, prompts times n, are asked at once, and this server has places for "
                f"{self.places}: ask for fewer at a time, or start it with a larger --max-queued-requests",
                code="too_many_choices",
            )
        if live.spec.params.n > self.places - sum(other.spec.params.n for other in self._inside):
            raise self._retry.full("requests", "queue_full")
        waiting = [other.prompt_tokens for other in self._inside if not (other.begun or other.tokens)]
        if waiting and sum(waiting) + live.prompt_tokens > self.tokens:
            raise self._retry.full("prompt tokens", "queue_tokens")
        self._inside[live] = None

    def leave(self, live: InFlightRequest) -> None:
        """Count it out."""
        del self._inside[live]
        self._retry.left()


class RetryAfter:
    """When a place becomes free for the next of those that were sent away: one each time that a request leaves.

    Those sent away are given turns one after the other, as far apart as requests have left lately, so that they do not
    all come back at once to be sent away again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._departures: deque[float] = deque(maxlen=32)
        self._last_turn = -math.inf

    def left(self) -> None:
        """A request has left."""
        self._departures.append(self._clock())

    def full(self, what: str, code: str) -> ApiError:
        """The answer to one more for whom there is no room: it is told when its turn is."""
        seconds = min(math.ceil(self.next()), MAX_RETRY_SECONDS)
        return ApiError(
            429,
            f"too many {what} wait already; try again in {seconds} s",
            kind="rate_limit_error",
            code=code,
            headers={"Retry-After": str(seconds)},
        )

    def next(self) -> float:
        """Seconds until the turn of one more, at least 1: below it nothing is known."""
        now = self._clock()
        self._last_turn = max(now, self._last_turn) + self._interval(now)
        return max(1.0, self._last_turn - now)

    def _interval(self, now: float) -> float:
        """Seconds between departures, of those in the last minute. Before there are two, a second is a guess."""
        recent = [at for at in self._departures if now - at <= MAX_RETRY_SECONDS]
        return (now - recent[0]) / len(recent) if len(recent) >= 2 else 1.0


def shutting_down() -> ApiError:
    """The answer to whoever comes, or is still there, when the server ends. Another server may take the request."""
    return ApiError(
        503,
        "the server is shutting down",
        kind="server_error",
        code="shutting_down",
        headers={"Retry-After": "5"},
    )
