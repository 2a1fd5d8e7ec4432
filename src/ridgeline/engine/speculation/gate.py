"""Gate: how many guesses a step should verify, by what it is predicted to take and to give."""

from collections.abc import Mapping, Sequence

from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Scheduler
from ridgeline.engine.speculation.acceptance import Acceptance, expected_tokens
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.price import Price

_LEAST_GAIN = 1.02
"""Of tokens a second: less is lost in what a prediction is off by."""


class Gate:
    """Of a model on a device."""

    def __init__(self, price: Price, device: Device) -> None:
        self._price, self._device = price, device

    def most(self, scheduler: Scheduler, guesses: Mapping[Request, Sequence[int]], acceptance: Acceptance) -> int:
        """Most guesses of a request with which the next step is predicted to give the most tokens a second; 0 where
        none at all gives nearly as many."""
        decodes = [request for request in scheduler.running if request.known - request.computed == 1]
        rates = {request: acceptance.of(request.id) for request in guesses}
        prompts = _prompts(scheduler, len(decodes))
        longest = max(map(len, guesses.values()))
        best, most = 0.0, 0
        for count in range(longest + 1):
            segments, tokens = list(prompts), 0.0
            for request in decodes:
                ran = min(count, len(guesses.get(request, ())))
                segments.append(Segment(1 + ran, request.known + ran, len(request.spec.encoder)))
                tokens += expected_tokens(rates[request], ran) if ran else 1.0
            rows = sum(segment.q_len for segment in segments[len(prompts) :]) + len(prompts)
            rate = tokens / self._price.on(self._device, Work.of(segments, self._price.reaches, rows)).expected
            if rate > best * (_LEAST_GAIN if most == 0 and count else 1.0):
                best, most = rate, count
        return most


def _prompts(scheduler: Scheduler, decodes: int) -> list[Segment]:
    """What the next step runs of prompts, about: as much as its budget leaves, of those that are not through."""
    missing = [request for request in scheduler.running if request.known - request.computed > 1]
    room = scheduler.limits.tokens - decodes
    segments: list[Segment] = []
    for request in [*missing, *scheduler.waiting]:
        if room <= 0 or len(segments) + decodes >= scheduler.limits.requests:
            break
        count = min(room, request.known - request.computed, scheduler.limits.most_of_one)
        segments.append(Segment(count, request.computed + count, len(request.spec.encoder)))
        room -= count
    return segments
