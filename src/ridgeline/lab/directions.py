"""Words as directions: arithmetic on rows of the embedding table of the built-in model."""

import torch
from torch import Tensor

from ridgeline.document.charts import Bar, Bars
from ridgeline.document.page import Row, Table, columns
from ridgeline.lab.experiment import Experiment, Outcome
from ridgeline.lab.inside import Inside

ASKED = (
    ("boy", "he", "she", "girl"),
    ("his", "he", "she", "her"),
    ("was", "is", "are", "were"),
    ("went", "go", "see", "saw"),
    ("prince", "boy", "girl", "princess"),
    ("father", "boy", "girl", "mother"),
)
"""a - b + c, and what should be nearest."""


class Words:
    """The table's rows, around their mean."""

    def __init__(self, tales: Inside) -> None:
        self.tales = tales
        self.rows = tales.table - tales.table.mean(0)

    def token(self, word: str) -> int:
        """The one token of a word after a space. Raises ValueError where it has several."""
        *_, token = ids = self.tales.ids(" " + word)
        if len(ids) != 2:  # the first begins a text
            raise ValueError(f"{word!r} is several tokens")
        return token

    def nearest(self, vector: Tensor, without: set[int], count: int = 3) -> list[tuple[str, float]]:
        """Words by the cosine of the angle to a vector, but for some."""
        cosines = torch.cosine_similarity(self.rows, vector[None], dim=1)
        order = [token for token in cosines.argsort(descending=True).tolist() if token not in without]
        return [(self.tales.tokenizer.piece(token).strip(), float(cosines[token])) for token in order[:count]]

    def sum(self, a: str, b: str, c: str) -> list[tuple[str, float]]:
        """What is nearest to a - b + c."""
        tokens = [self.token(word) for word in (a, b, c)]
        first, minus, plus = (self.rows[token] for token in tokens)
        return self.nearest(first - minus + plus, set(tokens))


def run() -> Outcome:
    """The six sums, and the one that every text has."""
    words = Words(Inside())
    found = {f"{a} - {b} + {c}": (words.sum(a, b, c), wanted) for a, b, c, wanted in ASKED}
    right = sum(best[0][0] == wanted for best, wanted in found.values())
    queen = len(words.tales.ids(" queen")) - 1
    royal = words.sum("king", "he", "she")
    rows = [
        Row((asked, best[0][0], f"{best[0][1]:.2f}", f"{best[1][0]} {best[1][1]:.2f}"))
        for asked, (best, _) in found.items()
    ]
    return Outcome(
        (
            (right == len(ASKED), f"{right} of {len(ASKED)}: {', '.join(best[0][0] for best, _ in found.values())}"),
            (
                queen > 1 and royal[0][0] == "princess",
                f"queen takes {queen} tokens; king - he + she is nearest to {royal[0][0]} ({royal[0][1]:.2f})",
            ),
        ),
        (
            Table(columns("sum", "nearest", "cosine", "next", words=(0, 1, 3)), tuple(rows)),
            Bars(
                "How near the nearest word is, and the next",
                "cosine",
                tuple(
                    Bar(f"{asked} = {word}", cosine, dim=bool(n))
                    for asked, (best, _) in found.items()
                    for n, (word, cosine) in enumerate(best[:2])
                ),
            ),
        ),
        {"sums": {asked: best for asked, (best, _) in found.items()}, "queen_tokens": queen, "king": royal},
    )


EXPERIMENT = Experiment(
    "directions",
    "Is meaning a direction?",
    (
        "Six sums such as boy - he + she come out nearest to the word that a person would say.",
        "There is no queen: in a vocabulary of 2,048 she is no token of her own, and king - he + she finds a princess.",
    ),
    run,
    __file__,
)
