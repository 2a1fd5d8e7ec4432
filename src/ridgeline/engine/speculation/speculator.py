"""The speculator, through which an engine uses speculative decoding.

Before a step it returns the guesses to verify; after the step it counts how many were right.
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
    """The user of a drafter's guesses, which removes unusable guesses and counts guessed and accepted tokens.

    A drafter that fails is not used again. `drafts`, `draft_tokens`, `accepted_tokens` and `accepted_at` are as in
    Stats.
    """

    def __init__(self, drafter: Drafter, tokens: int, outputs: int, *, priced: bool = False) -> None:
        """Make a speculator.

        Args:
            drafter: Guesses the tokens.
            tokens: Maximum number of guesses per request.
            outputs: Number of ids that can be sampled, the first of the vocabulary.
            priced: Whether to guess only if a gate predicts that it pays (`price_on`).
        """
        self.drafter, self.tokens, self.outputs, self.priced = drafter, tokens, outputs, priced
        self._gate: SpeculationGate | None = None
        self._failed = self._was_reported = False
        self._acceptance = Acceptance()
        self._guesses: dict[Request, Sequence[int]] = {}
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self._accepted_at = [0] * tokens

    @property
    def accepted_at(self) -> tuple[int, ...]:
        """The number of right guesses at each place among the guesses of a step."""
        return tuple(self._accepted_at)

    def price_on(self, price: Price, device: Device) -> None:
        """Use predictions for a model on a device from now on, if they decide whether to guess."""
        if self.priced:
            self._gate = SpeculationGate(price, device)

    def guesses(self, scheduler: Scheduler) -> dict[Request, Sequence[int]]:
        """Return guesses for the next step, by request; none if they are not predicted to pay."""
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
        """Return the drafter's guesses. If the drafter fails, log it and continue without guesses from now on."""
        try:
            return self.drafter.draft(asks) if asks else ()
        except Exception as error:
            self._failed = True
            reason = describe_error(error)
            logger.warning("the drafter failed, so speculative decoding is off until the engine restarts: %s", reason)
            return [()] * len(asks)

    def _say_unpriced(self) -> None:
        """Log once that nothing will be guessed, because step times cannot be predicted."""
        if not self._was_reported:
            self._was_reported = True
            logger.warning(
                "speculation is 'auto', but step times cannot be predicted on this device, so no tokens are "
                "drafted: call engine.speculator.price_on(price, device), or use the method ngram"
            )

    def _asks(self, running: Iterable[Request]) -> Iterable[DraftRequest]:
        """Yield the requests to guess for: those that decode, with at least two tokens to go.

        A step samples one token more than the right guesses. Requests with token rules, prompt scores or a prompt
        without ids are left out.
        """
        for request in running:
            most = min(self.tokens, request.limit - request.output_length - 1)
            plain = request.spec.params.rules is None and request.scores is None
            ids = not isinstance(request.tokens.prompt, NamedPrompt)
            if most > 0 and request.output and request.known - request.computed == 1 and plain and ids:
                yield DraftRequest(request, most)

    def _fit(self, request: Request, guesses: Sequence[int]) -> Sequence[int]:
        """Return the guesses before the first that ends the text, cannot be sampled, or breaks a structured output.

        They stop before a token that ends the text, that cannot be sampled, or that a structured output does not admit.
        """
        ends = (
            place for place, token in enumerate(guesses) if token in request.stop_ids or not 0 <= token < self.outputs
        )
        guesses = guesses[: next(ends, len(guesses))]
        if guesses and isinstance(request.constraint, OutputConstraint):
            guesses = guesses[: request.constraint.admits(guesses)]
        return guesses

    def verified(self, request: Request, ran: int, tokens: Sequence[int]) -> None:
        """Update the counters of right guesses after a step.

        Guesses that the step did not run also count towards the acceptance rate: the sampled token shows whether the
        first was right.

        Args:
            request: The request.
            ran: Number of guesses that the step verified.
            tokens: The tokens that the step sampled.
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
        """Drop the guesses and rates of a request that has ended."""
        self._guesses.pop(request, None)
        self._acceptance.forget(request.id)
        if not self._failed:
            self.drafter.forget(request.id)
