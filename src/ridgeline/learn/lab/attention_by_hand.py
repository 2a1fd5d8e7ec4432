"""Attention on an example small enough for paper, its causal triangle in a model, and the reason for the divisor.

The divisor of the scores is the square root of the number of entries of a query.
"""

import math

import torch

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.panels import Band, Panel, Panels

QUERY = [1.0, 0.0]
KEYS = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
VALUES = [[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]]
SENTENCE = "The dog saw a ball and ran after it"
WIDTH, KEYS_DRAWN, DRAWS = 64, 32, 2000


def shares(query: list[float], keys: list[list[float]]) -> list[float]:
    """Return the attention weight of each key: softmax of dot products divided by the square root of the width."""
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys]
    weights = [math.exp(score) for score in scores]
    return [weight / sum(weights) for weight in weights]


def mix(parts: list[float], values: list[list[float]]) -> list[float]:
    """Return attention's output: the sum of the value vectors, each multiplied by its weight."""
    return [sum(p * value[n] for p, value in zip(parts, values, strict=True)) for n in range(len(values[0]))]


def largest_share(divisor: float) -> float:
    """Return the mean of the largest weight among 32 random keys of width 64, with scores divided by `divisor`."""
    draw = torch.Generator().manual_seed(1)
    q_ND = torch.randn(DRAWS, WIDTH, generator=draw)
    k_NLD = torch.randn(DRAWS, KEYS_DRAWN, WIDTH, generator=draw)
    scores_NL = torch.einsum("nd,nld->nl", q_ND, k_NLD) / divisor
    return float(scores_NL.softmax(-1).amax(-1).mean())


def run() -> ExperimentOutcome:
    """Run the experiment: attention by hand, in the built-in model, and with and without the divisor of the scores."""
    parts = shares(QUERY, KEYS)
    result = mix(parts, VALUES)
    turned = mix(shares([0.0, 1.0], KEYS), VALUES)
    tales = InstrumentedModel()
    pieces, layers = tales.pieces(SENTENCE), tales.weights(tales.ids(SENTENCE))
    above = max(float(weights_HTT.triu(1).max()) for weights_HTT in layers)
    sums = max(float((weights_HTT.sum(-1) - 1).abs().max()) for weights_HTT in layers)
    divided, plain = largest_share(math.sqrt(WIDTH)), largest_share(1.0)
    rows = [
        TableRow((f"key {n + 1}", f"{p:.4f}", f"[{value[0]:g}, {value[1]:g}]"))
        for n, (p, value) in enumerate(zip(parts, VALUES, strict=True))
    ]
    return ExperimentOutcome(
        (
            (
                abs(result[0] - 6.0167) < 1e-4 and abs(result[1] - 3.9833) < 1e-4 and turned[1] > turned[0],
                f"[{result[0]:.4f}, {result[1]:.4f}]; with the query [0, 1] it is [{turned[0]:.4f}, {turned[1]:.4f}]",
            ),
            (
                above == 0.0 and sums < 1e-5,
                f"the largest attention weight above the diagonal is {above:g}; rows sum to 1 within {sums:.0e}",
            ),
            (plain > 0.8 > 0.3 > divided, f"{plain:.2f} without the division, {divided:.2f} with it"),
        ),
        (DocumentTable(columns("", "share", "value", words=(0, 2)), tuple(rows)), _figure(pieces, layers)),
        {"shares": parts, "result": result, "turned": turned, "largest_share": {"plain": plain, "divided": divided}},
    )


def _figure(pieces: list[str], layers: list[torch.Tensor]) -> Panels:
    """Return the attention weights of every head as a figure."""
    bands = tuple(
        Band(
            f"layer {number}",
            tuple(Panel(f"head {head}", tuple(map(tuple, w_TT.tolist()))) for head, w_TT in enumerate(w_HTT)),
            ""
            if number < len(layers) - 1
            else f"Rows are queries, columns are keys: {' '.join(p.strip() or p for p in pieces[1:])}",
        )
        for number, w_HTT in enumerate(layers)
    )
    return Panels("Attention weights: six heads in each of five layers", bands)


EXPERIMENT = Experiment(
    "attention-by-hand",
    "What does attention compute?",
    (
        "The query [1, 0] mixes the values [10, 0], [0, 10], [5, 5] to about [6, 4]; [0, 1] reverses the proportions.",
        "In a model, no token attends to a later one, so each head's weights form a triangle, and each row sums to 1.",
        "Without division by the square root of the head size, one of 32 random keys gets nearly all of the weight.",
    ),
    run,
)
