"""The input of the sampler for one row of logits, its results, and the token counts that penalties need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.params import SamplingParams

RAW = "the model's logits"
PROCESSED = "logits after bias, min_tokens, mask and penalties"


class History:
    """The distinct tokens of one request, with output counts, which penalties need.

    The request owns it and updates it with each token. A step then touches only the D distinct tokens of the request
    and does not read the prompt again.
    """

    __slots__ = ("_counts", "_ids", "_size", "_slot_of")

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()) -> None:
        """Build the history of a request.

        Args:
            prompt_ids: The prompt.
            output_ids: The output so far, to rebuild a history after a rollback.
        """
        distinct = dict.fromkeys(prompt_ids)
        self._size = len(distinct)
        self._slot_of = dict(zip(distinct, range(self._size), strict=True))
        capacity = max(2 * self._size, 64)
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = list(distinct)
        self._counts = np.zeros(capacity, np.float32)
        for token in output_ids:
            self.append(token)

    def copy(self) -> "History":
        """Return a copy of the token counts, to advance with guessed tokens."""
        other = History(())
        other._ids, other._counts = self._ids.copy(), self._counts.copy()
        other._size, other._slot_of = self._size, dict(self._slot_of)
        return other

    def append(self, token: int) -> None:
        """Add one more output token of the request to the counts, in constant time."""
        slot = self._slot_of.get(token)
        if slot is None:
            slot = self._add(token)
        self._counts[slot] += 1.0

    def _add(self, token: int) -> int:
        slot = self._size
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[slot] = token
        self._slot_of[token] = slot
        self._size += 1
        return slot

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens of prompt and output, int64[D], in order of first appearance."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """The number of times that each of `ids` was output, float32[D]; 0 for a token that only the prompt has."""
        return self._counts[: self._size]


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """The input of the sampler for one row of logits: parameters, random seed, history and allowed tokens."""

    params: SamplingParams
    """The sampling parameters of the request."""
    seed: int
    """The seed of the request: the one in its parameters, or the one that the engine drew."""
    position: int
    """The absolute position of the token to sample; the first one after a prompt of length P has position P."""
    choice: int = 0
    """The index of the completion among the `n` of the request."""
    generated: int = 0
    """The number of tokens that the request has output so far."""
    end_ids: tuple[int, ...] = ()
    """The tokens that are forbidden while `generated` < min_tokens.

    They are the request's stop tokens, and the model's end tokens unless the request ignores them.
    """
    history: History | None = None
    """The token counts of the request; required only if a penalty is on."""
    allowed: NDArray[np.uint32] | None = None
    """The bitmask of allowed tokens, uint32[(vocabulary + 31) // 32]; None for all.

    Token t is bit t % 32 of word t // 32, as grammar libraries fill it.
    """
    timestamps: int | None = None
    """The id from which on all ids are timestamps; None if there are none or the timestamp rule does not apply.

    By that rule, if all timestamps together are likelier than any other single token that is allowed, one of them is
    sampled.
    """

    def __post_init__(self) -> None:
        assert self.position >= 0
        assert self.choice >= 0
        assert self.generated >= 0
        assert self.history is not None or not self.params.uses_history, "a row with penalties needs its History"


Report = tuple[float, tuple[tuple[int, float], ...]]
"""The chosen token's log-probability, and the likeliest tokens with theirs."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token sampled for a row, with natural log-probabilities if the request asks for them.

    The `raw` pair is the log-softmax of the model's own logits. The other pair is of the distribution that the token
    was drawn from: after bias, mask, penalties, temperature and truncation, renormalised over the remaining tokens. A
    greedy row draws from none; its pair is the log-softmax after bias, mask and penalties.

    Alternatives are (token, log-probability), likeliest first, lowest id first among equals; the sampled token is among
    them only if it is one of the likeliest. A removed token is not listed, so that there may be fewer.
    """

    token: int
    """The id of the sampled token."""
    logprob_raw: float | None = None
    """The log-probability of the token in the model's own distribution; None if not requested."""
    logprob: float | None = None
    """The log-probability of the token in the distribution that it was drawn from; None if not requested."""
    top_raw: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens of the model's own distribution."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens of the distribution that the token was drawn from."""

    @classmethod
    def reported(cls, token: int, raw: Report, processed: Report) -> Self:
        """Return a sampled token with the reports of both distributions."""
        return cls(token, logprob_raw=raw[0], logprob=processed[0], top_raw=raw[1], top=processed[1])


@dataclass(frozen=True, slots=True)
class RowFailure:
    """The result of sampling from a row of logits in which no token could be chosen; other rows are not affected."""

    reason: str
    """The reason why no token could be chosen, in one line, for the user."""

    @classmethod
    def of(cls, top: float, what: str) -> Self:
        """Return the failure of a row whose largest logit is not finite.

        Args:
            top: The largest logit; NaN if any logit is.
            what: RAW or PROCESSED.
        """
        assert not math.isfinite(top)
        if math.isnan(top):
            return cls(f"{what} contain NaN")
        return cls(f"{what} contain +inf" if top > 0 else f"{what} are all -inf: no token can be sampled")


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """A prompt token with its natural log-probability, given the tokens before it, from the model's own logits."""

    token: int
    """The id of the prompt token."""
    logprob: float
    """The log-probability of the prompt token."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens in the place of the prompt token, as in Sampled."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The outcome of a step that scored prompt tokens of a request."""

    scores: tuple[PromptLogprob, ...]
    """The prompt tokens that the step scored, in order, with their log-probabilities."""
    sampled: "Sampled | RowFailure | Sequence[Sampled] | None" = None
    """The outcome of sampling in the same step; None if nothing was sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """The outcome of a step for a request to a model without a head."""

    states_PD: NDArray[np.float32]
    """The last hidden states of the wanted positions, fp32 [positions, hidden]."""


Outcome = Sampled | RowFailure | Sequence[Sampled] | Scored | HiddenStates
"""The outcome of a step for one request.

It is the sampled token, or several if guesses were right, or a failure; Scored if prompt tokens were scored;
HiddenStates if the model has no head.
"""
