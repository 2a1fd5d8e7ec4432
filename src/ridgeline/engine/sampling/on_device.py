"""The sampler on a device, which processes many rows at once, where the logits are.

Rows that take the same steps form a group (groups.py), and a group runs no step that none of its rows needs. Nothing
here waits for the device: the steps and their shapes follow from the rows' parameters. These go to the device as a few
small tensors, and one comes back: each row's token, its largest logit (which shows whether the row failed), and
log-probabilities if requested.

The order is likeliest first, and lowest id first among equals. It is that of int64 keys which combine both, so that no
two are equal and a cut is one key. Weights are summed as on the CPU, fp32 in blocks of 128 and float64 over the blocks.
A token may differ from the CPU's if its random number lies within rounding of a boundary. A device needs float64.

Legend: R rows, G rows of a group, V vocabulary, C candidates of a row in order of id, B blocks of 128 of them, K ranked
ones.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from ridgeline.backends.staging import staged
from ridgeline.core.ops.backend import Backend
from ridgeline.engine.sampling.candidates import BLOCK
from ridgeline.engine.sampling.groups import SampleGroup, groups_of
from ridgeline.engine.sampling.sample_row import PROCESSED, RAW, PromptLogprob, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.sampler import Sampler

_LOW_WORD = 0xFFFFFFFF


class DeviceSampler(Sampler):
    """The sampler on the device of the logits, which processes many rows at once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @override
    def _sample(self, logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
        groups = groups_of(rows, logits_RV.shape[1], logits_RV.device)
        answers = iter(choose(self._backend, logits_RV, groups).tolist())  # the one transfer to the host
        results: dict[int, Sampled | RowFailure] = {}
        for group in groups:
            for member in group.members:
                results[member] = _result(answers, group, rows[member].params.logprobs)
        return [results[index] for index in range(len(rows))]

    @override
    def _score(
        self, logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
    ) -> list[PromptLogprob | RowFailure]:
        most = max(alternatives, default=0)
        tokens_R1 = staged(tokens, logits_RV.device, torch.int64).unsqueeze(1)
        scores: list[PromptLogprob | RowFailure] = []
        answers = shares_of(logits_RV, tokens_R1, most).tolist()  # the one transfer to the host
        for answer, token, wanted in zip(answers, tokens, alternatives, strict=True):
            top, *report = answer
            if math.isfinite(top):
                scores.append(PromptLogprob(token, *_read_report(iter(report), most, wanted)))
            else:
                scores.append(RowFailure.of(top, RAW))
        return scores


def _result(answers: Iterator[float], group: SampleGroup, wanted: int | None) -> Sampled | RowFailure:
    """Read the sampled token and log-probabilities of the next row from the numbers that `_answer` computed.

    Args:
        answers: The numbers.
        group: The group of the row.
        wanted: The number of alternatives that this row reports.
    """
    token, raw_top, top = int(next(answers)), next(answers), next(answers)
    reports = [] if group.logprobs is None else [_read_report(answers, group.logprobs, wanted or 0) for _ in range(2)]
    for largest, what in ((raw_top, RAW), (top, PROCESSED)):
        if not math.isfinite(largest):
            return RowFailure.of(largest, what)
    return Sampled.reported(token, *reports) if reports else Sampled(token)


def _read_report(answers: Iterator[float], count: int, wanted: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    own = next(answers)
    shares, tokens = [next(answers) for _ in range(count)], [int(next(answers)) for _ in range(count)]
    listed = zip(tokens[:wanted], shares[:wanted], strict=True)
    return own, tuple((token, share) for token, share in listed if share > -math.inf)


# -- on the device: tensors in, tensors out ---------------------------------------------------------------------------


def choose(backend: Backend, logits_RV: Tensor, groups: Sequence[SampleGroup]) -> Tensor:
    """Choose a token for every row of logits, group after group, as one flat float64 tensor for `_result` to read."""
    return torch.cat([_answer(backend, logits_RV, group).flatten() for group in groups])


def _answer(backend: Backend, logits_RV: Tensor, group: SampleGroup) -> Tensor:
    """Compute the sampled tokens and log-probabilities of a group of rows, float64 [G, 3 or more].

    The columns are the token, the largest logit of the model, the largest one after changes, then both reports.
    """
    all_rows = len(group.members) == len(logits_RV)  # in order, as in any group
    raw_GV = logits_RV if all_rows else logits_RV.index_select(0, group.members_G)
    if group.greedy and group.changes is None and group.logprobs is None:
        return backend.likeliest(raw_GV)
    raw_top_G1, best_G1 = raw_GV.max(dim=1, keepdim=True)  # NaN if there is one; the lowest index among equals
    processed_GV, top_G1 = raw_GV, raw_top_G1
    if group.changes is not None:
        processed_GV = group.changes.apply(raw_GV)
        top_G1, best_G1 = processed_GV.max(dim=1, keepdim=True)
    candidates, index_G1, token_G1 = None, best_G1, best_G1
    if not group.greedy:
        candidates = _truncated(processed_GV, top_G1, group)
        index_G1 = candidates.draw(group.settings_4G1.select(0, 3))
        token_G1 = candidates.tokens(index_G1)
    columns = [token_G1, raw_top_G1, top_G1]
    if group.logprobs is not None:
        raw = _softmax(raw_GV, raw_top_G1).report(token_G1, group.logprobs)
        if candidates is None and group.changes is None:  # both distributions are the model's own
            columns += [*raw, *raw]
        else:
            columns += [*raw, *(candidates or _softmax(processed_GV, top_G1)).report(index_G1, group.logprobs)]
    return torch.cat([column.double() for column in columns], dim=1)


def shares_of(logits_RV: Tensor, tokens_R1: Tensor, count: int) -> Tensor:
    """Compute the largest logit of each row, and the report on one token and the `count` likeliest.

    Returns:
        float64 [R, 2 + 2 count].
    """
    top_R1 = logits_RV.amax(dim=1, keepdim=True)
    columns = [top_R1, *_softmax(logits_RV, top_R1).report(tokens_R1, count)]
    return torch.cat([column.double() for column in columns], dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class _DeviceCandidates:
    """The tokens of each row that may be drawn, in order of id."""

    ids_GC: Tensor | None
    """The token ids of the candidates; None while they are the whole vocabulary."""
    logits_GC: Tensor
    """The logits of the candidates after bias, mask and penalties."""
    weights_GC: Tensor
    """The weights of the candidates, exp((logit - largest logit) / temperature); 0 if a token may not be drawn."""
    ends_GB: Tensor
    """The sums of the candidates' weights up to the end of each block, float64."""
    top_G1: Tensor
    """The largest logit of each row, from which the weights were computed."""
    temperature_G1: Tensor
    """The temperature of each row, from which the weights were computed."""
    lists_all: bool = False
    """Whether a report omits only impossible tokens; if not, it omits all that may not be drawn."""

    def tokens(self, index_GK: Tensor) -> Tensor:
        """Return the token ids of the candidates at these indices."""
        return index_GK if self.ids_GC is None else self.ids_GC.gather(1, index_GK)

    def keep(self, kept_GC: Tensor) -> "_DeviceCandidates":
        """Return the candidates with a weight of 0 for those that top-p or min-p removes."""
        weights_GC = self.weights_GC * kept_GC
        return replace(self, weights_GC=weights_GC, ends_GB=_block_ends(weights_GC))

    @property
    def total(self) -> Tensor:
        """The total weight of the tokens that may be drawn [G, 1]."""
        return self.ends_GB.narrow(1, -1, 1)

    def draw(self, uniform_G1: Tensor) -> Tensor:
        """Return the index [G, 1] at which the cumulative weight first exceeds uniform (in [0, 1)) x total."""
        point_G1 = uniform_G1 * self.total
        block_G1 = _first_above(self.ends_GB, point_G1)
        before_G1 = pad(self.ends_GB, (1, 0)).gather(1, block_G1)
        inside = _blocks(self.weights_GC).gather(1, block_G1.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
        index_G1 = block_G1 * BLOCK + _first_above(inside.double().cumsum(dim=1), point_G1 - before_G1)
        index_G1 = index_G1.clamp(max=self.weights_GC.shape[1] - 1)
        # A parallel sum may rise by rounding at a weight of 0, and such a token must never be drawn.
        drawable_G1 = self.weights_GC.gather(1, index_G1) > 0
        return torch.where(drawable_G1, index_G1, self.weights_GC.argmax(dim=1, keepdim=True))

    def report(self, index_G1: Tensor, count: int) -> list[Tensor]:
        """Return the log-probabilities of one candidate per row and of the likeliest tokens.

        Returns:
            The log-probabilities of the candidates [G, 1] and of the likeliest tokens [G, count], and these tokens [G,
            count]. If there are fewer, -inf fills the rest.
        """
        listed = min(count, self.logits_GC.shape[1])
        ranked_GK = _index(_rank(self.logits_GC).topk(listed).values)
        tokens_GK = pad(self.tokens(ranked_GK), (0, count - listed))
        return [self._shares(index_G1), pad(self._shares(ranked_GK), (0, count - listed), value=-math.inf), tokens_GK]

    def _shares(self, index_GK: Tensor) -> Tensor:
        """Return the log-probabilities of the candidates at these indices."""
        scaled_GK = (self.logits_GC.gather(1, index_GK).double() - self.top_G1) / self.temperature_G1
        shares_GK = scaled_GK - self.total.log()
        return shares_GK if self.lists_all else shares_GK.where(self.weights_GC.gather(1, index_GK) > 0, -math.inf)


def _softmax(logits_GV: Tensor, top_G1: Tensor) -> _DeviceCandidates:
    """Return all tokens of the vocabulary as candidates, weighted at temperature 1."""
    return replace(_weighed(None, logits_GV, top_G1, torch.ones_like(top_G1)), lists_all=True)


def _weighed(ids_GC: Tensor | None, logits_GC: Tensor, top_G1: Tensor, temperature_G1: Tensor) -> _DeviceCandidates:
    """Return candidate tokens with the weights that a temperature gives them."""
    weights_GC = ((logits_GC - top_G1) / temperature_G1.float()).exp()
    return _DeviceCandidates(ids_GC, logits_GC, weights_GC, _block_ends(weights_GC), top_G1, temperature_G1)


def _truncated(logits_GV: Tensor, top_G1: Tensor, group: SampleGroup) -> _DeviceCandidates:
    """Apply top-k, temperature, top-p and min-p to a group of rows, and return the tokens that may be drawn."""
    temperature_G1, top_p_G1, min_p_G1, _ = group.settings_4G1.unbind()
    ids_GC, logits_GC = _top_k(logits_GV, group) if group.top_k else (None, logits_GV)
    candidates = _weighed(ids_GC, logits_GC, top_G1, temperature_G1)
    if group.top_p:
        candidates = candidates.keep(_in_top_p(candidates, top_p_G1))
    if group.min_p:
        candidates = candidates.keep(candidates.weights_GC >= min_p_G1.float())
    return candidates


def _top_k(logits_GV: Tensor, group: SampleGroup) -> tuple[Tensor, Tensor]:
    """Return the ids and logits of the top-k tokens of each row, in order of id; -inf for those past a row's own k."""
    ids_GC = _index(_rank(logits_GV).topk(group.top_k).values)
    past_GC = torch.arange(group.top_k, device=ids_GC.device) >= group.top_k_G1
    logits_GC = logits_GV.gather(1, ids_GC).masked_fill(past_GC, -math.inf)
    ids_GC, order_GC = ids_GC.sort(dim=1)
    return ids_GC, logits_GC.gather(1, order_GC)


def _in_top_p(candidates: _DeviceCandidates, top_p_G1: Tensor) -> Tensor:
    """Return which candidates are in the smallest set of the likeliest with at least p of the total weight.

    The set is never empty.
    """
    rank_GC = _rank(candidates.weights_GC)
    falling_GC = rank_GC.sort(dim=1, descending=True).values
    reached_GC = candidates.weights_GC.gather(1, _index(falling_GC)).double().cumsum(dim=1)
    short_GC = reached_GC < top_p_G1 * candidates.total
    last_G1 = short_GC.sum(dim=1, keepdim=True).clamp(max=rank_GC.shape[1] - 1)
    return rank_GC >= falling_GC.gather(1, last_G1)


def _rank(values_GC: Tensor) -> Tensor:
    """Return int64 keys in the order of fp32 values; among equal values, a lower index has a larger key."""
    bits_GC = (values_GC + 0.0).view(torch.int32).long()  # -0.0 + 0.0 is 0.0, to which it is equal
    # Among negative floats, the larger one has the smaller bits.
    ordered_GC = torch.where(bits_GC < 0, bits_GC ^ 0x7FFFFFFF, bits_GC)
    return (ordered_GC << 32) + (_LOW_WORD - torch.arange(values_GC.shape[1], device=values_GC.device))


def _index(rank_GK: Tensor) -> Tensor:
    """Return the indices that the int64 keys of `_rank` contain."""
    return _LOW_WORD - (rank_GK & _LOW_WORD)


def _blocks(weights_GC: Tensor) -> Tensor:
    """Return weights in blocks [G, B, BLOCK]; zeros fill the last block."""
    return pad(weights_GC, (0, -weights_GC.shape[1] % BLOCK)).view(len(weights_GC), -1, BLOCK)


def _block_ends(weights_GC: Tensor) -> Tensor:
    return _blocks(weights_GC).sum(dim=2).double().cumsum(dim=1)


def _first_above(ends_GB: Tensor, point_G1: Tensor) -> Tensor:
    """Return the first index [G, 1] at which sums exceed a point.

    If rounding has put the point at the end, it is the last index at which the sum rises.
    """
    past_G1 = (ends_GB <= point_G1).sum(dim=1, keepdim=True)
    return torch.minimum(past_G1, (ends_GB < ends_GB.narrow(1, -1, 1)).sum(dim=1, keepdim=True))
