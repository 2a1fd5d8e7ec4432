"""Whose experts: how the tokens of different texts are routed, beside what chance would give; and how many experts a
batch of them touches, beside the formula that a price goes by.

Shapes: N tokens of all texts, K experts a token, E experts, S sources, R runs of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ridgeline.models.bill import layer_of
from ridgeline.models.model import Model, listening
from ridgeline.ops.attention import Uncached
from ridgeline.ops.experts import Experts
from ridgeline.ops.op import Op
from ridgeline.ops.work import Segment

RUN = 32  # tokens that go together when texts are shuffled: neighbours are routed alike, and would not be single draws
SHUFFLES = 200
DRAWS = 200
BATCHES = (1, 2, 4, 8, 16, 32, 64)
_SEED = 0


@dataclass(frozen=True, slots=True)
class SourceLayer:
    """One mixture. shares[source][expert]: of the source's picks. apart: the total variation distance of two sources'
    shares, the mean over all pairs: 0 where all are routed alike, 1 where no two share an expert. shuffled: the same
    where runs of tokens are dealt to sources by chance, the mean; most: the largest."""

    layer: int
    shares: tuple[tuple[float, ...], ...]
    apart: float
    shuffled: float
    most: float


@dataclass(frozen=True, slots=True)
class TouchedExperts:
    """Distinct experts of a layer that a batch hits, the mean over layers and draws. mixed: of tokens of all texts;
    alone: of one text; formula: of a balanced router, E (1 - (1 - k/E)^T)."""

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


def expert_sources(model: Model, texts: Mapping[str, Sequence[int]]) -> ExpertSources:
    """How a mixture routes texts, given as token ids by name. Raises ValueError for a text of fewer than two runs."""
    short = next((name for name, ids in texts.items() if len(ids) < 2 * RUN), None)
    if short is not None:
        raise ValueError(f"the text {short} has {len(texts[short])} tokens; at least {2 * RUN} tell something")
    picked = [_picked(model, ids) for ids in texts.values()]
    layers = list(picked[0])
    generator = torch.Generator().manual_seed(_SEED)
    ops = {layer_of(path): op for path, op in model.ops() if isinstance(op, Experts)}
    counts = {layer: op.count for layer, op in ops.items() if layer is not None}
    return ExpertSources(
        tuple(texts),
        tuple(map(len, texts.values())),
        tuple(_layer(layer, [own[layer] for own in picked], counts[layer], generator) for layer in layers),
        tuple(_touched(batch, picked, ops[layers[0]], generator) for batch in BATCHES),
    )


@torch.inference_mode()
def _picked(model: Model, ids: Sequence[int]) -> dict[int, Tensor]:
    """The experts that the tokens of a text pass, [N, K] of each layer; a long text runs in pieces of the context."""
    found: dict[int, list[Tensor]] = {}

    def note(path: str, _: Op, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        found.setdefault(layer_of(path) or 0, []).append(inputs[2])

    with listening([(path, op) for path, op in model.ops() if isinstance(op, Experts)], note):
        for start in range(0, len(ids), model.context):
            piece = torch.tensor(ids[start : start + model.context])
            length = len(piece)
            kv = Uncached([Segment(length, length)])
            model.hidden(piece, torch.arange(length), kv, torch.tensor([length - 1]))
    return {layer: torch.cat(pieces) for layer, pieces in sorted(found.items())}


def _layer(layer: int, picked: Sequence[Tensor], count: int, generator: torch.Generator) -> SourceLayer:
    runs = [_by_run(own, count) for own in picked]
    shares_SE = torch.stack([_share(own) for own in runs])
    every_RE, sizes = torch.cat(runs), [len(own) for own in runs]
    chance = []
    for _ in range(SHUFFLES):
        dealt = torch.split(every_RE[torch.randperm(len(every_RE), generator=generator)], sizes)
        chance.append(_apart(torch.stack([_share(own) for own in dealt])))
    shares = tuple(tuple(row) for row in shares_SE.tolist())
    return SourceLayer(layer, shares, _apart(shares_SE), sum(chance) / len(chance), max(chance))


def _by_run(picked_NK: Tensor, count: int) -> Tensor:
    """How often each expert was picked in each run of tokens, [R, E]; what is left over at the end has no run."""
    whole = len(picked_NK) // RUN * RUN
    return torch.stack([torch.bincount(run.flatten(), minlength=count) for run in torch.split(picked_NK[:whole], RUN)])


def _share(runs_RE: Tensor) -> Tensor:
    total_E = runs_RE.sum(dim=0).double()
    return total_E / total_E.sum()


def _apart(shares_SE: Tensor) -> float:
    distances = [float((one - other).abs().sum() / 2) for one, other in combinations(shares_SE, 2)]
    return sum(distances) / len(distances)


def _touched(
    batch: int, picked: Sequence[Mapping[int, Tensor]], op: Experts, generator: torch.Generator
) -> TouchedExperts:
    mixed = _distinct(batch, {layer: torch.cat([own[layer] for own in picked]) for layer in picked[0]}, generator)
    alone = [_distinct(batch, own, generator) for own in picked]
    return TouchedExperts(batch, mixed, sum(alone) / len(alone), op.touched(batch))


def _distinct(batch: int, picked: Mapping[int, Tensor], generator: torch.Generator) -> float:
    """Of so many tokens drawn by chance, as a decode step has one of each sequence."""
    hits = [
        len(torch.unique(own_NK[torch.randint(len(own_NK), (batch,), generator=generator)]))
        for own_NK in picked.values()
        for _ in range(DRAWS)
    ]
    return sum(hits) / len(hits)
