"""The sampler on a device: the steps that sampler.py lists, in that order, for many rows at once where the logits are.

Rows that take the same steps form a group, and a group runs no step that none of its rows asks for. Nothing here waits
for the device: what runs, and over what shapes, follows from the rows' parameters. Those go there as a few small
tensors, and one comes back: each row's token, its largest logit (which says whether the row failed), and
log-probabilities where they are asked for.

Likeliest first, lowest id first among equals: that is the order of int64 keys which hold both, so that no two are equal
and a cut is one key. Weights are summed as on the CPU, fp32 in blocks of 128 and float64 over the blocks; a token may
differ from the CPU's where the number that it is drawn with lies within rounding of a boundary. A device needs float64.

Legend: R rows, G rows of a group, V vocabulary, C candidates of a row in order of id, B blocks of 128 of them, K ranked
ones, N places in a group's logits, M rows with a bitmask of W words.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ridgeline.engine.sampling.candidates import BLOCK, IdsC
from ridgeline.engine.sampling.logits import must_continue, needs_adjusting
from ridgeline.engine.sampling.row import PROCESSED, RAW, PromptLogprob, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.uniform import uniform

MOST_LOGITS = 1 << 23
"""Logits that a group may hold. It bounds what the steps keep beside them: with a sort, some 60 bytes for each."""

_LOW_WORD = 0xFFFFFFFF


class _Steps(NamedTuple):
    """Which steps a row takes; a top-k or top-p that removes nothing is none."""

    greedy: bool
    top_k: bool
    top_p: bool
    logprobs: bool


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What changes a group's logits before any temperature, on their device. A place is an offset into the flat logits.

    biases_N: added at biased_N. forbidden_N: places. words_MW: int32, the bitmasks of masked_M, which are rows of the
    group. penalties_4N: output count, repetition, frequency and presence penalty at penalised_N.
    """

    biased_N: Tensor
    biases_N: Tensor
    forbidden_N: Tensor
    masked_M: Tensor
    words_MW: Tensor
    penalised_N: Tensor
    penalties_4N: Tensor

    @classmethod
    def of(cls, rows: Sequence[SampleRow], vocabulary: int, device: torch.device) -> "Changes | None":
        """The changes of a group's rows; None if there are none."""
        if not any(map(needs_adjusting, rows)):
            return None
        biased, forbidden, penalised = [], [], []
        for start, row in zip(range(0, len(rows) * vocabulary, vocabulary), rows, strict=True):
            biased.append(_places(start, list(row.params.logit_bias), vocabulary))
            forbidden.append(_places(start, row.end_ids if must_continue(row) else (), vocabulary))
            if row.params.uses_history and row.history is not None:
                penalised.append(_places(start, row.history.ids, vocabulary))
        masks = {index: row.allowed for index, row in enumerate(rows) if row.allowed is not None}
        assert all(words.shape == ((vocabulary + 31) // 32,) for words in masks.values()), "a bit for each token"
        biases = [bias for row in rows for bias in row.params.logit_bias.values()]
        penalties = [_penalties(row) for row in rows if row.params.uses_history]
        return cls(
            _joined(biased, device),
            torch.tensor(biases, dtype=torch.float32, device=device),
            _joined(forbidden, device),
            torch.tensor(list(masks), dtype=torch.int64, device=device),
            torch.tensor(np.array(list(masks.values()), np.uint32).view(np.int32), device=device),
            _joined(penalised, device),
            torch.tensor(np.concatenate([np.zeros((4, 0), np.float32), *penalties], axis=1), device=device),
        )

    def apply(self, logits_GV: Tensor) -> Tensor:
        """The logits after bias, mask and penalties; `logits_GV` is not changed."""
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
        """Leave only the tokens of the bitmasks, in place."""
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
    # On a device an index past the end would spill into the next row, or end the process.
    assert not len(places) or (places.min() >= 0 and places.max() < vocabulary), "a token that the model does not have"
    return places + start


def _joined(places: Sequence[IdsC], device: torch.device) -> Tensor:
    return torch.tensor(np.concatenate([np.zeros(0, np.int64), *places]), device=device)


def _penalties(row: SampleRow) -> NDArray[np.float32]:
    assert row.history is not None
    params, counts = row.params, row.history.counts
    penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    return np.stack([counts, *(np.full_like(counts, penalty) for penalty in penalties)])


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that take the same steps, and what each step needs to know.

    members: which rows of the batch they are, and members_G the same on the device. changes: before any temperature;
    None if there are none. top_k_G1: int64, and top_k the largest of them, 0 for no top-k. settings_4G1: float64:
    temperature, top-p, min-p and the uniform number that a token is drawn with. logprobs: most alternatives that a row
    wants; None if none wants any.
    """

    members: Sequence[int]
    members_G: Tensor
    changes: Changes | None
    greedy: bool
    top_k: int
    top_p: bool
    min_p: bool
    logprobs: int | None
    top_k_G1: Tensor
    settings_4G1: Tensor


def groups_of(rows: Sequence[SampleRow], vocabulary: int, device: torch.device) -> list[Group]:
    """The rows in groups, with what their steps need on the logits' device."""
    together = list(_members(rows, vocabulary))
    order = [member for _, members in together for member in members]
    numbers = torch.tensor(_settings([rows[member] for member in order]), dtype=torch.float64, device=device)
    whole = torch.tensor([order, [rows[member].params.top_k for member in order]], dtype=torch.int64, device=device)
    sizes = [len(members) for _, members in together]
    parts = zip(torch.split(numbers.unsqueeze(2), sizes, 1), torch.split(whole, sizes, 1), strict=True)
    return [
        _group(steps, members, [rows[member] for member in members], vocabulary, settings, *both.unbind())
        for (steps, members), (settings, both) in zip(together, parts, strict=True)
    ]


def _group(
    steps: _Steps,
    members: Sequence[int],
    rows: Sequence[SampleRow],
    vocabulary: int,
    settings_4G1: Tensor,
    members_G: Tensor,
    top_k_G: Tensor,
) -> Group:
    params = [row.params for row in rows]
    return Group(
        members=members,
        members_G=members_G,
        changes=Changes.of(rows, vocabulary, members_G.device),
        greedy=steps.greedy,
        top_k=max(own.top_k for own in params) if steps.top_k else 0,
        top_p=steps.top_p,
        min_p=any(own.min_p > 0 for own in params),
        logprobs=max(own.logprobs or 0 for own in params) if steps.logprobs else None,
        top_k_G1=top_k_G.unsqueeze(1),
        settings_4G1=settings_4G1,
    )


def _members(rows: Sequence[SampleRow], vocabulary: int) -> Iterator[tuple[_Steps, Sequence[int]]]:
    """Which rows take the same steps, no more of them together than MOST_LOGITS allows."""
    alike: dict[_Steps, list[int]] = {}
    for index, row in enumerate(rows):
        params = row.params
        drawn = not params.greedy
        steps = _Steps(
            params.greedy,
            drawn and 0 < params.top_k < vocabulary,
            drawn and params.top_p < 1,
            params.logprobs is not None,
        )
        alike.setdefault(steps, []).append(index)
    most = max(1, MOST_LOGITS // vocabulary)
    for steps, members in alike.items():
        yield from ((steps, members[start : start + most]) for start in range(0, len(members), most))


def _settings(rows: Sequence[SampleRow]) -> list[list[float]]:
    params, points = [row.params for row in rows], [0.0] * len(rows)
    if not all(own.greedy for own in params):
        points = uniform([r.seed for r in rows], [r.position for r in rows], [r.choice for r in rows]).tolist()
    return [[own.temperature for own in params], [own.top_p for own in params], [own.min_p for own in params], points]


def sample_on_device(logits_RV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
    """As `sample`, where the logits are."""
    vocabulary = logits_RV.shape[1]
    groups = groups_of(rows, vocabulary, logits_RV.device)
    answers = iter(choose(logits_RV.detach().contiguous(), groups).tolist())  # the one transfer to the host
    results: dict[int, Sampled | RowFailure] = {}
    for group in groups:
        for member in group.members:
            results[member] = _result(answers, group, rows[member].params.logprobs)
    return [results[index] for index in range(len(rows))]


def _result(answers: Iterator[float], group: Group, wanted: int | None) -> Sampled | RowFailure:
    """What `_answer` says of the next row. `wanted`: alternatives that this row asks for."""
    token, raw_top, top = int(next(answers)), next(answers), next(answers)
    reports = [] if group.logprobs is None else [_read_report(answers, group.logprobs, wanted or 0) for _ in range(2)]
    for largest, what in ((raw_top, RAW), (top, PROCESSED)):
        if not math.isfinite(largest):
            return RowFailure.of(largest, what)
    if not reports:
        return Sampled(token)
    (logprob_raw, top_raw), (logprob, alternatives) = reports
    return Sampled(token, logprob_raw=logprob_raw, logprob=logprob, top_raw=top_raw, top=alternatives)


def _read_report(answers: Iterator[float], count: int, wanted: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    own = next(answers)
    shares, tokens = [next(answers) for _ in range(count)], [int(next(answers)) for _ in range(count)]
    listed = zip(tokens[:wanted], shares[:wanted], strict=True)
    return own, tuple((token, share) for token, share in listed if share > -math.inf)


def score_on_device(
    logits_RV: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
) -> list[PromptLogprob | RowFailure]:
    """As `score`, where the logits are."""
    most = max(alternatives, default=0)
    tokens_R1 = torch.tensor(tokens, dtype=torch.int64, device=logits_RV.device).unsqueeze(1)
    scores: list[PromptLogprob | RowFailure] = []
    answers = shares_of(logits_RV.detach(), tokens_R1, most).tolist()  # the one transfer to the host
    for answer, token, wanted in zip(answers, tokens, alternatives, strict=True):
        top, *report = answer
        if math.isfinite(top):
            scores.append(PromptLogprob(token, *_read_report(iter(report), most, wanted)))
        else:
            scores.append(RowFailure.of(top, RAW))
    return scores


# -- on the device: tensors in, tensors out ---------------------------------------------------------------------------


def choose(logits_RV: Tensor, groups: Sequence[Group]) -> Tensor:
    """What is to be known of every row, group after group: float64, flat; `_result` reads it."""
    answers = [_answer(logits_RV, group).flatten() for group in groups]
    return torch.cat(answers) if answers else torch.empty(0)


def _answer(logits_RV: Tensor, group: Group) -> Tensor:
    """float64 [G, 3 or more]: token, largest logit as the model gave it and after changes, then both reports."""
    all_rows = len(group.members) == len(logits_RV)  # in order, as they are in any group
    raw_GV = logits_RV if all_rows else logits_RV.index_select(0, group.members_G)
    raw_top_G1, best_G1 = raw_GV.max(dim=1, keepdim=True)  # NaN if there is one; the lowest index of equals
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
        columns += _softmax(raw_GV, raw_top_G1).report(token_G1, group.logprobs)
        columns += (candidates or _softmax(processed_GV, top_G1)).report(index_G1, group.logprobs)
    return torch.cat([column.double() for column in columns], dim=1)


def shares_of(logits_RV: Tensor, tokens_R1: Tensor, count: int) -> Tensor:
    """float64 [R, 2 + 2 count]: the largest logit, then the report on one token a row and the `count` likeliest."""
    top_R1 = logits_RV.amax(dim=1, keepdim=True)
    columns = [top_R1, *_softmax(logits_RV, top_R1).report(tokens_R1, count)]
    return torch.cat([column.double() for column in columns], dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """The tokens of each row that may be drawn, in order of id.

    ids_GC: None while they are the whole vocabulary. weights_GC: exp((logit - largest logit) / temperature), and 0 for
    what may not be drawn. ends_GB: float64 sums of the weights up to the end of each block. top_G1, temperature_G1:
    what made the weights. lists_all: a report leaves out only what is impossible, else all that may not be drawn.
    """

    ids_GC: Tensor | None
    logits_GC: Tensor
    weights_GC: Tensor
    ends_GB: Tensor
    top_G1: Tensor
    temperature_G1: Tensor
    lists_all: bool = False

    def tokens(self, index_GK: Tensor) -> Tensor:
        """The token ids of the candidates at these indices."""
        return index_GK if self.ids_GC is None else self.ids_GC.gather(1, index_GK)

    def keep(self, kept_GC: Tensor) -> "_Candidates":
        """Only those may be drawn; the others stay, with a weight of 0."""
        weights_GC = self.weights_GC * kept_GC
        return replace(self, weights_GC=weights_GC, ends_GB=_block_ends(weights_GC))

    @property
    def total(self) -> Tensor:
        """The mass of what may be drawn [G, 1]."""
        return self.ends_GB.narrow(1, -1, 1)

    def draw(self, uniform_G1: Tensor) -> Tensor:
        """The index [G, 1] at which the cumulative weight first exceeds uniform (in [0, 1)) x total."""
        point_G1 = uniform_G1 * self.total
        block_G1 = _first_above(self.ends_GB, point_G1)
        before_G1 = pad(self.ends_GB, (1, 0)).gather(1, block_G1)
        inside = _blocks(self.weights_GC).gather(1, block_G1.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
        index_G1 = block_G1 * BLOCK + _first_above(inside.double().cumsum(dim=1), point_G1 - before_G1)
        index_G1 = index_G1.clamp(max=self.weights_GC.shape[1] - 1)
        # A sum made in parallel may rise by a rounding where there is no weight, and what has none is never drawn.
        drawable_G1 = self.weights_GC.gather(1, index_G1) > 0
        return torch.where(drawable_G1, index_G1, self.weights_GC.argmax(dim=1, keepdim=True))

    def report(self, index_G1: Tensor, count: int) -> list[Tensor]:
        """Log-probabilities of one candidate a row [G, 1] and of the likeliest [G, count], then those [G, count]; -inf
        fills up where there are no more."""
        listed = min(count, self.logits_GC.shape[1])
        ranked_GK = _index(_rank(self.logits_GC).topk(listed).values)
        tokens_GK = pad(self.tokens(ranked_GK), (0, count - listed))
        return [self._shares(index_G1), pad(self._shares(ranked_GK), (0, count - listed), value=-math.inf), tokens_GK]

    def _shares(self, index_GK: Tensor) -> Tensor:
        """Log-probabilities of the candidates at these indices."""
        scaled_GK = (self.logits_GC.gather(1, index_GK).double() - self.top_G1) / self.temperature_G1
        shares_GK = scaled_GK - self.total.log()
        return shares_GK if self.lists_all else shares_GK.where(self.weights_GC.gather(1, index_GK) > 0, -math.inf)


def _softmax(logits_GV: Tensor, top_G1: Tensor) -> _Candidates:
    """All tokens, at temperature 1."""
    return replace(_weighed(None, logits_GV, top_G1, torch.ones_like(top_G1)), lists_all=True)


def _weighed(ids_GC: Tensor | None, logits_GC: Tensor, top_G1: Tensor, temperature_G1: Tensor) -> _Candidates:
    """Step 6: candidates with the weights that a temperature gives them."""
    weights_GC = ((logits_GC - top_G1) / temperature_G1.float()).exp()
    return _Candidates(ids_GC, logits_GC, weights_GC, _block_ends(weights_GC), top_G1, temperature_G1)


def _truncated(logits_GV: Tensor, top_G1: Tensor, group: Group) -> _Candidates:
    """Steps 6 to 9; top-k goes first, because a temperature does not change the order."""
    temperature_G1, top_p_G1, min_p_G1, _ = group.settings_4G1.unbind()
    ids_GC, logits_GC = _top_k(logits_GV, group) if group.top_k else (None, logits_GV)
    candidates = _weighed(ids_GC, logits_GC, top_G1, temperature_G1)
    if group.top_p:
        candidates = candidates.keep(_in_top_p(candidates, top_p_G1))
    if group.min_p:
        candidates = candidates.keep(candidates.weights_GC >= min_p_G1.float())
    return candidates


def _top_k(logits_GV: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """The largest of each row and their logits, in order of id; -inf for those past a row's own k."""
    ids_GC = _index(_rank(logits_GV).topk(group.top_k).values)
    past_GC = torch.arange(group.top_k, device=ids_GC.device) >= group.top_k_G1
    logits_GC = logits_GV.gather(1, ids_GC).masked_fill(past_GC, -math.inf)
    ids_GC, order_GC = ids_GC.sort(dim=1)
    return ids_GC, logits_GC.gather(1, order_GC)


def _in_top_p(candidates: _Candidates, top_p_G1: Tensor) -> Tensor:
    """Which candidates are in the smallest set of the likeliest whose mass is at least p of the whole; never none."""
    rank_GC = _rank(candidates.weights_GC)
    falling_GC = rank_GC.sort(dim=1, descending=True).values
    reached_GC = candidates.weights_GC.gather(1, _index(falling_GC)).double().cumsum(dim=1)
    short_GC = reached_GC < top_p_G1 * candidates.total
    last_G1 = short_GC.sum(dim=1, keepdim=True).clamp(max=rank_GC.shape[1] - 1)
    return rank_GC >= falling_GC.gather(1, last_G1)


def _rank(values_GC: Tensor) -> Tensor:
    """int64 keys in the order of the fp32 values, the lower index over the higher one where values are equal."""
    bits_GC = (values_GC + 0.0).view(torch.int32).long()  # -0.0 + 0.0 is 0.0, which it equals
    # Of negative floats the larger has the smaller bits.
    ordered_GC = torch.where(bits_GC < 0, bits_GC ^ 0x7FFFFFFF, bits_GC)
    return (ordered_GC << 32) + (_LOW_WORD - torch.arange(values_GC.shape[1], device=values_GC.device))


def _index(rank_GK: Tensor) -> Tensor:
    """The indices that keys of `_rank` hold."""
    return _LOW_WORD - (rank_GK & _LOW_WORD)


def _blocks(weights_GC: Tensor) -> Tensor:
    """[G, B, BLOCK]; zeros fill up the last block."""
    return pad(weights_GC, (0, -weights_GC.shape[1] % BLOCK)).view(len(weights_GC), -1, BLOCK)


def _block_ends(weights_GC: Tensor) -> Tensor:
    return _blocks(weights_GC).sum(dim=2).double().cumsum(dim=1)


def _first_above(ends_GB: Tensor, point_G1: Tensor) -> Tensor:
    """The first index [G, 1] at which sums exceed the point; where rounding has put it at the end, reach the last."""
    past_G1 = (ends_GB <= point_G1).sum(dim=1, keepdim=True)
    return torch.minimum(past_G1, (ends_GB < ends_GB.narrow(1, -1, 1)).sum(dim=1, keepdim=True))
