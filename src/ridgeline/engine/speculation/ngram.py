"""Guesses by prompt lookup: what followed a request's last tokens where they occurred before.

See A. Saxena, "Prompt Lookup Decoding", 2023.

Shapes: N known tokens, E places at which the last of them occurred before.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.request import Request
from ridgeline.engine.speculation.drafter import DraftRequest

Ids = NDArray[np.int64]


class NgramDrafter:
    """The drafter that guesses by prompt lookup: it copies what followed the same tokens before."""

    def __init__(self, longest: int, shortest: int) -> None:
        """Make a drafter that follows no request.

        Args:
            longest: Maximum number of last tokens to look up.
            shortest: Minimum number of last tokens to look up.
        """
        self.longest, self.shortest = longest, shortest
        self._texts: dict[int, _Text] = {}

    def draft(self, asks: Sequence[DraftRequest]) -> list[list[int]]:
        """Return guesses at the next tokens of each request."""
        return [self._guesses(request, most) for request, most in asks]

    def _guesses(self, request: Request, most: int) -> list[int]:
        text = self._texts.get(request.id)
        if text is None:
            text = self._texts[request.id] = _Text(request)
        guesses: list[int] = prompt_lookup(text.known(request), most, self.longest, self.shortest).tolist()
        return guesses

    def forget(self, request: int) -> None:
        """Drop the tokens of a request that has ended."""
        self._texts.pop(request, None)


class _Text:
    """A request's tokens as a numpy array, which grows with the sampled ones."""

    def __init__(self, request: Request) -> None:
        self._ids_N = np.array([*request.tokens], np.int64)
        self._count = len(self._ids_N)

    def known(self, request: Request) -> Ids:
        """Return all tokens of the request that are known now."""
        new = request.output[self._count - request.prompt_length :]
        if self._count + len(new) > len(self._ids_N):
            self._ids_N = np.concatenate((self._ids_N, np.zeros(max(64, len(self._ids_N)), np.int64)))
        self._ids_N[self._count : self._count + len(new)] = new
        self._count += len(new)
        return self._ids_N[: self._count]


def prompt_lookup(ids_N: Ids, most: int, longest: int, shortest: int) -> Ids:
    """Return up to `most` tokens that followed an earlier occurrence of the text's end.

    The longest end of `shortest` to `longest` tokens that occurred before counts. Of several places, the last one that
    `most` tokens follow is used, else the first, which the most tokens follow: in a loop, the tokens after the last
    place do not exist yet.
    """
    last = len(ids_N) - 1
    ends_E = np.flatnonzero(ids_N[:last] == ids_N[last])
    found_E = ends_E[:0]
    for size in range(1, min(longest, last) + 1):  # ends_E: places at which the last `size` tokens end
        if size >= shortest and len(ends_E):
            found_E = ends_E
        ends_E = ends_E[ends_E >= size]
        ends_E = ends_E[ids_N[ends_E - size] == ids_N[last - size]]
        if not len(ends_E):
            break
    if not len(found_E):
        return ids_N[:0]
    whole_E = found_E[found_E + most <= last]
    first = (whole_E[-1] if len(whole_E) else found_E[0]) + 1
    return ids_N[first : first + most]
