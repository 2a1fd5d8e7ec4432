"""The textbook sum king - man + woman on the embedding of a checkpoint whose vocabulary has the word queen."""

import torch

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.ops.embedding import Embedding
from ridgeline.learn.lab.directions import ASKED, WordVectors
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

KING, QUEEN = "king", "queen"
PAIRS = (("man", "woman"), ("he", "she"), ("his", "her"), ("boy", "girl"))
"""Pairs of words that differ like king and queen; the first pair whose words are one token each is used."""


def words_of(model: str) -> WordVectors:
    """Return the word vectors of a model.

    Raises:
        ValueError: If the model has no embedding table, or its table is quantised.
    """
    tables = [op for _, op in load_model(model).ops_of(Embedding)]
    if not tables or tables[0].weight is None:
        raise ValueError(f"{model} has no embedding table, or a quantized one; use a checkpoint that is not quantized")
    return WordVectors(tables[0].weight.detach(), tokenizer_of(model))


def pair(words: WordVectors) -> tuple[str, str]:
    """Return the first pair of words like man and woman that are one token each, for the sum with king.

    Raises:
        ValueError: If king, queen, or a word of every pair has several tokens.
    """
    for word in (KING, QUEEN):
        words.token(word)
    for one in PAIRS:
        if all(len(words.pieces(word)) == 1 for word in one):
            return one
    names = ", ".join(" and ".join(one) for one in PAIRS)
    raise ValueError(f"in each of the pairs {names}, a word is several tokens; use a model with a larger vocabulary")


def lead(words: WordVectors, vector: torch.Tensor, without: set[int]) -> float:
    """Return by how much the cosine to queen exceeds that to the nearest other word; negative if it is smaller."""
    queen = words.token(QUEEN)
    ((_, other),) = words.nearest(vector, without | {queen}, 1)
    return float(torch.cosine_similarity(vector, words.rows[queen], dim=0)) - other


def run(words: WordVectors) -> ExperimentOutcome:
    """Run the experiment: the sum with queen, and those sums of the built-in model's experiment that are possible.

    A sum is possible if each of its words is one token in this vocabulary.

    Raises:
        ValueError: If there is no pair for the sum; see `pair`.
    """
    minus, plus = pair(words)
    left_out = {words.token(word) for word in (KING, minus, plus)}
    before = lead(words, words.rows[words.token(KING)], left_out)
    after = lead(words, words.made(KING, minus, plus), left_out)
    questions = [(KING, minus, plus), *((a, b, c) for a, b, c, _ in ASKED)]
    own = [three for three in questions if all(len(words.pieces(word)) == 1 for word in three)]
    found = {f"{a} - {b} + {c}": words.sum(a, b, c) for a, b, c in own}
    alone = words.nearest(words.rows[words.token(KING)], left_out)
    rows = [
        TableRow((name, *(f"{word} {cosine:.2f}" for word, cosine in best)))
        for name, best in (("king", alone), *found.items())
    ]
    bars = [
        Bar(f"{name} = {word}", cosine, dim=bool(n))
        for name, best in found.items()
        for n, (word, cosine) in enumerate(best[:2])
    ]
    nearest = found[f"{KING} - {minus} + {plus}"][0][0]
    return ExperimentOutcome(
        (
            (nearest == QUEEN, f"{KING} - {minus} + {plus} is nearest to {nearest}, and king alone to {alone[0][0]}"),
            (
                after > before,
                f"the cosine to queen exceeds that of the next word by {after:.2f} with the sum, and by {before:.2f} "
                "with king alone",
            ),
        ),
        (
            DocumentTable(columns("sum", "nearest", "next", "next", words=(0, 1, 2, 3)), tuple(rows)),
            Bars("Cosine of the nearest token and of the second nearest", "cosine", tuple(bars)),
        ),
        {"pair": (minus, plus), "lead": {"king": before, "sum": after}, "sums": found},
    )


def experiment(model: str) -> Experiment:
    """Load a model's word embeddings and return an experiment on sums of them, such as king - man + woman.

    Raises:
        ValueError: If the model has no usable embedding table, or its vocabulary lacks the words for the sum.
    """
    words = words_of(model)
    minus, plus = pair(words)
    several = [word for word in PAIRS[0] if len(words.pieces(word)) > 1]
    instead = f" ({several[0]} is several tokens here)" if several else ""
    return Experiment(
        "directions",
        f"Do differences of word embeddings have a meaning in {model}?",
        (
            f"The word nearest to king - {minus} + {plus} is queen{instead}.",
            "The sum separates queen from the next word better than king alone does.",
        ),
        lambda: run(words),
    )
