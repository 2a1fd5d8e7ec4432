"""The need for a nonlinearity between layers: a stack of linear layers is one linear layer, and cannot learn XOR."""

import torch
from torch.nn import functional

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY, InstrumentedModel
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

XOR = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
WANTED = torch.tensor([0.0, 1.0, 1.0, 0.0])


def best_line() -> tuple[list[float], float]:
    """Return the outputs of the best affine layer for the four inputs of XOR, and its mean squared error."""
    inputs = torch.cat([XOR, torch.ones(4, 1)], 1)
    weights = torch.linalg.lstsq(inputs, WANTED[:, None]).solution
    predicted = (inputs @ weights)[:, 0]
    return [round(float(x), 6) + 0.0 for x in predicted], float(functional.mse_loss(predicted, WANTED))


def bent() -> float:
    """Return the mean squared error of relu(x + y) - 2 relu(x + y - 1) on XOR."""
    both = XOR.sum(1)
    return float(functional.mse_loss(both.relu() - 2 * (both - 1).relu(), WANTED))


def collapse() -> tuple[float, int]:
    """Compare two linear layers 4 -> 16 -> 4 with their product.

    Returns:
        The largest difference relative to the largest output, and the rank of the product.
    """
    draw = torch.Generator().manual_seed(1)
    first, second = (torch.randn(*shape, generator=draw) for shape in ((16, 4), (4, 16)))
    x = torch.randn(4, 100, generator=draw)
    one, other = second @ (first @ x), (second @ first) @ x
    return float((one - other).abs().max() / one.abs().max()), int(torch.linalg.matrix_rank(second @ first))


def losses() -> dict[str, float]:
    """Return the built-in model's loss (nats per token) on a story for each replacement of its activation."""
    tales = InstrumentedModel()
    ids, found = tales.ids(STORY), {}
    functions = {"SiLU, as trained": functional.silu, "ReLU": torch.relu, "none (identity)": lambda x: x}
    for name, function in functions.items():
        with tales.activated(function):
            found[name] = tales.loss(ids)
    with tales.without_feed_forward():
        found["no feed-forward at all"] = tales.loss(ids)
    return found


def run() -> ExperimentOutcome:
    """Run the experiment on nonlinearity: XOR, stacked linear layers, and a model with other activations."""
    predicted, error = best_line()
    curved = bent()
    difference, rank = collapse()
    nats = losses()
    silu, relu, identity, without = nats.values()
    return ExperimentOutcome(
        (
            (
                abs(error - 0.25) < 1e-6 and max(abs(x - 0.5) for x in predicted) < 1e-5 and curved == 0.0,
                f"linear outputs: {', '.join(f'{x:g}' for x in predicted)}, error {error:.2f}; "
                f"with two ReLUs the error is {curved:g}",
            ),
            (
                difference < 1e-5 and rank == 4,
                f"the outputs differ by {difference:.0e}, and the product of the matrices has rank {rank}, not 16",
            ),
            (
                silu < relu < identity < without and relu - silu < 0.25 * (identity - silu),
                ", ".join(f"{name} {value:.2f}" for name, value in nats.items()),
            ),
        ),
        (
            DocumentTable(columns("x, y", "target", "best linear output"), tuple(_row(n, predicted) for n in range(4))),
            Bars(
                "Loss of the built-in model `tales` on a story with its activation function replaced",
                "nats per token, lower is better",
                tuple(Bar(name, value) for name, value in nats.items()),
            ),
        ),
        {"linear": predicted, "linear_error": error, "bent_error": curved, "rank": rank, "nats": nats},
    )


def _row(n: int, predicted: list[float]) -> TableRow:
    x, y = XOR[n].tolist()
    return TableRow((f"{x:g}, {y:g}", f"{float(WANTED[n]):g}", f"{predicted[n]:g}"))


EXPERIMENT = Experiment(
    "bend",
    "Why do layers need a nonlinear function between them?",
    (
        "The best linear network outputs 0.5 for every input of XOR, whatever its depth; two ReLUs compute XOR "
        "exactly.",
        "Two linear layers 4 -> 16 -> 4 are equal to one matrix of rank 4.",
        "A trained model loses little with ReLU instead of SiLU, more with neither, and most without feed-forward "
        "layers.",
    ),
    run,
)
