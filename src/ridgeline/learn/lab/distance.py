"""The effect of rotary embedding (RoPE) on the score of a query and a key as the distance between them grows."""

import math

import torch
from torch import Tensor

from ridgeline.core.ops.rotary import RotaryTable, rotate
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY, InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

FARTHEST, PLACES = 48, (48, 100, 211, 463)
"""The maximum distance between query and key in tokens, and the positions of the query."""
DRAWN = ((1, 2), (2, 2), (3, 0))
"""The layers and heads of the model that the figure shows, numbered from 0 as in its tensors' names."""

_ALIKE = 1e-4  # fp32 rounding error of angles at large positions


def score(table: RotaryTable, q_D: Tensor, k_D: Tensor, at: int, distance: int) -> float:
    """Return the attention score of a rotated query at position `at` and a key `distance` tokens before it."""
    angles = table(torch.tensor([at, at - distance]))
    turned_2D = rotate(torch.stack([q_D, k_D])[:, None], angles)[:, 0]
    return float(turned_2D[0] @ turned_2D[1]) / math.sqrt(len(q_D))


def curve(table: RotaryTable, q_D: Tensor, k_D: Tensor, at: int = PLACES[0]) -> list[float]:
    """Return the score of a query and a key at every distance up to the maximum."""
    return [score(table, q_D, k_D, at, distance) for distance in range(FARTHEST + 1)]


def run() -> ExperimentOutcome:
    """Run the experiment on rotary embedding: equal query and key, then mean queries and keys of a model's heads."""
    tales = InstrumentedModel()
    table = tales.model.get_submodule("model.rotary")
    assert isinstance(table, RotaryTable)
    ids = tales.ids(STORY)
    layers = [(q_THD[1:].mean(0), k_THD[1:].mean(0)) for q_THD, k_THD in tales.unrotated(ids)]
    draw = torch.Generator().manual_seed(1)
    some_D, other_D = torch.randn(2, 2 * len(table.frequencies), generator=draw).unbind()
    places = [curve(table, some_D, other_D, at) for at in PLACES]
    apart = max(abs(a - b) for line in places for a, b in zip(line, places[0], strict=True))
    alike = curve(table, torch.ones_like(some_D), torch.ones_like(some_D))
    own = {
        (layer, head): curve(table, q_D, k_D)
        for layer, (q_HD, k_HD) in enumerate(layers)
        for head, (q_D, k_D) in enumerate(zip(q_HD, k_HD, strict=True))
    }
    weights = tales.weights(ids)
    before = {(layer, head): float(weights[layer][head].diagonal(-1)[1:].mean()) for layer, head in own}
    most = max(before, key=before.__getitem__)
    best = {name: max(range(FARTHEST + 1), key=line.__getitem__) for name, line in own.items()}
    turns = [float(radians) * tales.model.context / math.tau for radians in table.frequencies]
    named = {"alike": alike} | {f"layer {layer}, head {head}": own[layer, head] for layer, head in DRAWN}
    rows = [TableRow((name, *(f"{line[at]:.2f}" for at in (0, 1, 2, 4, 8, 16, 48)))) for name, line in named.items()]
    return ExperimentOutcome(
        (
            (apart < _ALIKE,
                f"at {len(PLACES)} positions of the query, scores at the same distance differ by at most {apart:.0e}"),
            (
                max(alike[1:]) < alike[0] and alike[4] < 0.8 * alike[0] and min(alike) > -alike[0],
                f"{alike[0]:.2f} at distance 0, {alike[1]:.2f} at 1, {alike[16]:.2f} at 16",
            ),
            (
                turns[0] > 50 and turns[-1] < 0.1,
                f"in {tales.model.context} tokens the first pair rotates {turns[0]:.0f} times and the last "
                f"{turns[-1]:.3f} times",
            ),
            (
                best[most] == 1 and before[most] > 0.4 and own[most][1] - own[most][3] > 1,
                f"layer {most[0]}, head {most[1]} gives it {before[most]:.0%} of its attention; its score is "
                f"highest at distance {best[most]}",
            ),
        ),
        (
            DocumentTable(columns("distance in tokens", "0", "1", "2", "4", "8", "16", "48"), tuple(rows)),
            Chart(
                "The score of a query and a key by their distance", "distance in tokens", "score",
                tuple(Series(name, tuple(enumerate(line))) for name, line in named.items()),
            ),
        ),
        {"curves": named, "turns": turns, "best": best[most]},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "distance",
    "How does an attention score depend on the distance of two tokens?",
    (
        "The score depends only on the distance: the same query and key have the same score anywhere in a text.",
        "Two equal vectors have the highest score at distance 0 and lower scores at larger distances.",
        "Over the longest text, rotary embedding rotates the first pair of entries dozens of times and the last "
        "hardly at all.",
        "A head that attends to the previous token has learned a query and a key whose score is highest at distance 1.",
    ),
    run,
)
