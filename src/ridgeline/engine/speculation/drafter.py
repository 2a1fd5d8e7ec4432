"""Drafter: what the engine asks of whoever guesses the next tokens of requests."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ridgeline.engine.request import Request


class DraftRequest(NamedTuple):
    """A request whose next tokens are to be guessed, and how many at most."""

    request: Request
    most: int


class Drafter(Protocol):
    """Guesses tokens. A guess that is wrong costs time, never a token."""

    def draft(self, asks: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        """Guesses at the tokens that follow those that each request knows: at most as many as it asks for, also
        none.
        """
        ...

    def forget(self, request: int) -> None:
        """A request has ended; one that nobody has asked for is no error."""
        ...
