"""SampleRow and what comes back for it: Sampled, or RowFailure; and the History that penalties need."""

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
    """The distinct tokens of one request, with output counts, kept up to date token by token; owned by the request.

    Only requests with a penalty need one. A step then touches the D distinct tokens of the request and does not read
    the prompt again.

    Args:
        prompt_ids: the prompt.
        output_ids: what was generated so far; pass it to rebuild a history after a rollback.
    """

    __slots__ = ("_counts", "_ids", "_size", "_slot_of")

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()) -> None:
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
        """The same, to go on with tokens that are guessed."""
        other = History(())
        other._ids, other._counts = self._ids.copy(), self._counts.copy()
        other._size, other._slot_of = self._size, dict(self._slot_of)
        return other

    def append(self, token: int) -> None:
        """Count one more output token, in constant time."""
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
        """How often each of `ids` was output, float32[D]; 0 for a token that only the prompt has."""
        return self._counts[: self._size]


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """What the sampler has to know about one row of logits.

    Args:
        params: the request's rules.
        seed: the request's seed, resolved (params.seed, or the one the engine drew when that is None).
        position: absolute position of the token to be sampled; with prompt length P the first sampled one is P.
        choice: index of the completion among the request's n.
        generated: tokens output so far.
        end_ids: tokens that may not be chosen while generated < params.min_tokens: the model's end tokens and the
            request's stop tokens.
        history: the request's; needed only when params.uses_history.
        allowed: the only tokens that may be chosen, as a bitmask uint32[(vocabulary + 31) // 32], token t being bit
            t % 32 of word t // 32 (as grammar libraries fill it); None for all.
        timestamps: ids from it on are moments; where together they are likelier than any other single token that is
            allowed, one of them is chosen. None where there are none, or it is not asked for.
    """

    params: SamplingParams
    seed: int
    position: int
    choice: int = 0
    generated: int = 0
    end_ids: tuple[int, ...] = ()
    history: History | None = None
    allowed: NDArray[np.uint32] | None = None
    timestamps: int | None = None

    def __post_init__(self) -> None:
        assert self.position >= 0
        assert self.choice >= 0
        assert self.generated >= 0
        assert self.history is not None or not self.params.uses_history, "a row with penalties brings its History"


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token chosen for a row, with natural log-probabilities: None and empty unless params.logprobs asks for them.

    The `raw` pair is log-softmax of the model's own logits. The other pair is of the distribution that the token was
    drawn from: after bias, mask, penalties, temperature and truncation, renormalised over what was kept. A greedy row
    draws from none: there the pair is log-softmax after bias, mask and penalties.

    Alternatives are (token, log-probability), likeliest first, lowest id first among equals; the chosen token is among
    them only if it is one of the likeliest. A token that was removed is not listed, so that there may be fewer.
    """

    token: int
    logprob_raw: float | None = None
    logprob: float | None = None
    top_raw: tuple[tuple[int, float], ...] = ()
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RowFailure:
    """No token could be chosen for this row, which does not touch the others; `reason` is one line, for the user."""

    reason: str

    @classmethod
    def of(cls, top: float, what: str) -> Self:
        """The failure of a row whose largest logit is `top`, which is NaN if it has one. what: RAW or PROCESSED."""
        assert not math.isfinite(top)
        if math.isnan(top):
            return cls(f"{what} contain NaN")
        return cls(f"{what} contain +inf" if top > 0 else f"{what} are all -inf: there is no token to choose")


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """A token of a prompt with its natural log-probability after the tokens before it, from the model's own logits.

    top: the likeliest tokens there, as in Sampled.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """What a step gives to a request some of whose prompt's tokens it scored: those, in order, and what was sampled, if
    anything was.
    """

    scores: tuple[PromptLogprob, ...]
    sampled: "Sampled | RowFailure | Sequence[Sampled] | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """What a step of a model without a head gives to a request: the last hidden states of its wanted positions, fp32
    [positions, hidden].
    """

    states_PD: NDArray[np.float32]


Outcome = Sampled | RowFailure | Sequence[Sampled] | Scored | HiddenStates
"""What a step gives to a request: the token sampled, or several where some were guessed and found right; where prompt
tokens were scored, Scored; of a model without a head, HiddenStates."""
