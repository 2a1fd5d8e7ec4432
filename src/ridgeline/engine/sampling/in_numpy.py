"""The sampler in numpy: the reference for the other two, and the CPU's sampler if there is no kernel for it.

It samples one row at a time, for three reasons. A row of 152k floats stays in a core's L2 cache through its passes,
whereas a batch would stream from memory for each. No reduction runs across rows or is split among threads, so that a
row's token cannot depend on its neighbours or on the thread count. And no pass waits for a thread pool to wake, which
on a busy machine costs more than the pass.

Legend: R rows, V vocabulary, C candidates.
"""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor
from typing_extensions import override

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.candidates import Candidates, FloatsC, weigh
from ridgeline.engine.sampling.logits import adjust, candidates_report, log_softmax_report, needs_adjusting
from ridgeline.engine.sampling.sample_row import PROCESSED, RAW, PromptLogprob, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.sampler import Sampler
from ridgeline.engine.sampling.truncate import keep_min_p, keep_top_p, largest
from ridgeline.engine.sampling.uniform import uniform


class _Scratch:
    """The memory that the rows of a call use in turn: new memory for each would cost page faults."""

    __slots__ = ("adjusted_V", "weights_V")

    def __init__(self, vocab_size: int) -> None:
        self.adjusted_V = np.empty(vocab_size, np.float32)
        self.weights_V = np.empty(vocab_size, np.float32)


class NumpySampler(Sampler):
    """The sampler in numpy, which processes one row at a time."""

    @override
    def _sample(self, logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
        if all(row.params.greedy for row in rows):
            point_R = np.zeros(len(rows))
        else:
            point_R = uniform([row.seed for row in rows], [row.position for row in rows], [row.choice for row in rows])
        scratch = _Scratch(logits_RV.shape[1])
        # A tiny temperature or penalty may turn unlikely logits into -inf, which is correct.
        with np.errstate(over="ignore"):
            return [
                _sample_row(logits_V, row, float(point), scratch)
                for logits_V, row, point in zip(logits_RV.numpy(), rows, point_R, strict=True)
            ]

    @override
    def _score(
        self, logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
    ) -> list[PromptLogprob | RowFailure]:
        scores: list[PromptLogprob | RowFailure] = []
        spare_V = np.empty(logits_RV.shape[1], np.float32)
        for logits_V, token, count in zip(logits_RV.numpy(), tokens, alternatives, strict=True):
            top = float(logits_V.max())  # NaN if there is one
            if math.isfinite(top):
                scores.append(PromptLogprob(token, *log_softmax_report(logits_V, token, count, spare_V)))
            else:
                scores.append(RowFailure.of(top, RAW))
        return scores


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
    return Sampled.reported(best, log_softmax_report(logits_V, best, count, scratch.weights_V), processed)


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
    return Sampled.reported(token, log_softmax_report(logits_V, token, count, scratch.weights_V), processed)


def _truncated(logits_V: FloatsC, top: np.float32, params: SamplingParams, scratch: _Scratch) -> Candidates:
    """Apply temperature, top-k, top-p and min-p to a row of logits, and return the tokens that may be drawn.

    Top-k goes first, because a temperature keeps the order, and computing only k weights is fast.
    """
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
