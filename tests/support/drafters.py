"""Drafters for tests: one that knows the answers and is wrong as often as it is told to be."""

import random
from collections.abc import Callable, Sequence

from ridgeline.engine.request import Request
from ridgeline.engine.speculation.drafter import DraftRequest


class ReplayDrafter:
    """Guesses what an answer is known to go on with, each guess right with the same probability, whatever the others
    are; of a request whose answer nobody knows, anything."""

    def __init__(
        self, answer: Callable[[Request], Sequence[int] | None], acceptance: float, vocabulary: int, seed: int = 0
    ) -> None:
        self._answer, self._acceptance, self._vocabulary = answer, acceptance, vocabulary
        self._draw = random.Random(seed)
        self.asked: set[int] = set()
        self.forgotten: set[int] = set()

    def draft(self, asks: Sequence[DraftRequest]) -> list[list[int]]:
        """As Drafter.draft."""
        self.asked |= {ask.request.id for ask in asks}
        return [[self._guess(token) for token in self._known(ask)] for ask in asks]

    def forget(self, request: int) -> None:
        """As Drafter.forget."""
        self.forgotten.add(request)

    def _known(self, ask: DraftRequest) -> Sequence[int]:
        answer, begun = self._answer(ask.request), ask.request.output_length
        if answer is None:
            return [self._draw.randrange(self._vocabulary) for _ in range(ask.most)]
        return answer[begun : begun + ask.most]

    def _guess(self, token: int) -> int:
        if self._draw.random() < self._acceptance:
            return token
        return (token + self._draw.randrange(1, self._vocabulary)) % self._vocabulary
