"""One word in two contexts: its common row of the embedding table, and its different states after the layers."""

import torch

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

PAIRS = {
    "left": ("She turned left", "The toys were all that she had left"),
    "saw": ("She looked and saw", "He cut the wood with his saw"),
    "cold": ("The wind outside was very cold", "He had to stay in bed with a cold"),
    "apple": ("The girl was hungry and ate the apple", "Up in the tree hung a red apple"),
    "ball": ("The boy threw the ball", "The princess danced at the ball"),
}
"""The words, each with two sentences that end with it."""


def alike(tales: InstrumentedModel, word: str, sentences: tuple[str, str]) -> list[float]:
    """Return the cosine of a word's states in two sentences, for the embedding and after each layer."""
    both = [tales.ids(sentence) for sentence in sentences]
    assert both[0][-1] == both[1][-1], f"the sentences end with {word!r} as one token"
    states = [tales.states(ids) for ids in both]
    return [float(torch.cosine_similarity(one[-1], other[-1], dim=0)) for one, other in zip(*states, strict=True)]


def run() -> ExperimentOutcome:
    """Run the experiment: compare each word's states in two sentences, layer by layer."""
    tales = InstrumentedModel()
    found = {word: alike(tales, word, sentences) for word, sentences in PAIRS.items()}
    layers = len(next(iter(found.values()))) - 1
    same = min(cosines[0] for cosines in found.values())
    last = [cosines[-1] for cosines in found.values()]
    rows = [TableRow((word, *(f"{cosine:.2f}" for cosine in cosines))) for word, cosines in found.items()]
    lines = tuple(Series(word, tuple(enumerate(cosines))) for word, cosines in list(found.items())[:4])
    return ExperimentOutcome(
        (
            (abs(same - 1) < 1e-6, f"cosine {same:.6f} for the least similar of {len(found)} words"),
            (
                all(cosines[1] > cosines[-1] for cosines in found.values()) and max(last) < 0.85,
                f"after layer {layers - 1} the cosine is between {min(last):.2f} and {max(last):.2f}",
            ),
        ),
        (
            DocumentTable(columns("word", "embedding", *(f"layer {n}" for n in range(layers))), tuple(rows)),
            Chart("Cosine of one word's states in two sentences", "layers passed (0: the embedding)", "cosine", lines),
        ),
        {"cosines": found},
    )


EXPERIMENT = Experiment(
    "two-places",
    "Does a word have the same vector in two sentences?",
    (
        "The model starts with the same vector, the word's row of the embedding table: the cosine is 1.",
        "The layers make the two vectors differ: more after the last layer than after the first, for every word.",
    ),
    run,
)
