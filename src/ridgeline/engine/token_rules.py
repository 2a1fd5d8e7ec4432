"""The rules on which tokens are allowed at which place, for speech models, and their application to one choice."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.structured_output_params import DeadEnd

Mask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """The rules on timestamp tokens (Whisper: Radford et al., arXiv:2212.04356, section 2.3).

    Timestamps come in pairs: the end of a segment and the start of the next, or an end and the end of the text. They
    never go back. The first token is a timestamp, at most `most_first`. If all timestamps together are likelier than
    any other single token, one of them is sampled.
    """

    first: int
    """The id of the first timestamp token, of time 0; all ids from it on are timestamps."""
    text_end: int
    """The id below which all tokens are text."""
    banned: int
    """The token that would declare that there are no timestamps."""
    most_first: int | None = None
    """The index of the largest timestamp that the text may start with; None for any."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules on which tokens a response may contain at which place, as plain data."""

    opening: tuple[tuple[int, ...], ...] = ()
    """The allowed tokens at each of the first places of the response."""
    suppressed: tuple[int, ...] = ()
    """The tokens that are forbidden after the first places of the response."""
    suppressed_first: tuple[int, ...] = ()
    """The tokens that are also forbidden at the first place after the opening."""
    timestamps: TimestampRules | None = None
    """The rules on timestamp tokens; None for a response without timestamps."""

    def __post_init__(self) -> None:
        if not all(self.opening):
            raise ValueError("token rules allow no token at one of the first positions: allow at least one at each")

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids that the rules name."""
        moments = self.timestamps
        own = () if moments is None else (moments.first, moments.text_end, moments.banned)
        return (*(token for place in self.opening for token in place), *self.suppressed, *self.suppressed_first, *own)


class TokenRuleProcessor:
    """The logits processor that applies token rules to one choice, with the interface of OutputConstraint.

    It never goes back: a token that it has taken stays.
    """

    complete = False

    def __init__(self, rules: TokenRules, vocabulary: int) -> None:
        self.rules, self.vocabulary = rules, vocabulary
        self._generated: list[int] = []
        self._mask: Mask | None = None

    def copy(self) -> "TokenRuleProcessor":
        """Return a processor of the same token rules at the start of another completion of the request."""
        return TokenRuleProcessor(self.rules, self.vocabulary)

    def take(self, token: int) -> None:
        """Advance the rules by a sampled token that does not end the text."""
        self._generated.append(token)
        self._mask = None

    @property
    def timestamps(self) -> int | None:
        """The id of timestamp 0 if the timestamp rule applies to the next token, else None (SampleRow.timestamps)."""
        opened = len(self._generated) >= len(self.rules.opening)
        return self.rules.timestamps.first if opened and self.rules.timestamps is not None else None

    def allowed(self) -> Mask:
        """Return the mask of tokens that may come next, uint32 [W], which the caller must not change."""
        if self._mask is None:
            self._mask = packed(self._allowed_now())
        return self._mask

    def dead_end(self, held: Collection[int]) -> DeadEnd | None:
        """Return None, which means that the output has not reached a dead end.

        Token rules allow a next token at each place of the response. If none can be sampled, the model is at fault.
        """
        return None

    def _allowed_now(self) -> NDArray[np.bool_]:
        rules, place = self.rules, len(self._generated)
        if place < len(rules.opening):
            allowed_V = np.zeros(self.vocabulary, np.bool_)
            allowed_V[list(rules.opening[place])] = True
            return allowed_V
        allowed_V = np.ones(self.vocabulary, np.bool_)
        _forbid(allowed_V, rules.suppressed)
        generated = self._generated[len(rules.opening) :]
        if not generated:
            _forbid(allowed_V, rules.suppressed_first)
        if rules.timestamps is not None:
            _keep_time(allowed_V, rules.timestamps, generated)
        return allowed_V


def _keep_time(allowed_V: NDArray[np.bool_], rules: TimestampRules, generated: list[int]) -> None:
    """Forbid the tokens that contradict the timestamps so far."""
    _forbid(allowed_V, (rules.banned,))
    if not generated:
        allowed_V[: rules.first] = False
        if rules.most_first is not None:
            allowed_V[rules.first + rules.most_first + 1 :] = False
        return
    last = generated[-1] >= rules.first
    paired = len(generated) < 2 or generated[-2] >= rules.first  # the first timestamp ends no segment
    if last and paired:
        allowed_V[rules.first :] = False
    elif last:
        allowed_V[: rules.text_end] = False
    latest = next((token for token in reversed(generated) if token >= rules.first), None)
    if latest is not None:  # only an end and the next start may share a timestamp
        allowed_V[rules.first : latest + (0 if last and not paired else 1)] = False


def _forbid(allowed_V: NDArray[np.bool_], tokens: Iterable[int]) -> None:
    allowed_V[list(tokens)] = False


def packed(allowed_V: NDArray[np.bool_]) -> Mask:
    """Return a bool array over the vocabulary as a bitmask (SampleRow.allowed)."""
    padded = np.pad(allowed_V, (0, -len(allowed_V) % 32))
    return np.packbits(padded, bitorder="little").view(np.uint32)


def unpacked(mask: Mask, vocabulary: int) -> NDArray[np.bool_]:
    """Return the tokens that a bitmask allows: bool [vocabulary]."""
    return np.unpackbits(mask.view(np.uint8), count=vocabulary, bitorder="little").astype(np.bool_)
