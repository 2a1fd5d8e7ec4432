"""The grouping of rows that take the same sampling steps on a device, with the inputs of these steps as tensors there.

Legend: G rows of a group, V vocabulary, N places in a group's logits, M rows with a bitmask of W words.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.backends.staging import staged
from ridgeline.engine.sampling.candidates import IdsC
from ridgeline.engine.sampling.logits import must_continue, needs_adjusting
from ridgeline.engine.sampling.sample_row import SampleRow
from ridgeline.engine.sampling.uniform import uniform

MAX_LOGITS = 1 << 23
"""The maximum number of logits in a group of rows that a device samples together.

It bounds the additional memory of the steps: with a sort, some 60 bytes per logit.
"""


class _SamplingSteps(NamedTuple):
    """The sampling steps that a row takes. A top-k or top-p that removes nothing is no step."""

    greedy: bool
    """Whether the row takes the largest logit instead of drawing a token."""
    top_k: bool
    """Whether top-k is applied to the row."""
    top_p: bool
    """Whether top-p is applied to the row."""
    logprobs: bool
    """Whether the log-probabilities of the row's token are reported."""


@dataclass(frozen=True, slots=True, eq=False)
class LogitChanges:
    """The changes of a group's logits before any temperature, as tensors on their device.

    A place is an offset into the flat logits of the group.
    """

    biased_N: Tensor
    """The flat indices of the logits that get a bias."""
    biases_N: Tensor
    """The biases to add to logits."""
    forbidden_N: Tensor
    """The flat indices of the logits of forbidden tokens."""
    masked_M: Tensor
    """The rows of the group that have a bitmask."""
    words_MW: Tensor
    """The bitmasks of the rows that have one, int32."""
    penalised_N: Tensor
    """The flat indices of the logits that get penalties."""
    penalties_4N: Tensor
    """The output count and the repetition, frequency and presence penalty of each logit with penalties."""

    @classmethod
    def of(cls, rows: Sequence[SampleRow], vocabulary: int, device: torch.device) -> "LogitChanges | None":
        """Return the changes of a group's logits before any temperature; None if there are none."""
        if not any(map(needs_adjusting, rows)):
            return None
        biased, forbidden, penalised = [], [], []
        for start, row in zip(range(0, len(rows) * vocabulary, vocabulary), rows, strict=True):
            biased.append(_places(start, list(row.params.logit_bias), vocabulary))
            forbidden.append(_places(start, row.end_ids if must_continue(row) else (), vocabulary))
            if row.params.uses_history and row.history is not None:
                penalised.append(_places(start, row.history.ids, vocabulary))
        masks = {index: row.allowed for index, row in enumerate(rows) if row.allowed is not None}
        assert all(words.shape == ((vocabulary + 31) // 32,) for words in masks.values()), (
            "the mask has one bit per token"
        )
        biases = [bias for row in rows for bias in row.params.logit_bias.values()]
        penalties = [_penalties(row) for row in rows if row.params.uses_history]
        return cls(
            _joined(biased, device),
            staged(biases, device, torch.float32),
            _joined(forbidden, device),
            staged(list(masks), device, torch.int64),
            staged(np.array(list(masks.values()), np.uint32).view(np.int32), device),
            _joined(penalised, device),
            staged(np.concatenate([np.zeros((4, 0), np.float32), *penalties], axis=1), device),
        )

    def apply(self, logits_GV: Tensor) -> Tensor:
        """Return the logits after bias, mask and penalties; `logits_GV` does not change."""
        changed_GV = logits_GV.clone()
        flat = changed_GV.view(-1)
        if self.biased_N.numel():
            flat.index_add_(0, self.biased_N, self.biases_N)
        if self.forbidden_N.numel():
            flat.index_fill_(0, self.forbidden_N, -math.inf)
        if self.masked_M.numel():
            self._forbid_others(changed_GV)
        if self.penalised_N.numel():
            flat.index_copy_(0, self.penalised_N, self._penalised(flat.index_select(0, self.penalised_N)))
        return changed_GV

    def _forbid_others(self, logits_GV: Tensor) -> None:
        """Forbid all tokens outside the bitmasks, in place."""
        bits = (self.words_MW.unsqueeze(2) >> torch.arange(32, dtype=torch.int32, device=logits_GV.device)) & 1
        forbidden_MV = bits.flatten(1).narrow(1, 0, logits_GV.shape[1]) == 0
        masked_MV = logits_GV.index_select(0, self.masked_M).masked_fill_(forbidden_MV, -math.inf)
        logits_GV.index_copy_(0, self.masked_M, masked_MV)

    def _penalised(self, logits_N: Tensor) -> Tensor:
        counts_N, repetition_N, frequency_N, presence_N = self.penalties_4N.unbind()
        logits_N = torch.where(logits_N < 0, logits_N * repetition_N, logits_N / repetition_N)
        return logits_N - frequency_N * counts_N - presence_N * (counts_N > 0)


def _places(start: int, ids: Sequence[int] | IdsC, vocabulary: int) -> IdsC:
    places = np.asarray(ids, np.int64)
    # On a device an index past the end would hit the next row, or end the process.
    assert not len(places) or (places.min() >= 0 and places.max() < vocabulary), "a token id is out of vocabulary"
    return places + start


def _joined(places: Sequence[IdsC], device: torch.device) -> Tensor:
    return staged(np.concatenate([np.zeros(0, np.int64), *places]), device)


def _penalties(row: SampleRow) -> NDArray[np.float32]:
    assert row.history is not None
    params, counts = row.params, row.history.counts
    penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    return np.stack([counts, *(np.full_like(counts, penalty) for penalty in penalties)])


@dataclass(frozen=True, slots=True, eq=False)
class SampleGroup:
    """The rows of a batch that take the same sampling steps, and the inputs of these steps."""

    members: Sequence[int]
    """The indices in the batch of the rows in the group."""
    members_G: Tensor
    """The indices of the rows in the batch, as a tensor on the device."""
    changes: LogitChanges | None
    """The changes of the logits before any temperature; None if there are none."""
    greedy: bool
    """Whether the rows of the group take the largest logit instead of drawing a token."""
    top_k: int
    """The largest k for top-k among the rows; 0 for no top-k."""
    top_p: bool
    """Whether top-p is applied to the rows."""
    min_p: bool
    """Whether min-p is applied to the rows."""
    logprobs: int | None
    """The maximum number of alternatives that a row reports; None if none reports log-probabilities."""
    top_k_G1: Tensor
    """The k for top-k of each row, int64."""
    settings_4G1: Tensor
    """The temperature, top-p, min-p and uniform random number of each row, float64."""


def groups_of(rows: Sequence[SampleRow], vocabulary: int, device: torch.device) -> list[SampleGroup]:
    """Return the rows in groups, with the inputs of their steps on the logits' device."""
    together = list(_members(rows, vocabulary))
    order = [member for _, members in together for member in members]
    numbers = staged(_settings([rows[member] for member in order]), device, torch.float64)
    whole = staged([order, [rows[member].params.top_k for member in order]], device, torch.int64)
    sizes = [len(members) for _, members in together]
    parts = zip(torch.split(numbers.unsqueeze(2), sizes, 1), torch.split(whole, sizes, 1), strict=True)
    return [
        _group(steps, members, [rows[member] for member in members], vocabulary, settings, *both.unbind())
        for (steps, members), (settings, both) in zip(together, parts, strict=True)
    ]


def _group(
    steps: _SamplingSteps,
    members: Sequence[int],
    rows: Sequence[SampleRow],
    vocabulary: int,
    settings_4G1: Tensor,
    members_G: Tensor,
    top_k_G: Tensor,
) -> SampleGroup:
    params = [row.params for row in rows]
    return SampleGroup(
        members=members,
        members_G=members_G,
        changes=LogitChanges.of(rows, vocabulary, members_G.device),
        greedy=steps.greedy,
        top_k=max(own.top_k for own in params) if steps.top_k else 0,
        top_p=steps.top_p,
        min_p=any(own.min_p > 0 for own in params),
        logprobs=max(own.logprobs or 0 for own in params) if steps.logprobs else None,
        top_k_G1=top_k_G.unsqueeze(1),
        settings_4G1=settings_4G1,
    )


def _members(rows: Sequence[SampleRow], vocabulary: int) -> Iterator[tuple[_SamplingSteps, Sequence[int]]]:
    """Yield the indices of rows that take the same steps, at most as many together as MAX_LOGITS allows."""
    alike: dict[_SamplingSteps, list[int]] = {}
    for index, row in enumerate(rows):
        params = row.params
        is_sampled = not params.greedy
        steps = _SamplingSteps(
            params.greedy,
            is_sampled and 0 < params.top_k < vocabulary,
            is_sampled and params.top_p < 1,
            params.logprobs is not None,
        )
        alike.setdefault(steps, []).append(index)
    most = max(1, MAX_LOGITS // vocabulary)
    for steps, members in alike.items():
        yield from ((steps, members[start : start + most]) for start in range(0, len(members), most))


def _settings(rows: Sequence[SampleRow]) -> list[list[float]]:
    params, points = [row.params for row in rows], [0.0] * len(rows)
    if not all(own.greedy for own in params):
        points = uniform([r.seed for r in rows], [r.position for r in rows], [r.choice for r in rows]).tolist()
    return [[own.temperature for own in params], [own.top_p for own in params], [own.min_p for own in params], points]
