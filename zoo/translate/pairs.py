"""Sentence pairs of Tatoeba, English and French, as manythings.org packs them, and how they are divided."""

from __future__ import annotations

import random
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = "The cat is black."
"""A sentence that is never trained on, for people to try."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation."""

    english: str
    french: str

    def without_stop(self) -> Pair:
        """Both without the full stop that ends them; unchanged where either has none."""
        if not (self.english.endswith(".") and self.french.endswith(".")) or self.english.endswith(".."):
            return self
        return Pair(self.english[:-1].rstrip(), self.french[:-1].rstrip())


@dataclass(frozen=True, slots=True)
class Split:
    """Pairs to train on, to watch the training by, and to judge it by: no English sentence is in two of them."""

    training: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def tidy(text: str) -> str:
    """One kind of space and one kind of apostrophe."""
    return re.sub(r"\s+", " ", text.replace("\u2019", "'")).strip()


def sentence_key(english: str) -> str:
    """What two spellings of an English sentence have in common: its letters and digits."""
    return " ".join(re.findall(r"[^\W_]+", english.casefold()))


def read_pairs(archive: Path) -> list[Pair]:
    """The pairs of `fra.txt` in fra-eng.zip, each once, in the order of the file."""
    with zipfile.ZipFile(archive) as packed:
        lines = packed.read("fra.txt").decode("utf-8").splitlines()
    return list(dict.fromkeys(Pair(*map(tidy, line.split("\t")[:2])) for line in lines))


def divide(pairs: list[Pair], test: int = 2000, validation: int = 500) -> Split:
    """At least `test` and `validation` pairs cut to that many, by English sentence; what is cut off is left out."""
    by_sentence: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_sentence.setdefault(sentence_key(pair.english), []).append(pair)
    keys = sorted(by_sentence)
    random.Random(0).shuffle(keys)
    keys.remove(sentence_key(HELD_OUT))
    keys.insert(0, sentence_key(HELD_OUT))
    taken = iter(keys)
    parts = []
    for count in (test, validation):
        part: list[Pair] = []
        while len(part) < count:
            part += by_sentence[next(taken)]
        parts.append(part[:count])
    return Split([pair for key in taken for pair in by_sentence[key]], parts[1], parts[0])
