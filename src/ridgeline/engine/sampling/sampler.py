"""The interface of the samplers, and the order in which every one of them takes its steps.

Shapes: R rows, V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.engine.sampling.sample_row import PromptLogprob, RowFailure, Sampled, SampleRow
from ridgeline.engine.token_rules import unpacked


class Sampler(ABC):
    """The interface of samplers, which choose a token for each row of logits.

    Each row takes these steps, in this order:

    1. Raw log-probabilities, if requested: the log-softmax of the model's logits. A row with NaN or +inf, or with
       nothing but -inf, fails here, alone.
    2. Logit bias is added.
    3. Tokens that would end the text are forbidden while it is shorter than min_tokens, and so is every token outside
       the row's bitmask, if it has one. Before that, if timestamp tokens are together likelier than any other token of
       the bitmask, by the model's logits, the bitmask loses all others (`apply_timestamp_rule`).
    4. Penalties: repetition (over prompt and output), then frequency and presence (over the output only).
    5. Greedy rows take the largest logit, lowest id first among equals, and are done.
    6. Temperature.
    7. top-k: the k likeliest; lower ids win among equals, so that exactly k remain.
    8. top-p: the smallest set of the likeliest whose probability, renormalised after top-k, reaches p; at least one
       token.
    9. min-p: the tokens that are at least min_p times as likely as the likeliest, both after the temperature (a ratio,
       which renormalising after top-k and top-p does not change).
    10. One uniform number of (seed, position, choice) goes through the inverse of the cumulative distribution, in
        vocabulary order.
    11. Processed log-probabilities, if requested, of the distribution that the token was drawn from.
    """

    def sample(self, logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
        """Choose a token for each row of logits, each by its own rules.

        Args:
            logits_RV: fp32 [rows, vocabulary] on this sampler's device; not changed.
            rows: The inputs for each row of logits.

        Returns:
            Sampled for each row, or RowFailure if the row's logits leave nothing to choose. On the CPU a row of logits
            and its SampleRow give the same result, bit for bit, in any batch.
        """
        rows = list(rows)  # a lazy sequence makes each row when it is read, and we read it several times
        if not rows:
            return []
        assert logits_RV.dtype == torch.float32, "sampling needs fp32 logits: convert the logits first"
        assert logits_RV.dim() == 2, "logits must have the shape [rows, vocabulary]"
        assert logits_RV.shape[0] == len(rows), "give one SampleRow for each row of logits"
        logits_RV = logits_RV.detach().contiguous()
        return self._sample(logits_RV, apply_timestamp_rule(logits_RV, rows))

    def score(
        self, logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
    ) -> list[PromptLogprob | RowFailure]:
        """Return the log-probabilities of known tokens, one for each row of logits.

        Args:
            logits_RV: As in `sample`.
            tokens: The known tokens.
            alternatives: How many of the likeliest tokens to list next to each.

        Returns:
            PromptLogprob for each row, or RowFailure if a row has NaN or +inf, or nothing but -inf.
        """
        assert len(logits_RV) == len(tokens) == len(alternatives), "give one token for each row of logits"
        return self._score(logits_RV.detach().contiguous(), tokens, alternatives)

    @abstractmethod
    def _sample(self, logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
        """Choose a token for each row of contiguous logits, of which there is at least one."""

    @abstractmethod
    def _score(
        self, logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
    ) -> list[PromptLogprob | RowFailure]:
        """Return the log-probabilities of the tokens, from contiguous logits."""


def apply_timestamp_rule(logits_RV: Tensor, rows: Sequence[SampleRow]) -> Sequence[SampleRow]:
    """Return sampling inputs that allow only timestamp tokens if these outweigh all other tokens.

    The logits of rows with the rule are copied to the host; those of other rows are not read.
    """
    if all(row.timestamps is None for row in rows):
        return rows
    return [
        row if row.timestamps is None else _narrowed(logits_RV[index].cpu().numpy(), row, row.timestamps)
        for index, row in enumerate(rows)
    ]


def _narrowed(logits_V: NDArray[np.float32], row: SampleRow, first: int) -> SampleRow:
    assert row.allowed is not None, "a row with timestamp rules needs a mask"
    allowed_V = unpacked(row.allowed, len(logits_V))
    masked_V = np.where(allowed_V, logits_V, -np.inf).astype(np.float64)
    text, moments = masked_V[:first].max(), masked_V[first:]
    top = moments.max(initial=-np.inf)
    if not math.isfinite(top) or not top + np.log(np.exp(moments - top).sum()) > text:
        return row
    words = row.allowed.copy()
    words[: first // 32] = 0
    words[first // 32] &= np.uint32(0xFFFFFFFF << first % 32 & 0xFFFFFFFF)
    return replace(row, allowed=words)
