"""The interface of drafters, which guess the next tokens of requests."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ridgeline.engine.request import Request


class DraftRequest(NamedTuple):
    """A request whose next tokens a drafter should guess."""

    request: Request
    """The request whose next tokens a drafter should guess."""
    most: int
    """The maximum number of tokens to guess."""


class Drafter(Protocol):
    """The interface of an object that guesses tokens. A wrong guess costs time, never a token."""

    def draft(self, asks: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        """Return guesses at the next tokens of each request: at most as many as it asks for, or none."""

    def forget(self, request: int) -> None:
        """Drop the state of a request that has ended; ignore an unknown one."""
