"""From logits to tokens, one row at a time, in this order:

1. Raw log-probabilities, if asked for: log-softmax of the model's logits. A row with NaN or +inf, or with nothing but
   -inf, fails here, alone.
2. Logit bias is added.
3. Tokens that would end the text are forbidden while it is shorter than min_tokens, and so is every token outside the
   row's bitmask, if it has one.
4. Penalties: repetition (over prompt and output), then frequency and presence (over the output only).
5. Greedy rows take the largest logit, lowest id first among equals, and are done.
6. Temperature.
7. top-k: the k likeliest; lower ids win among equals, so that exactly k are kept.
8. top-p: the smallest set of the likeliest whose probability, renormalised after top-k, reaches p; at least one token.
9. min-p: what is at least min_p times as likely as the likeliest token, both after the temperature (a ratio, which
   renormalising after top-k and top-p does not change).
10. One uniform of (seed, position, choice) is put through the inverse of the cumulative distribution, in vocabulary
    order.
11. Processed log-probabilities, if asked for, of the distribution that was drawn from.

Logits on another device are sampled there, many rows at once (on_device.py). Why a row at a time, in numpy, on the CPU:
a row of 152k floats stays in a core's L2 cache through its passes, where a batch would stream from memory for each; no
reduction runs across rows or is split among threads, so that a row's token cannot depend on its neighbours or on the
thread count; and no pass waits for a thread pool to wake, which on a busy machine costs more than the pass.

Legend: R rows, V vocabulary, C candidates.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.candidates import Candidates, FloatsC, weigh
from ridgeline.engine.sampling.logits import Report, adjust, candidates_report, log_softmax_report, needs_adjusting
from ridgeline.engine.sampling.on_device import sample_on_device, score_on_device
from ridgeline.engine.sampling.row import PROCESSED, RAW, PromptLogprob, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.truncate import keep_min_p, keep_top_p, largest
from ridgeline.engine.sampling.uniform import uniform


class _Scratch:
    """Memory that the rows of a call use in turn: fresh memory for each would cost page faults."""

    __slots__ = ("adjusted_V", "weights_V")

    def __init__(self, vocab_size: int) -> None:
        self.adjusted_V = np.empty(vocab_size, np.float32)
        self.weights_V = np.empty(vocab_size, np.float32)


def sample(logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
    """Choose a token for each row of logits, each by its own rules, in the order that this file's docstring lists.

    Args:
        logits_RV: fp32 [rows, vocabulary]; not changed. On the CPU they are sampled here, elsewhere where they are
            (on_device.py).
        rows: one for each row of logits.

    Returns:
        Sampled for each row, or RowFailure where the row's logits leave nothing to choose. On the CPU a row of logits
        and its SampleRow give the same result, bit for bit, in any batch.
    """
    assert logits_RV.dtype == torch.float32, "sampling is done in fp32; convert the logits first"
    assert logits_RV.dim() == 2, "logits are [rows, vocabulary]"
    assert logits_RV.shape[0] == len(rows), "one SampleRow for each row of logits"
    rows = list(rows)  # each is made when it is read, and is read several times
    return _sample_on_cpu(logits_RV, rows) if logits_RV.device.type == "cpu" else sample_on_device(logits_RV, rows)


def score(logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]) -> list[PromptLogprob | RowFailure]:
    """How likely tokens are that are known: one for each row of fp32 logits.

    alternatives: how many of the likeliest tokens to list beside each. RowFailure where a row has NaN or +inf, or
    nothing but -inf.
    """
    assert len(logits_RV) == len(tokens) == len(alternatives), "a token for each row of logits"
    scored = _score_on_cpu if logits_RV.device.type == "cpu" else score_on_device
    return scored(logits_RV, tokens, alternatives)


def _score_on_cpu(
    logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
) -> list[PromptLogprob | RowFailure]:
    scores: list[PromptLogprob | RowFailure] = []
    spare_V = np.empty(logits_RV.shape[1], np.float32)
    for logits_V, token, count in zip(logits_RV.detach().contiguous().numpy(), tokens, alternatives, strict=True):
        top = float(logits_V.max())  # NaN if there is one
        if math.isfinite(top):
            scores.append(PromptLogprob(token, *log_softmax_report(logits_V, token, count, spare_V)))
        else:
            scores.append(RowFailure.of(top, RAW))
    return scores


def _sample_on_cpu(logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
    logits = logits_RV.detach().contiguous().numpy()
    if all(row.params.greedy for row in rows):
        point_R = np.zeros(len(rows))
    else:
        point_R = uniform([row.seed for row in rows], [row.position for row in rows], [row.choice for row in rows])
    scratch = _Scratch(logits.shape[1])
    # A tiny temperature or penalty may take unlikely logits to -inf, which is what they should be.
    with np.errstate(over="ignore"):
        return [
            _sample_row(logits_V, row, float(point), scratch)
            for logits_V, row, point in zip(logits, rows, point_R, strict=True)
        ]


def _sample_row(logits_V: FloatsC, row: SampleRow, point: float, scratch: _Scratch) -> Sampled | RowFailure:
    best = int(logits_V.argmax())  # the first NaN, if there is one
    if not math.isfinite(logits_V[best]):
        return RowFailure.of(float(logits_V[best]), RAW)
    processed_V = logits_V
    if needs_adjusting(row):
        processed_V = adjust(logits_V, row, scratch.adjusted_V)
        best = int(processed_V.argmax())
        if not math.isfinite(processed_V[best]):
            return RowFailure.of(float(processed_V[best]), PROCESSED)
    if row.params.greedy:
        return _greedy(logits_V, processed_V, best, row.params.logprobs, scratch)
    return _drawn(logits_V, processed_V, processed_V[best], row.params, point, scratch)


def _greedy(logits_V: FloatsC, processed_V: FloatsC, best: int, count: int | None, scratch: _Scratch) -> Sampled:
    if count is None:
        return Sampled(best)
    processed = log_softmax_report(processed_V, best, count, scratch.weights_V)
    return _reported(best, log_softmax_report(logits_V, best, count, scratch.weights_V), processed)


def _drawn(
    logits_V: FloatsC, processed_V: FloatsC, top: np.float32, params: SamplingParams, point: float, scratch: _Scratch
) -> Sampled:
    candidates = _truncated(processed_V, top, params, scratch)
    index = candidates.draw(point)
    token = candidates.token(index)
    count = params.logprobs
    if count is None:
        return Sampled(token)
    processed = candidates_report(candidates, index, float(top), params.temperature, count)
    return _reported(token, log_softmax_report(logits_V, token, count, scratch.weights_V), processed)


def _truncated(logits_V: FloatsC, top: np.float32, params: SamplingParams, scratch: _Scratch) -> Candidates:
    """Steps 6 to 9; top-k goes first, because a temperature does not change the order and k weights are soon made."""
    ids_C, logits_C = None, logits_V
    if 0 < params.top_k < len(logits_V):
        ids_C = largest(logits_V, params.top_k)
        logits_C = logits_V[ids_C]
    weights_C = weigh(logits_C, top, params.temperature, scratch.weights_V[: len(logits_C)])
    candidates = Candidates.of(ids_C, logits_C, weights_C)
    if params.top_p < 1.0:
        candidates = keep_top_p(candidates, params.top_p)
    if params.min_p > 0.0:
        candidates = keep_min_p(candidates, params.min_p)
    return candidates


def _reported(token: int, raw: Report, processed: Report) -> Sampled:
    return Sampled(token, logprob_raw=raw[0], logprob=processed[0], top_raw=raw[1], top=processed[1])
