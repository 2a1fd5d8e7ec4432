"""The observed acceptance rate of guesses, and the gate that uses it to decide how many guesses a step verifies."""

from collections.abc import Mapping, Sequence

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Scheduler
from ridgeline.price.device import Device
from ridgeline.price.price import Price

_MEMORY = 0.95
"""The factor by which each new guess reduces the weight of older guesses in an acceptance rate.

A text that becomes predictable is noticed within some twenty guesses.
"""
_PRIOR = 2.0
"""The number of guesses that the rate of all requests counts for in a request's own rate."""

_LEAST_GAIN = 1.02
"""The factor in tokens per second that speculation must promise; less is within the error of the prediction."""


class Acceptance:
    """The acceptance rate of each request, and that of all requests, from which the rate of a new request is estimated.

    A guess counts only if the guesses before it were right.
    """

    def __init__(self) -> None:
        self._all = _DecayedRate(0.5 * _PRIOR, _PRIOR)
        self._each: dict[int, _DecayedRate] = {}

    def count(self, request: int, right: int, *, wrong: bool) -> None:
        """Record a step's guesses for a request.

        Args:
            request: The id of the request.
            right: Number of guesses in a row that were right.
            wrong: Whether the next one was wrong.
        """
        for seen in (self._all, self._each.setdefault(request, _DecayedRate(0.0, 0.0))):
            for _ in range(right):
                seen.add(1.0)
            if wrong:
                seen.add(0.0)

    def of(self, request: int) -> float:
        """Return the expected acceptance rate of a request's guesses, given that the guesses before are right."""
        own = self._each.get(request, _DecayedRate(0.0, 0.0))
        prior = self._all.right / self._all.count
        return (own.right + _PRIOR * prior) / (own.count + _PRIOR)

    def forget(self, request: int) -> None:
        """Drop the acceptance rate of a request that has ended."""
        self._each.pop(request, None)


class _DecayedRate:
    """The numbers of right guesses and of all guesses, in which old ones count less."""

    __slots__ = ("count", "right")

    def __init__(self, right: float, count: float) -> None:
        self.right, self.count = right, count

    def add(self, right: float) -> None:
        self.right, self.count = _MEMORY * self.right + right, _MEMORY * self.count + 1.0


def expected_tokens(acceptance: float, guesses: int) -> float:
    """Return the expected tokens of a step that verifies this number of guesses: one, plus one for each right guess."""
    return sum(acceptance**place for place in range(guesses + 1))


class SpeculationGate:
    """The gate that decides how many guesses per request are worth verifying in a step, for a model on a device."""

    def __init__(self, price: Price, device: Device) -> None:
        self._price, self._device = price, device

    def most(self, scheduler: Scheduler, guesses: Mapping[Request, Sequence[int]], acceptance: Acceptance) -> int:
        """Return the number of guesses per request with which the next step should give the most tokens per second.

        It is 0 if no guesses at all give nearly as many.

        Args:
            scheduler: Knows the requests of the next step.
            guesses: The guesses for each request.
            acceptance: The acceptance rates.
        """
        decodes = [request for request in scheduler.running if request.known - request.computed == 1]
        rates = {request: acceptance.of(request.id) for request in guesses}
        prompts = _prompts(scheduler, len(decodes))
        longest = max(map(len, guesses.values()))
        best, most = 0.0, 0
        for count in range(longest + 1):
            segments, tokens = list(prompts), 0.0
            for request in decodes:
                ran = min(count, len(guesses.get(request, ())))
                segments.append(StepSegment(1 + ran, request.known + ran, len(request.spec.encoder)))
                tokens += expected_tokens(rates[request], ran) if ran else 1.0
            rows = sum(segment.q_len for segment in segments[len(prompts) :]) + len(prompts)
            rate = tokens / self._price.price_step(self._device, Work.of(segments, self._price.reaches, rows)).expected
            if rate > best * (_LEAST_GAIN if most == 0 and count else 1.0):
                best, most = rate, count
        return most


def _prompts(scheduler: Scheduler, decodes: int) -> list[StepSegment]:
    """Return about which prompt positions the next step runs: as many as the decoding requests leave budget for."""
    missing = [request for request in scheduler.running if request.known - request.computed > 1]
    room = scheduler.limits.tokens - decodes
    segments: list[StepSegment] = []
    for request in [*missing, *scheduler.waiting]:
        if room <= 0 or len(segments) + decodes >= scheduler.limits.requests:
            break
        count = min(room, request.known - request.computed, scheduler.limits.max_request_tokens)
        segments.append(StepSegment(count, request.computed + count, len(request.spec.encoder)))
        room -= count
    return segments
