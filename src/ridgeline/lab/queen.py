"""The sum that every text has, king - man + woman, on the table of a checkpoint that is large enough."""

import torch

from ridgeline.checkpoint import load_model
from ridgeline.checkpoint.tokenizer import tokenizer_of
from ridgeline.document.charts import Bar, Bars
from ridgeline.document.page import Row, Table, columns
from ridgeline.lab.directions import ASKED, Words
from ridgeline.lab.experiment import Experiment, Outcome
from ridgeline.ops.embedding import Embedding

KING, MAN, WOMAN, QUEEN = "king", "man", "woman", "queen"


def words_of(model: str) -> Words:
    """The embedding of a model and its tokenizer. Raises ValueError where it has none, or its rows are codes."""
    table = next((op for _, op in load_model(model).ops() if isinstance(op, Embedding)), None)
    if table is None or table.weight is None:
        raise ValueError(
            f"{model} has no table of embeddings, or one of codes; take a checkpoint that is not quantised"
        )
    return Words(table.weight.detach(), tokenizer_of(model))


def run(words: Words) -> Outcome:
    """The sum, and those of the built-in model whose words are tokens here. Raises ValueError where king, man, woman or
    queen is not."""
    queen = words.rows[words.token(QUEEN)]
    made, king = words.made(KING, MAN, WOMAN), words.rows[words.token(KING)]
    before, after = (float(torch.cosine_similarity(vector, queen, dim=0)) for vector in (king, made))
    asked = [(KING, MAN, WOMAN), *((a, b, c) for a, b, c, _ in ASKED)]
    own = [three for three in asked if all(len(words.pieces(word)) == 1 for word in three)]
    found = {f"{a} - {b} + {c}": words.sum(a, b, c) for a, b, c in own}
    rows = [Row((name, *(f"{word} {cosine:.2f}" for word, cosine in best))) for name, best in found.items()]
    bars = [
        Bar(f"{name} = {word}", cosine, dim=bool(n))
        for name, best in found.items()
        for n, (word, cosine) in enumerate(best[:2])
    ]
    return Outcome(
        ((after > before, f"cosine to queen {after:.2f}; of king alone {before:.2f}"),),
        (
            Table(columns("sum", "nearest", "next", "next", words=(0, 1, 2, 3)), tuple(rows)),
            Bars("How near the nearest token is, and the next", "cosine", tuple(bars)),
        ),
        {"queen": {"king": before, "sum": after}, "sums": found},
    )


def experiment(model: str) -> Experiment:
    """On a model's table, which is read at once."""
    words = words_of(model)
    return Experiment(
        "directions",
        f"Is meaning a direction in {model}?",
        ("king - man + woman is nearer to queen than king is by itself.",),
        lambda: run(words),
        __file__,
    )
