"""Whose experts: how the tokens of different texts are routed, beside what chance would give; and how many experts a
batch of them touches, beside the formula that a price goes by.

Shapes: N tokens of all texts, K experts a token, E experts, S sources, P pieces of text.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, stdev

import torch
from torch import Tensor

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layer_of
from ridgeline.core.models.common.priced_module import listening
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import StepSegment
from ridgeline.insight.trace.capture import asking

# Tokens that go together when texts are shuffled, and see each other alone: tokens that share what they read are routed
# alike, and would not be single draws.
PIECE = 64
SHUFFLES = 200
DRAWS = 200
BATCHES = (1, 2, 4, 8, 16, 32, 64)
_TOGETHER = 32  # pieces a forward
_SEED = 0


@dataclass(frozen=True, slots=True)
class RoutingEffect:
    """A figure of how differently texts are routed, and the same where pieces are dealt to texts by chance:
    the mean, the standard deviation and the largest of so many times.
    """

    found: float
    shuffled: float
    deviation: float
    most: float


@dataclass(frozen=True, slots=True)
class SourceLayer:
    """One mixture. shares[source][expert]: of the source's picks (the domain specialisation of arXiv:2409.02060).
    least and most: of each share, where pieces are dealt to sources by chance.

    apart: the total variation distance of two sources' shares, the mean over all pairs: 0 where all are routed alike,
    1 where no two share an expert. information: the mutual information of source and pick, sources weighed alike, of
    the source's entropy: 0 where a pick says nothing of the source, 1 where it names it.
    """

    layer: int
    shares: tuple[tuple[float, ...], ...]
    least: tuple[tuple[float, ...], ...]
    most: tuple[tuple[float, ...], ...]
    apart: RoutingEffect
    information: RoutingEffect


@dataclass(frozen=True, slots=True)
class TouchedExperts:
    """Distinct experts of a layer that a batch hits, the mean over layers and draws. mixed: of tokens of all texts, as
    many of each; alone: of one text; formula: of a balanced router, E (1 - (1 - k/E)^T).
    """

    batch: int
    mixed: float
    alone: float
    formula: float


@dataclass(frozen=True, slots=True)
class ExpertSources:
    """names and tokens: of the texts, in their order."""

    names: tuple[str, ...]
    tokens: tuple[int, ...]
    layers: tuple[SourceLayer, ...]
    touched: tuple[TouchedExperts, ...]


def check_texts(texts: Mapping[str, Sequence[int]]) -> None:
    """Raise ValueError for a text, given as token ids by name, of fewer than two pieces."""
    short = next((name for name, ids in texts.items() if len(ids) < 2 * PIECE), None)
    if short is not None:
        raise ValueError(f"the text {short} has only {len(texts[short])} tokens; give one of {2 * PIECE} or more")


def expert_sources(model: Model, texts: Mapping[str, Sequence[int]], adapter: int = 0) -> ExpertSources:
    """How a mixture routes texts, given as token ids by name. adapter: the number of the one that is asked, 0 for none.
    Raises ValueError as check_texts does.
    """
    check_texts(texts)
    picked = [_picked(model, ids, adapter) for ids in texts.values()]
    layers = list(picked[0])
    generator = torch.Generator().manual_seed(_SEED)
    ops = {layer_of(path): op for path, op in model.ops_of(Experts)}
    counts = {layer: op.count for layer, op in ops.items() if layer is not None}
    return ExpertSources(
        tuple(texts),
        tuple(map(len, texts.values())),
        tuple(_layer(layer, [own[layer] for own in picked], counts[layer], generator) for layer in layers),
        tuple(_touched(batch, picked, ops[layers[0]], generator) for batch in BATCHES),
    )


@torch.inference_mode()
def _picked(model: Model, ids: Sequence[int], adapter: int) -> dict[int, Tensor]:
    """The experts that the tokens of a text's pieces pass, [N, K] of each layer; what is left over at the end is no
    piece.
    """
    found: dict[int, list[Tensor]] = {}

    def note(path: str, _: Op, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        found.setdefault(layer_of(path) or 0, []).append(inputs[2])

    pieces = torch.tensor(ids[: len(ids) // PIECE * PIECE]).view(-1, PIECE)
    with listening(model.ops_of(Experts), note):
        for some in torch.split(pieces, _TOGETHER):
            kv, rows = Uncached([StepSegment(PIECE, PIECE)] * len(some)), some.numel()
            with asking(model, adapter, rows):
                model.hidden(some.flatten(), torch.arange(PIECE).repeat(len(some)), kv, torch.tensor([rows - 1]))
    return {layer: torch.cat(passes) for layer, passes in sorted(found.items())}


def _layer(layer: int, picked: Sequence[Tensor], count: int, generator: torch.Generator) -> SourceLayer:
    pieces = [_by_piece(own, count) for own in picked]
    every_PE, sizes = torch.cat(pieces), [len(own) for own in pieces]
    found_SE, chance = _shares(pieces), []
    for _ in range(SHUFFLES):
        dealt_PE = every_PE[torch.randperm(len(every_PE), generator=generator)]
        chance.append(_shares(torch.split(dealt_PE, sizes)))
    least_SE, most_SE = torch.stack(chance).aminmax(dim=0)
    shares, least, most = (tuple(map(tuple, each.tolist())) for each in (found_SE, least_SE, most_SE))
    apart, information = (_effect(of, found_SE, chance) for of in (_apart, _information))
    return SourceLayer(layer, shares, least, most, apart, information)


def _effect(of: Callable[[Tensor], float], found_SE: Tensor, chance: Sequence[Tensor]) -> RoutingEffect:
    by_chance = [of(shares_SE) for shares_SE in chance]
    return RoutingEffect(of(found_SE), mean(by_chance), stdev(by_chance), max(by_chance))


def _by_piece(picked_NK: Tensor, count: int) -> Tensor:
    """How often each expert was picked in each piece, [P, E]."""
    return torch.stack([torch.bincount(piece.flatten(), minlength=count) for piece in torch.split(picked_NK, PIECE)])


def _shares(pieces: Sequence[Tensor]) -> Tensor:
    """The share of each expert in the picks of each source's pieces, [S, E]."""
    picks_SE = torch.stack([own_PE.sum(dim=0) for own_PE in pieces]).double()
    return picks_SE / picks_SE.sum(dim=1, keepdim=True)


