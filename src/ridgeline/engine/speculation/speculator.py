"""Speculator: what the engine has of speculation. Before a step, which guesses it may run; after it, how right they
were.
"""

import logging
from collections.abc import Iterable, Sequence

from ridgeline.engine.events import describe_error
from ridgeline.engine.prompt_tokens import NamedPrompt
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Scheduler
from ridgeline.engine.speculation.acceptance import Acceptance, SpeculationGate
from ridgeline.engine.speculation.drafter import Drafter, DraftRequest
from ridgeline.engine.structured_output import OutputConstraint
from ridgeline.price.device import Device
from ridgeline.price.price import Price

logger = logging.getLogger(__name__)


class Speculator:
    """Asks a drafter for guesses, cuts off what cannot follow, and counts. A drafter that fails is asked no more.

    drafts, draft_tokens, accepted_tokens, accepted_at: as of Stats.
    """

    def __init__(self, drafter: Drafter, tokens: int, outputs: int, *, priced: bool = False) -> None:
        """tokens: most guesses of a request. outputs: how many ids are sampled from, the first of the vocabulary.
        priced: guess only where a gate says that it pays (`price_on`).
        """
        self.drafter, self.tokens, self.outputs, self.priced = drafter, tokens, outputs, priced
        self._gate: SpeculationGate | None = None
        self._failed = self._said = False
        self._acceptance = Acceptance()
        self._guesses: dict[Request, Sequence[int]] = {}
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self._accepted_at = [0] * tokens

    @property
    def accepted_at(self) -> tuple[int, ...]:
        """As of Stats."""
        return tuple(self._accepted_at)

    def price_on(self, price: Price, device: Device) -> None:
        """Predict steps of a model on a device from now on, where that decides."""
        if self.priced:
            self._gate = SpeculationGate(price, device)

    def guesses(self, scheduler: Scheduler) -> dict[Request, Sequence[int]]:
        """Guesses for the next step, by request; none where they are not predicted to pay."""
        if self.priced and self._gate is None:
            self._say_unpriced()
            return {}
        asks = [] if self._failed else list(self._asks(scheduler.running))
        found = dict(zip((ask.request for ask in asks), self._drafted(asks), strict=True))
        self._guesses = {request: own for request, all_of in found.items() if (own := self._fit(request, all_of))}
        if self._gate is None or not self._guesses:
            return self._guesses
        most = self._gate.most(scheduler, self._guesses, self._acceptance)
        return {request: own[:most] for request, own in self._guesses.items()} if most else {}

    def _drafted(self, asks: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        """A drafter's guesses. Requests do not need them: where it fails they go on without, and so do all after."""
        try:
            return self.drafter.draft(asks) if asks else ()
        except Exception as error:
            self._failed = True
            reason = describe_error(error)
            logger.warning("what guesses tokens has failed, and nothing is guessed any more: %s", reason)
            return [()] * len(asks)

    def _say_unpriced(self) -> None:
        """Once, that nothing will be guessed."""
        if not self._said:
            self._said = True
            logger.warning(
                "speculation is 'auto' and nothing is known of what steps take here: nothing is guessed; call "
                "engine.speculator.price_on(price, device), or give the method ngram"
            )

    def _asks(self, running: Iterable[Request]) -> Iterable[DraftRequest]:
        """Requests that have a token, from whose prompt no further choice is to start, and whose next one alone is
        missing. A step gives a token more than the guesses that are right.
        """
        for request in running:
            most = min(self.tokens, request.limit - request.output_length - 1)
            plain = request.spec.params.rules is None and request.scores is None
            ids = not isinstance(request.tokens.prompt, NamedPrompt)
            if most > 0 and request.output and request.known - request.computed == 1 and plain and ids:
                yield DraftRequest(request, most)

    def _fit(self, request: Request, guesses: Sequence[int]) -> Sequence[int]:
        """As many as may be followed by a token: the text ends with what ends it, and a form admits only its own."""
        ends = (
            place for place, token in enumerate(guesses) if token in request.stop_ids or not 0 <= token < self.outputs
        )
        guesses = guesses[: next(ends, len(guesses))]
        if guesses and isinstance(request.constraint, OutputConstraint):
            guesses = guesses[: request.constraint.admits(guesses)]
        return guesses

    def verified(self, request: Request, ran: int, tokens: Sequence[int]) -> None:
        """A step gave a request these tokens; `ran`: how many guesses it verified. Those that it did not run say
        something too: whether the first of them was right.
        """
        guesses = self._guesses.pop(request, ())
        right = 0
        for guess, token in zip(guesses[: max(ran, 1)], tokens, strict=False):
            if guess != token:
                break
            right += 1
        if ran:
            self.drafts += 1
            self.draft_tokens += ran
            self.accepted_tokens += right
            for place in range(right):
                self._accepted_at[place] += 1
        if guesses:
            self._acceptance.count(request.id, right, wrong=right < max(ran, 1))

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._guesses.pop(request, None)
        self._acceptance.forget(request.id)
        if not self._failed:
            self.drafter.forget(request.id)
