"""Stop strings, matched in a stream of text."""

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """`safe` may be shown: no stop string can begin in it. `matched` is the stop string that ended the text, and
    `rest` what followed it in the text pushed so far.
    """

    safe: str
    matched: str | None = None
    rest: str = ""


class StopMatcher:
    """Cuts a text exactly before the stop string that starts first, however the text is split into pushes.

    Of several that start at one place the shortest wins. A stop string that is complete while an earlier one may still
    become so waits for it. Knuth-Morris-Pratt: a character costs a few steps for each stop string, and nothing
    while none has begun; at most the longest of them is held back.
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
        self._length = 0  # characters before the end of what was read
        self._found: tuple[int, int] | None = None  # (start in the whole text, index of the stop)
        self.matched: str | None = None
        self.end = 0
        """Characters of the whole text up to the end of the stop string that matched."""

    def push(self, text: str, *, may_end: bool = True) -> StopResult:
        """Read more text. After a match nothing more may be pushed.

        Args:
            may_end: Whether a stop string may end in this text. One that ends in text pushed with False never matches.
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
        """The end of the text: what was held is safe, unless it holds a match that waited for a longer one."""
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
                # Equal starts: the shorter one was complete earlier, or both are one.
                if self._found is None or start < self._found[0]:
                    self._found = (start, index)

    def _earliest_open(self) -> int:
        """Where the earliest stop string that is begun but not complete starts."""
        begun = [
            state if state < len(stop) else failure[state - 1]
            for stop, failure, state in zip(self._stops, self._failures, self._states, strict=True)
        ]
        return self._length - max(begun)

    def _match(self, held: str, unread: str) -> StopResult:
        """`held` ends with `unread`, which was not read before the decision."""
        assert self._found is not None
        start, index = self._found
        self.matched = self._stops[index]
        self.end = start + len(self.matched)
        cut = len(held) - len(unread) - (self._length - start)
        end = cut + len(self.matched)
        return StopResult(held[: end if self._include else cut], self.matched, held[end:])


def _failure(stop: str) -> list[int]:
    """KMP: for each prefix, the length of its longest proper suffix that is again a prefix."""
    table = [0] * len(stop)
    length = 0
    for at in range(1, len(stop)):
        while length and stop[at] != stop[length]:
            length = table[length - 1]
        length += stop[at] == stop[length]
        table[at] = length
    return table
