"""Acceptance: how often guesses are right, as far as that was seen; and the gate, which goes by it: how many guesses a
step should verify.
"""

from collections.abc import Mapping, Sequence

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Scheduler
from ridgeline.price.device import Device
from ridgeline.price.price import Price

_MEMORY = 0.95
"""What a guess counts for when the next one has been seen: a text that becomes predictable is noticed in some
twenty."""
_PRIOR = 2.0
"""Guesses that a request's own experience has to outweigh."""

_LEAST_GAIN = 1.02
"""Of tokens a second: less is lost in what a prediction is off by."""


class Acceptance:
    """Of each request, and of all, from which new ones are judged. A guess counts where those before it were right."""

    def __init__(self) -> None:
        self._all = _DecayedRate(0.5 * _PRIOR, _PRIOR)
        self._each: dict[int, _DecayedRate] = {}

    def count(self, request: int, right: int, *, wrong: bool) -> None:
        """So many guesses in a row were right; wrong: and the next one was not."""
        for seen in (self._all, self._each.setdefault(request, _DecayedRate(0.0, 0.0))):
            for _ in range(right):
                seen.add(1.0)
            if wrong:
                seen.add(0.0)

    def of(self, request: int) -> float:
        """The share of a request's guesses that are expected to be right, each given that those before it are."""
        own = self._each.get(request, _DecayedRate(0.0, 0.0))
        prior = self._all.right / self._all.count
        return (own.right + _PRIOR * prior) / (own.count + _PRIOR)

    def forget(self, request: int) -> None:
        """A request has ended."""
        self._each.pop(request, None)


class _DecayedRate:
    """right, count: of guesses, old ones counting less."""

    __slots__ = ("count", "right")

    def __init__(self, right: float, count: float) -> None:
        self.right, self.count = right, count

    def add(self, right: float) -> None:
        self.right, self.count = _MEMORY * self.right + right, _MEMORY * self.count + 1.0


def expected_tokens(acceptance: float, guesses: int) -> float:
    """Tokens that a step gives which verifies so many guesses: one, and one more for each that is right."""
    return sum(acceptance**place for place in range(guesses + 1))


class SpeculationGate:
    """Of a model on a device."""

    def __init__(self, price: Price, device: Device) -> None:
        self._price, self._device = price, device

    def most(self, scheduler: Scheduler, guesses: Mapping[Request, Sequence[int]], acceptance: Acceptance) -> int:
        """Most guesses of a request with which the next step is predicted to give the most tokens a second; 0 where
        none at all gives nearly as many.
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
            rate = tokens / self._price.on(self._device, Work.of(segments, self._price.reaches, rows)).expected
            if rate > best * (_LEAST_GAIN if most == 0 and count else 1.0):
                best, most = rate, count
        return most


def _prompts(scheduler: Scheduler, decodes: int) -> list[StepSegment]:
    """What the next step runs of prompts, about: as much as its budget leaves, of those that are not through."""
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
