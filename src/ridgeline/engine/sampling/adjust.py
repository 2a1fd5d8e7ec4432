"""Changes to the logits themselves, before any temperature: logit bias, what is forbidden, penalties.

Legend: V vocabulary, D distinct tokens of the request.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.sampling.mass import FloatsC
from ridgeline.engine.sampling.row import SampleRow


def needs_adjusting(row: SampleRow) -> bool:
    """Whether `adjust` would change the logits of this row."""
    return bool(row.params.logit_bias) or _must_continue(row) or row.allowed is not None or row.params.uses_history


def adjust(logits_V: FloatsC, row: SampleRow, out_V: FloatsC) -> FloatsC:
    """Write the row's logits after bias, mask and penalties to `out_V` and return it; `logits_V` is not changed."""
    np.copyto(out_V, logits_V)
    bias = row.params.logit_bias
    if bias:
        out_V[list(bias)] += np.fromiter(bias.values(), np.float32, len(bias))
    if _must_continue(row):
        out_V[list(row.end_ids)] = -np.inf
    if row.allowed is not None:
        _forbid_others(out_V, row.allowed)
    if row.params.uses_history:
        _penalise(out_V, row)
    return out_V


def _must_continue(row: SampleRow) -> bool:
    return row.generated < row.params.min_tokens and bool(row.end_ids)


def _forbid_others(logits_V: FloatsC, allowed: NDArray[np.uint32]) -> None:
    """Leave only the tokens of a bitmask, in place. Little-endian, so that byte after byte holds the next 8 tokens."""
    assert allowed.shape == ((len(logits_V) + 31) // 32,), "a bit for each token, in words of 32"
    bits = np.unpackbits(allowed.astype("<u4", copy=False).view(np.uint8), count=len(logits_V), bitorder="little")
    logits_V[bits == 0] = -np.inf


def _penalise(logits_V: FloatsC, row: SampleRow) -> None:
    """Apply the penalties in place, in time that grows with D.

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
