"""SampleRow and what comes back for it: Sampled, or RowFailure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.history import History


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
    """

    params: SamplingParams
    seed: int
    position: int
    choice: int = 0
    generated: int = 0
    end_ids: tuple[int, ...] = ()
    history: History | None = None
    allowed: NDArray[np.uint32] | None = None

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


Outcome = Sampled | RowFailure | Sequence[Sampled]
"""What a step gives to a request: the token sampled, or several where some were guessed and found right."""
