"""TokenRules: which tokens may come where, as speech models want it; and who follows one choice by them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.structured_output_params import DeadEnd

Mask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """Rules of tokens that are moments (Whisper: Radford et al., arXiv:2212.04356, section 2.3).

    They come in pairs, an end and the beginning that follows it, or an end and the end of the text; they never go back.
    The first token is one, of at most `most_first`. Where all of them together are likelier than any other single
    token, one of them is chosen.

    first: the id of the moment 0; ids from it on are moments. text_end: ids below it are text. banned: the token that
    would say that there are no moments.
    """

    first: int
    text_end: int
    banned: int
    most_first: int | None = None


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Plain data; ids of a vocabulary.

    opening: of the first tokens, what each may be. suppressed: what none after them may be. suppressed_first: what the
    first after them may not be either. timestamps: rules of moments, None where there are none.
    """

    opening: tuple[tuple[int, ...], ...] = ()
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None

    def __post_init__(self) -> None:
        if not all(self.opening):
            raise ValueError("token rules leave no token for one of the first places; give at least one for each")

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids that it names."""
        moments = self.timestamps
        own = () if moments is None else (moments.first, moments.text_end, moments.banned)
        return (*(token for place in self.opening for token in place), *self.suppressed, *self.suppressed_first, *own)


class TokenRuleProcessor:
    """Follows one choice, token by token, as a Guide does; never taken back."""

    complete = False

    def __init__(self, rules: TokenRules, vocabulary: int) -> None:
        self.rules, self.vocabulary = rules, vocabulary
        self._said: list[int] = []
        self._mask: Mask | None = None

    def copy(self) -> "TokenRuleProcessor":
        """The same guide for another choice, at the beginning."""
        return TokenRuleProcessor(self.rules, self.vocabulary)

    def take(self, token: int) -> None:
        """A token was chosen that is no end of the text."""
        self._said.append(token)
        self._mask = None

    @property
    def timestamps(self) -> int | None:
        """As SampleRow.timestamps, for the token that comes next."""
        opened = len(self._said) >= len(self.rules.opening)
        return self.rules.timestamps.first if opened and self.rules.timestamps is not None else None

    def allowed(self) -> Mask:
        """The tokens that may come next, uint32 [W]; not to be changed."""
        if self._mask is None:
            self._mask = packed(self._allowed_now())
        return self._mask

    def dead_end(self, held: Collection[int]) -> DeadEnd | None:
        """Return None: rules leave a token at each place, so that having none is a fault of the model."""
        return None

    def _allowed_now(self) -> NDArray[np.bool_]:
        rules, place = self.rules, len(self._said)
        if place < len(rules.opening):
            allowed_V = np.zeros(self.vocabulary, np.bool_)
            allowed_V[list(rules.opening[place])] = True
            return allowed_V
        allowed_V = np.ones(self.vocabulary, np.bool_)
        _forbid(allowed_V, rules.suppressed)
        said = self._said[len(rules.opening) :]
        if not said:
            _forbid(allowed_V, rules.suppressed_first)
        if rules.timestamps is not None:
            _keep_time(allowed_V, rules.timestamps, said)
        return allowed_V


def _keep_time(allowed_V: NDArray[np.bool_], rules: TimestampRules, said: list[int]) -> None:
    """Forbid what the moments that were said leave no place for."""
    _forbid(allowed_V, (rules.banned,))
    if not said:
        allowed_V[: rules.first] = False
        if rules.most_first is not None:
            allowed_V[rules.first + rules.most_first + 1 :] = False
        return
    last = said[-1] >= rules.first
    paired = len(said) < 2 or said[-2] >= rules.first  # what comes first has nothing to end
    if last and paired:
        allowed_V[rules.first :] = False
    elif last:
        allowed_V[: rules.text_end] = False
    latest = next((token for token in reversed(said) if token >= rules.first), None)
    if latest is not None:  # an end may be the next beginning; nothing else happens twice at a moment
        allowed_V[rules.first : latest + (0 if last and not paired else 1)] = False


def _forbid(allowed_V: NDArray[np.bool_], tokens: Iterable[int]) -> None:
    allowed_V[list(tokens)] = False


def packed(allowed_V: NDArray[np.bool_]) -> Mask:
    """A bitmask as SampleRow.allowed is one."""
    padded = np.pad(allowed_V, (0, -len(allowed_V) % 32))
    return np.packbits(padded, bitorder="little").view(np.uint32)


def unpacked(mask: Mask, vocabulary: int) -> NDArray[np.bool_]:
    """The tokens that a bitmask allows, bool [vocabulary]."""
    return np.unpackbits(mask.view(np.uint8), count=vocabulary, bitorder="little").astype(np.bool_)
