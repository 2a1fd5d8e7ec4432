"""Word vector arithmetic on the rows of the built-in model's embedding table."""

import torch
from torch import Tensor

from ridgeline.core.text import Tokenizer
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

ASKED = (
    ("boy", "he", "she", "girl"),
    ("his", "he", "she", "her"),
    ("was", "is", "are", "were"),
    ("went", "go", "see", "saw"),
    ("prince", "boy", "girl", "princess"),
    ("father", "boy", "girl", "mother"),
)
"""The word sums a - b + c of the experiment, each with the word whose embedding should be nearest."""


class WordVectors:
    """The rows of an embedding table, with their mean subtracted."""

    def __init__(self, table: Tensor, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.rows = table.float() - table.float().mean(0)

    def pieces(self, word: str) -> list[int]:
        """Return the token ids of a word as they are inside a text.

        It follows another word, because some tokenizers begin every text with a space.
        """
        before, both = (
            self.tokenizer.encode(text, add_special=False, parse_special=False) for text in ("a", f"a {word}")
        )
        return both[len(before) :]

    def token(self, word: str) -> int:
        """Return the id of the single token of a word inside a text.

        Raises:
            ValueError: If the word has several tokens.
        """
        ids = self.pieces(word)
        if len(ids) != 1:
            raise ValueError(
                f"{word!r} is {len(ids)} tokens in this vocabulary, so it has no single embedding; use another word"
            )
        return ids[0]

    def nearest(self, vector: Tensor, without: set[int], count: int = 3) -> list[tuple[str, float]]:
        """Return the words whose embeddings have the largest cosine to a vector, except the tokens in `without`."""
        cosines = torch.cosine_similarity(self.rows, vector[None], dim=1)
        order = [token for token in cosines.argsort(descending=True).tolist() if token not in without]
        return [(self.tokenizer.printable_token(token).strip(), float(cosines[token])) for token in order[:count]]

    def made(self, a: str, b: str, c: str) -> Tensor:
        """Return the vector a - b + c, computed from the embeddings of three words."""
        first, minus, plus = (self.rows[self.token(word)] for word in (a, b, c))
        return first - minus + plus

    def sum(self, a: str, b: str, c: str) -> list[tuple[str, float]]:
        """Return the words whose embeddings are nearest to a - b + c, without these three words."""
        return self.nearest(self.made(a, b, c), {self.token(word) for word in (a, b, c)})


def run() -> ExperimentOutcome:
    """Run the experiment on word embeddings: six sums a - b + c, and the one with king and queen."""
    tales = InstrumentedModel()
    words = WordVectors(tales.table, tales.tokenizer)
    found = {f"{a} - {b} + {c}": (words.sum(a, b, c), wanted) for a, b, c, wanted in ASKED}
    right = sum(best[0][0] == wanted for best, wanted in found.values())
    queen = len(words.pieces("queen"))
    royal = words.sum("king", "he", "she")
    rows = [
        TableRow((question, best[0][0], f"{best[0][1]:.2f}", f"{best[1][0]} {best[1][1]:.2f}"))
        for question, (best, _) in found.items()
    ]
    return ExperimentOutcome(
        (
            (right == len(ASKED), f"{right} of {len(ASKED)}: {', '.join(best[0][0] for best, _ in found.values())}"),
            (
                queen > 1 and royal[0][0] == "princess",
                f"queen is {queen} tokens; king - he + she is nearest to {royal[0][0]} ({royal[0][1]:.2f})",
            ),
        ),
        (
            DocumentTable(columns("sum", "nearest", "cosine", "next", words=(0, 1, 3)), tuple(rows)),
            Bars(
                "How near the nearest word is, and the second",
                "cosine",
                tuple(
                    Bar(f"{question} = {word}", cosine, dim=bool(n))
                    for question, (best, _) in found.items()
                    for n, (word, cosine) in enumerate(best[:2])
                ),
            ),
        ),
        {"sums": {question: best for question, (best, _) in found.items()}, "queen_tokens": queen, "king": royal},
    )


EXPERIMENT = Experiment(
    "directions",
    "Do differences of word embeddings have a meaning?",
    (
        "Six sums such as boy - he + she are nearest to the word that a person would expect.",
        "The word queen is not a token in this vocabulary of 2,048; king - he + she is nearest to princess.",
    ),
    run,
)
