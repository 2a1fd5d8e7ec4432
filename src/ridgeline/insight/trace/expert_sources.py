"""A comparison of how several texts are routed to experts, with chance, and of the experts per batch with a formula.

The formula is the one by which the price of a mixture-of-experts step is computed.

Shapes: N tokens of all texts, K experts per token, E experts, S sources, P pieces of text.
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
from ridgeline.core.models.common.priced_module import call_hooks
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import StepSegment
from ridgeline.insight.trace.capture import selected_adapter

# Shuffles move pieces of this many tokens, which attend only to each other: tokens with a common context are routed
# alike, so they are not independent samples.
PIECE = 64
SHUFFLES = 200
DRAWS = 200
BATCHES = (1, 2, 4, 8, 16, 32, 64)
_TOGETHER = 32  # pieces per forward pass
_SEED = 0


@dataclass(frozen=True, slots=True)
class RoutingEffect:
    """A measure of how differently texts are routed to experts, and its distribution for randomly assigned texts.

    For the distribution, pieces of all texts are assigned to the texts at random, `SHUFFLES` times.
    """

    found: float
    """The measure of different routing for the actual texts."""
    shuffled: float
    """The mean of the routing measure if pieces of text are assigned to the texts at random."""
    deviation: float
    """The standard deviation of the routing measure if pieces of text are assigned to the texts at random."""
    most: float
    """The maximum of the routing measure if pieces of text are assigned to the texts at random."""


@dataclass(frozen=True, slots=True)
class SourceLayer:
    """The routing of all texts in one mixture-of-experts layer."""

    layer: int
    shares: tuple[tuple[float, ...], ...]
    """The share of each expert in a text's picks, `shares[source][expert]` (arXiv:2409.02060, specialisation)."""
    least: tuple[tuple[float, ...], ...]
    """The minimum of each expert's share over random assignments of text pieces to sources."""
    most: tuple[tuple[float, ...], ...]
    """The maximum of each expert's share over random assignments of text pieces to sources."""
    apart: RoutingEffect
    """The mean total variation distance between two sources: 0 if all are routed alike, 1 if none share an expert."""
    information: RoutingEffect
    """The mutual information of source and pick, relative to the entropy of equally weighted sources.

    It is 0 if a pick says nothing about its source, and 1 if it identifies the source.
    """


@dataclass(frozen=True, slots=True)
class TouchedExperts:
    """The number of distinct experts per layer that a batch selects, averaged over layers and random draws."""

    batch: int
    mixed: float
    """The number of distinct experts that a batch selects if each token comes from a text chosen at random."""
    alone: float
    """The number of distinct experts that a batch with tokens of one text selects, averaged over the texts."""
    formula: float
    """The expected number of distinct experts for T = `batch` tokens and a balanced router, E (1 - (1 - k/E)^T)."""


@dataclass(frozen=True, slots=True)
class ExpertSources:
    """A comparison of how a mixture-of-experts model routes several texts."""

    names: tuple[str, ...]
    """The names of the compared texts."""
    tokens: tuple[int, ...]
    """The number of tokens of each compared text."""
    layers: tuple[SourceLayer, ...]
    touched: tuple[TouchedExperts, ...]


def check_texts(texts: Mapping[str, Sequence[int]]) -> None:
    """Check that each text, given as token ids by name, has at least two pieces of `PIECE` (64) tokens.

    Raises:
        ValueError: If a text is shorter.
    """
    short = next((name for name, ids in texts.items() if len(ids) < 2 * PIECE), None)
    if short is not None:
        raise ValueError(
            f"the text {short} has only {len(texts[short])} tokens; give one of {2 * PIECE} or more tokens"
        )


def expert_sources(model: Model, texts: Mapping[str, Sequence[int]], adapter: int = 0) -> ExpertSources:
    """Compare how a mixture-of-experts model routes texts.

    Args:
        model: The model.
        texts: Token ids by name.
        adapter: The number of the LoRA adapter; 0 for none.

    Raises:
        ValueError: If a text is too short.
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
    """Return the experts that each token of a text selects, [N, K] per layer; a partial last piece is dropped."""
    found: dict[int, list[Tensor]] = {}

    def note(path: str, _: Op, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        found.setdefault(layer_of(path) or 0, []).append(inputs[2])

    pieces = torch.tensor(ids[: len(ids) // PIECE * PIECE]).view(-1, PIECE)
    with call_hooks(model.ops_of(Experts), note):
        for some in torch.split(pieces, _TOGETHER):
            kv, rows = Uncached([StepSegment(PIECE, PIECE)] * len(some)), some.numel()
            with selected_adapter(model, adapter, rows):
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
    """Return how often each expert was selected in each piece, [P, E]."""
    return torch.stack([torch.bincount(piece.flatten(), minlength=count) for piece in torch.split(picked_NK, PIECE)])


def _shares(pieces: Sequence[Tensor]) -> Tensor:
    """Return the share of each expert in the picks of each source, [S, E]."""
    picks_SE = torch.stack([own_PE.sum(dim=0) for own_PE in pieces]).double()
    return picks_SE / picks_SE.sum(dim=1, keepdim=True)


def _apart(shares_SE: Tensor) -> float:
    return mean(float((one - other).abs().sum() / 2) for one, other in combinations(shares_SE, 2))


def _information(shares_SE: Tensor) -> float:
    ratio_SE = shares_SE / shares_SE.mean(dim=0)
    information = torch.where(shares_SE > 0, shares_SE * ratio_SE.log(), 0.0).sum() / len(shares_SE)
    return max(0.0, float(information)) / math.log(len(shares_SE))  # rounding may make it slightly negative


def _touched(
    batch: int, picked: Sequence[Mapping[int, Tensor]], op: Experts, generator: torch.Generator
) -> TouchedExperts:
    mixed, *alone = (_distinct(batch, texts, op.count, generator) for texts in (picked, *([own] for own in picked)))
    return TouchedExperts(batch, mixed, mean(alone), op.touched(batch))


def _distinct(batch: int, picked: Sequence[Mapping[int, Tensor]], count: int, generator: torch.Generator) -> float:
    """Return the mean number of distinct experts of a batch, as in a decode step with one token per sequence.

    Each token is drawn at random from a text drawn at random.
    """
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
