"""Acceptance: how often guesses are right, as far as that was seen."""

_MEMORY = 0.95
"""What a guess counts for when the next one has been seen: a text that becomes predictable is noticed in some
twenty."""
_PRIOR = 2.0
"""Guesses that a request's own experience has to outweigh."""


class Acceptance:
    """Of each request, and of all, from which new ones are judged. A guess counts where those before it were right."""

    def __init__(self) -> None:
        self._all = _Seen(0.5 * _PRIOR, _PRIOR)
        self._each: dict[int, _Seen] = {}

    def count(self, request: int, right: int, *, wrong: bool) -> None:
        """So many guesses in a row were right; wrong: and the next one was not."""
        for seen in (self._all, self._each.setdefault(request, _Seen(0.0, 0.0))):
            for _ in range(right):
                seen.add(1.0)
            if wrong:
                seen.add(0.0)

    def of(self, request: int) -> float:
        """The share of a request's guesses that are expected to be right, each given that those before it are."""
        own = self._each.get(request, _Seen(0.0, 0.0))
        prior = self._all.right / self._all.count
        return (own.right + _PRIOR * prior) / (own.count + _PRIOR)

    def forget(self, request: int) -> None:
        """A request has ended."""
        self._each.pop(request, None)


class _Seen:
    """right, count: of guesses, old ones counting less."""

    __slots__ = ("count", "right")

    def __init__(self, right: float, count: float) -> None:
        self.right, self.count = right, count

    def add(self, right: float) -> None:
        self.right, self.count = _MEMORY * self.right + right, _MEMORY * self.count + 1.0


def expected_tokens(acceptance: float, guesses: int) -> float:
    """Tokens that a step gives which verifies so many guesses: one, and one more for each that is right."""
    return sum(acceptance**place for place in range(guesses + 1))
