"""The logits of one row: the changes before any temperature, and the log-probabilities to report.

Logit bias, masks and penalties change the logits. Log-probabilities are those of the chosen token and of the likeliest
ones, in the raw and in the processed distribution.

Legend: V vocabulary, D distinct tokens of the request, C candidates, K alternatives.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.sampling.candidates import Candidates, FloatsC, block_sums, weigh
from ridgeline.engine.sampling.sample_row import Report, SampleRow
from ridgeline.engine.sampling.truncate import ranked


def needs_adjusting(row: SampleRow) -> bool:
    """Return whether `adjust` would change the logits of this row."""
    return bool(row.params.logit_bias) or must_continue(row) or row.allowed is not None or row.params.uses_history


def adjust(logits_V: FloatsC, row: SampleRow, out_V: FloatsC) -> FloatsC:
    """Write the row's logits after bias, mask and penalties to `out_V` and return it; `logits_V` does not change."""
    np.copyto(out_V, logits_V)
    bias = row.params.logit_bias
    if bias:
        out_V[list(bias)] += np.fromiter(bias.values(), np.float32, len(bias))
    if must_continue(row):
        out_V[list(row.end_ids)] = -np.inf
    if row.allowed is not None:
        _forbid_others(out_V, row.allowed)
    if row.params.uses_history:
        _penalise(out_V, row)
    return out_V


def must_continue(row: SampleRow) -> bool:
    """Return whether the tokens that would end the row's text are forbidden."""
    return row.generated < row.params.min_tokens and bool(row.end_ids)


def _forbid_others(logits_V: FloatsC, allowed: NDArray[np.uint32]) -> None:
    """Forbid all tokens outside a bitmask, in place. It is little-endian, so that each byte holds the next 8 tokens."""
    assert allowed.shape == ((len(logits_V) + 31) // 32,), "the mask has one bit per token, in words of 32 bits"
    bits = np.unpackbits(allowed.astype("<u4", copy=False).view(np.uint8), count=len(logits_V), bitorder="little")
    logits_V[bits == 0] = -np.inf


def _penalise(logits_V: FloatsC, row: SampleRow) -> None:
    """Apply the repetition, frequency and presence penalty to a row of logits in place, in time that grows with D.

    Repetition over prompt and output is transformers' formula, frequency and presence over the output are OpenAI's.
    """
    assert row.history is not None
    params, ids_D, counts_D = row.params, row.history.ids, row.history.counts
    logits_D = logits_V[ids_D]
    if params.repetition_penalty != 1.0:
        penalty = np.float32(params.repetition_penalty)
        logits_D = np.where(logits_D < 0, logits_D * penalty, logits_D / penalty)
    if params.frequency_penalty != 0.0:
        logits_D -= np.float32(params.frequency_penalty) * counts_D
    if params.presence_penalty != 0.0:
        logits_D -= np.float32(params.presence_penalty) * (counts_D > 0)
    logits_V[ids_D] = logits_D


def log_softmax_report(logits_V: FloatsC, token: int, alternatives: int, spare_V: FloatsC) -> Report:
    """Return the report on the softmax of a row of logits, without tokens at -inf; `spare_V` is overwritten."""
    largest = logits_V.max()
    log_total = float(largest) + math.log(block_sums(weigh(logits_V, largest, 1.0, spare_V)).sum())
    # Ranked by logits, not by their exponentials, which are 0 from 104 below the largest.
    index_K = ranked(logits_V, alternatives)
    shares_K = logits_V[index_K].astype(np.float64) - log_total
    listed = tuple((int(i), float(share)) for i, share in zip(index_K, shares_K, strict=True) if share > -math.inf)
    return float(logits_V[token]) - log_total, listed


def candidates_report(candidates: Candidates, index: int, largest: float, temperature: float, count: int) -> Report:
    """Return the report on the tokens that may be drawn.

    Args:
        candidates: The candidates of a row.
        index: The index of the drawn candidate.
        largest: The largest logit.
        temperature: The temperature of the weights.
        count: The number of alternatives to report.
    """
    log_total = math.log(candidates.total)
    # The kept tokens are a prefix of the ranking, so both begin with the same tokens.
    index_K = ranked(candidates.logits_C, count)
    drawable_K = candidates.weights_C[index_K] > 0
    if candidates.kept_C is not None:
        drawable_K &= candidates.kept_C[index_K]
    index_K = np.append(index_K[drawable_K], index)
    shares_K = (candidates.logits_C[index_K].astype(np.float64) - largest) / temperature - log_total
    listed = [(candidates.token(int(i)), float(share)) for i, share in zip(index_K, shares_K, strict=True)]
    return listed[-1][1], tuple(listed[:-1])
