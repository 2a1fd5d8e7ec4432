"""Detection of stop strings in a stream of generated text."""

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """The text that one step of stop-string matching releases."""

    safe: str
    """The text that can be shown to the client: the text before any possible stop string.

    The matched stop string follows at its end if the matcher includes stop strings.
    """
    matched: str | None = None
    """The stop string that ended the text, or None."""
    rest: str = ""
    """The text that was pushed already but follows the matched stop string."""


class StopMatcher:
    """A matcher that cuts streamed text exactly before the earliest stop string, however the text is split into pushes.

    If several stop strings start at the same position, the shortest wins. A complete stop string waits while another
    one that starts earlier may still become complete. The search is Knuth-Morris-Pratt: each character costs a few
    operations per stop string, and almost nothing while no stop string has begun. The matcher holds back at most as
    many characters as the longest stop string has.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stops:
            raise ValueError("an empty stop string would stop before the first character; remove it")
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include_stop
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._failures = [_failure(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # length of the longest prefix of each stop that ends the text
        self._held = ""
        self._length = 0  # characters read so far
        self._found: tuple[int, int] | None = None  # (start in the whole text, index of the stop)
        self.matched: str | None = None
        self.end = 0
        """The number of characters from the start of the text to the end of the matched stop string."""

    def push(self, text: str, *, may_end: bool = True) -> StopResult:
        """Search more generated text for stop strings and return the text that is safe to show.

        After a match no more text can be pushed.

        Args:
            text: The next part of the stream.
            may_end: Whether a stop string can end in this text. A stop string that ends in text pushed with False never
                matches.
        """
        assert self.matched is None, "text after a stop string"
        if not any(self._states) and self._firsts.isdisjoint(text):
            self._length += len(text)
            return StopResult(text)
        held = self._held + text
        for at, character in enumerate(text):
            self._advance(character, may_end)
            if self._found and self._earliest_open() >= self._found[0]:
                return self._match(held, text[at + 1 :])
        start = min(self._earliest_open(), self._found[0] if self._found else self._length)
        keep = self._length - start
        self._held = held[len(held) - keep :]
        return StopResult(held[: len(held) - keep])

    def flush(self) -> StopResult:
        """Release the text that is held back for possible stop strings at the end of the stream.

        A complete stop string that was waiting for an earlier one matches here and cuts the text.
        """
        assert self.matched is None, "flush after a stop string"
        held, self._held = self._held, ""
        return self._match(held, "") if self._found else StopResult(held)

    def _advance(self, character: str, may_end: bool) -> None:
        self._length += 1
        for index, stop in enumerate(self._stops):
            failure, state = self._failures[index], self._states[index]
            while state and (state == len(stop) or stop[state] != character):
                state = failure[state - 1]
            state += stop[state] == character
            self._states[index] = state
            if state == len(stop) and may_end:
                start = self._length - state
                # If two stop strings start together, the shorter one was found first.
                if self._found is None or start < self._found[0]:
                    self._found = (start, index)

    def _earliest_open(self) -> int:
        """Return the start of the earliest stop string that has begun but is not complete."""
        begun = [
            state if state < len(stop) else failure[state - 1]
            for stop, failure, state in zip(self._stops, self._failures, self._states, strict=True)
        ]
        return self._length - max(begun)

    def _match(self, held: str, unread: str) -> StopResult:
        """Record the matched stop string and return the text before it, and the string itself if requested.

        Args:
            held: All text that has not been released.
            unread: The end of `held`, which the matcher had not read when it decided.
        """
        assert self._found is not None
        start, index = self._found
        self.matched = self._stops[index]
        self.end = start + len(self.matched)
        cut = len(held) - len(unread) - (self._length - start)
        end = cut + len(self.matched)
        return StopResult(held[: end if self._include else cut], self.matched, held[end:])


def _failure(stop: str) -> list[int]:
    """Return the Knuth-Morris-Pratt failure table of a stop string.

    For each prefix it holds the length of the longest proper suffix that is also a prefix.
    """
    table = [0] * len(stop)
    length = 0
    for at in range(1, len(stop)):
        while length and stop[at] != stop[length]:
            length = table[length - 1]
        length += stop[at] == stop[length]
        table[at] = length
    return table
