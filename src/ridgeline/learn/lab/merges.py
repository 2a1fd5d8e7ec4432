"""The training of a tokenizer: the most frequent pair of neighbours becomes one piece, again and again.

This is byte-pair encoding (Sennrich et al., arXiv:1508.07909).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY
from ridgeline.learn.lab.statements_words import PROSE, VERSE
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

Pair = tuple[str, str]
Word = tuple[str, ...]
WORDS = re.compile(r" ?[A-Za-z]+| ?[^A-Za-z\s]+|\s+")
"""The pattern that splits a text into words, across which no pieces are joined.

A word is a run of letters or of other characters, with at most one space before it, or a run of white space. So a piece
has no space between two other characters.
"""
LEARNED, FIRST = 160, 10
OWN = ("there", "princess", "queen", "Elizabeth")
"""The words to tokenize by hand with the merge rules of the built-in model `tales`, each after a space."""


def joined(word: Word, pair: Pair) -> Word:
    """Return a word with each occurrence of a pair joined to one piece, from the left."""
    pieces, at = list[str](), 0
    while at < len(word):
        both = word[at : at + 2] == pair
        pieces.append(word[at] + word[at + 1] if both else word[at])
        at += 1 + both
    return tuple(pieces)


def learn(text: str) -> Iterator[tuple[Pair, int, int]]:
    """Yield rule after rule: the most frequent pair, its count, and the text's number of pieces after joining it."""
    words = Counter(tuple(word) for word in WORDS.findall(text))
    while True:
        pairs = Counter[Pair]()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            return
        (best, count) = max(pairs.items(), key=lambda item: (item[1], item[0]))
        words = Counter({joined(word, best): times for word, times in words.items()})
        yield best, count, sum(len(word) * times for word, times in words.items())


def applied(word: str, rules: Mapping[Pair, int]) -> Word:
    """Return the pieces of a word by learned rules: the rule that was learned first wins, until none applies."""
    pieces = tuple(word)
    while found := [pair for pair in pairwise(pieces) if pair in rules]:
        pieces = joined(pieces, min(found, key=rules.__getitem__))
    return pieces


def rules_of(model: str) -> dict[Pair, int]:
    """Return the BPE merge rules of a built-in model's tokenizer with their ranks; a space is written as Ġ."""
    folder = open_source(model).folder
    assert folder is not None
    merges = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    return {tuple(pair): rank for rank, pair in enumerate(merges)}


def run() -> ExperimentOutcome:
    """Run the experiment: learn rules from three texts, and apply those of `tales` by hand."""
    text = " ".join((STORY, PROSE, VERSE))
    learned = [step for step, _ in zip(learn(text), range(LEARNED), strict=False)]
    sizes = [len(text), *(size for _, _, size in learned)]
    counts = [count for _, count, _ in learned]
    half = next(n for n, size in enumerate(sizes) if sizes[0] - size >= (sizes[0] - sizes[-1]) / 2)
    tokenizer, rules = tokenizer_of("tales"), rules_of("tales")
    same = wrong = 0
    for word in WORDS.findall(text):
        theirs = [
            tokenizer.printable_token(token) for token in tokenizer.encode(word, add_special=False, parse_special=False)
        ]
        by_hand = [piece.replace("Ġ", " ") for piece in applied(word.replace(" ", "Ġ"), rules)]
        same, wrong = same + (by_hand == theirs), wrong + (by_hand != theirs)
    own = {word: applied(f"Ġ{word}", rules) for word in OWN}
    rows = [
        TableRow((f"{n}", f"{a.replace(' ', '_')} + {b.replace(' ', '_')}", f"{count}", f"{size:,}"))
        for n, ((a, b), count, size) in enumerate(learned[:FIRST], 1)
    ]
    return ExperimentOutcome(
        (
            (counts == sorted(counts, reverse=True), f"pairs occur {counts[0]}, {counts[1]}, ... {counts[-1]} times"),
            (half < LEARNED / 4, f"{len(text):,} characters, {sizes[-1]:,} pieces; half of the gain by rule {half}"),
            (wrong == 0, f"{same} of {same + wrong} words give the tokenizer's tokens"),
            (
                len(own["there"]) == len(own["princess"]) == 1 and len(own["queen"]) == 2 and len(own["Elizabeth"]) > 2,
                "; ".join(" ".join(pieces).replace("Ġ", "_") for pieces in own.values()),
            ),
        ),
        (
            DocumentTable(columns("rule", "pair (_ is a space)", "times", "pieces left", words=(1,)), tuple(rows)),
            Chart(
                "Number of pieces of three texts after each merge rule", "rules learned", "pieces",
                (Series("pieces", tuple(enumerate(map(float, sizes)))),),
            ),
        ),
        {"rules": [(pair, count) for pair, count, _ in learned], "pieces": sizes, "words": same, "own": own},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "merges",
    "How does a tokenizer get its tokens?",
    (
        "Each merge rule joins the most frequent pair, and no later pair is more frequent.",
        "The first quarter of the merge rules shortens the text more than all the others together.",
        "The merge rules of `tales`, applied in the order in which they were learned, give its tokenizer's tokens.",
        "A frequent word is one token. A rare word has several: the stories have princesses but few queens.",
    ),
    run,
)
