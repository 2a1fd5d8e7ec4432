"""Admission control: a bounded queue in front of the engine that rejects requests at once when it is full.

A rejected client learns when to retry. The bound does not lower throughput: it rejects requests that would wait until
their queue timeout, before they cost anything (vllm#49445, kaito#2205). Prompt tokens are bounded as well as requests,
because one request may need as much work as a thousand others.
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
"""The upper bound of Retry-After in seconds; openai-python gives up at more than 120."""


class RequestQueue:
    """The counter of requests in the server, where each choice takes one place (n = 8 takes eight).

    Its bounds are `capacity`, the choices that may be in the server at once, and `tokens`, the prompt tokens that may
    wait for their first step. A request is never rejected for its tokens if no other waits.
    """

    def __init__(self, info: EngineInfo, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty admission queue for an engine.

        Args:
            info: The engine's capacity.
            settings: The bounds of the queue.
            clock: Returns the current time in seconds.
        """
        self._settings = settings
        self.resize(info)
        self.draining = False
        self._inside: dict[InFlightRequest, None] = {}
        self._retry = RetryAfter(clock)

    def resize(self, info: EngineInfo) -> None:
        """Recompute the bounds for an engine, or for the present number of replicas."""
        queued, tokens = self._settings.queued_requests, self._settings.queued_tokens
        self.capacity = info.requests + (4 * info.requests if queued is None else queued)
        self.tokens = 2 * info.capacity * info.replicas if tokens is None else tokens

    def admit(self, live: InFlightRequest) -> None:
        """Admit a request to the server, or reject it with an error.

        Raises:
            ApiError: If it has more choices than the queue has places (400), the queue is full (429), or the server is
                shutting down (503).
        """
        if self.draining:
            raise shutting_down()
        if (choices := live.generation.choices) > self.capacity:
            raise invalid(
                f"the request has {choices} choices (prompts times n), but this server queues at most {self.capacity}: "
                "send fewer per request, or start the server with a larger --max-queued-requests",
                code="too_many_choices",
            )
        if live.spec.params.n > self.capacity - sum(other.spec.params.n for other in self._inside):
            raise self._retry.full("requests", "queue_full")
        waiting = [other.prompt_tokens for other in self._inside if not (other.begun or other.tokens)]
        if waiting and sum(waiting) + live.prompt_tokens > self.tokens:
            raise self._retry.full("prompt tokens", "queue_tokens")
        self._inside[live] = None

    def leave(self, live: InFlightRequest) -> None:
        """Remove a request that has ended, which frees its places in the queue."""
        del self._inside[live]
        self._retry.left()


class RetryAfter:
    """An estimate of when a place becomes free for a rejected request, from the rate at which requests leave.

    Rejected requests get retry times one departure interval apart, so that they do not all return at once and fail
    again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._departures: deque[float] = deque(maxlen=32)
        self._last_turn = -math.inf

    def left(self) -> None:
        """Record that a request has left the server, for the estimate of the departure rate."""
        self._departures.append(self._clock())

    def full(self, what: str, code: str) -> ApiError:
        """Return the 429 error for a full queue, which tells the client when to retry."""
        seconds = min(math.ceil(self.next()), MAX_RETRY_SECONDS)
        return ApiError(
            429,
            f"too many {what} are waiting already: try again in {seconds} s",
            code=code,
            headers={"Retry-After": str(seconds)},
        )

    def next(self) -> float:
        """Return the seconds until the next rejected request should retry, at least 1."""
        now = self._clock()
        self._last_turn = max(now, self._last_turn) + self._interval(now)
        return max(1.0, self._last_turn - now)

    def _interval(self, now: float) -> float:
        """Return the mean seconds between departures of the last minute; 1 if there were fewer than two."""
        recent = [at for at in self._departures if now - at <= MAX_RETRY_SECONDS]
        return (now - recent[0]) / len(recent) if len(recent) >= 2 else 1.0


def shutting_down() -> ApiError:
    """Return the 503 error for every request that arrives or is unfinished while the server stops.

    It has a Retry-After header, because another server may take the request.
    """
    return ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
