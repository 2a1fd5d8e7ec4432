"""Log-probabilities of the chosen token and of the likeliest ones, of the raw and of the processed distribution.

Legend: V vocabulary, C candidates, K alternatives.
"""

import math

import numpy as np

from ridgeline.engine.sampling.candidates import Candidates, weigh
from ridgeline.engine.sampling.mass import FloatsC, block_sums
from ridgeline.engine.sampling.truncate import ranked

Report = tuple[float, tuple[tuple[int, float], ...]]
"""The chosen token's log-probability, and the likeliest tokens with theirs."""


def log_softmax_report(logits_V: FloatsC, token: int, alternatives: int, spare_V: FloatsC) -> Report:
    """Report on the softmax of a row of logits; `spare_V` is overwritten. Tokens at -inf are not listed."""
    largest = logits_V.max()
    log_total = float(largest) + math.log(block_sums(weigh(logits_V, largest, 1.0, spare_V)).sum())
    # From the logits, not from their exponentials, which are 0 from 104 below the largest.
    index_K = ranked(logits_V, alternatives)
    shares_K = logits_V[index_K].astype(np.float64) - log_total
    listed = tuple((int(i), float(share)) for i, share in zip(index_K, shares_K, strict=True) if share > -math.inf)
    return float(logits_V[token]) - log_total, listed


def candidates_report(candidates: Candidates, index: int, largest: float, temperature: float, count: int) -> Report:
    """Report on what may be drawn: `index` is the drawn candidate, `largest` the largest logit, `count` how many."""
    log_total = math.log(candidates.total)
    # What is kept is a prefix of the ranking, so the first of the ranking are the first of the kept.
    index_K = ranked(candidates.logits_C, count)
    drawable_K = candidates.weights_C[index_K] > 0
    if candidates.kept_C is not None:
        drawable_K &= candidates.kept_C[index_K]
    index_K = np.append(index_K[drawable_K], index)
    shares_K = (candidates.logits_C[index_K].astype(np.float64) - largest) / temperature - log_total
    listed = [(candidates.token(int(i)), float(share)) for i, share in zip(index_K, shares_K, strict=True)]
    return listed[-1][1], tuple(listed[:-1])