def _apart(shares_SE: Tensor) -> float:
    return mean(float((one - other).abs().sum() / 2) for one, other in combinations(shares_SE, 2))


def _information(shares_SE: Tensor) -> float:
    ratio_SE = shares_SE / shares_SE.mean(dim=0)
    told = torch.where(shares_SE > 0, shares_SE * ratio_SE.log(), 0.0).sum() / len(shares_SE)
    return max(0.0, float(told)) / math.log(len(shares_SE))  # rounding may leave it a hair under nothing


def _touched(
    batch: int, picked: Sequence[Mapping[int, Tensor]], op: Experts, generator: torch.Generator
) -> TouchedExperts:
    mixed, *alone = (_distinct(batch, texts, op.count, generator) for texts in (picked, *([own] for own in picked)))
    return TouchedExperts(batch, mixed, mean(alone), op.touched(batch))


def _distinct(batch: int, picked: Sequence[Mapping[int, Tensor]], count: int, generator: torch.Generator) -> float:
    """Of so many tokens drawn by chance, each of a text drawn by chance, as a decode step has one of each sequence."""
    hits = []
    for layer in picked[0]:
        every_NK = torch.cat([own[layer] for own in picked])
        sizes_S = torch.tensor([len(own[layer]) for own in picked])
        starts_S = sizes_S.cumsum(dim=0) - sizes_S
        source = torch.randint(len(picked), (DRAWS, batch), generator=generator)
        token = (torch.rand(DRAWS, batch, generator=generator, dtype=torch.double) * sizes_S[source]).long()
        drawn = every_NK[starts_S[source] + token].flatten(1)
        hits.append(float(torch.zeros(DRAWS, count).scatter_(1, drawn, 1.0).sum(dim=1).mean()))
    return mean(hits)
