"""Measures of text: how much it repeats itself, and whether a story keeps its hero, its thing and an end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


def distinct_ratio(texts: Iterable[str], n: int) -> float:
    """Distinct word n-grams over all word n-grams of `texts`; 1.0 when nothing is ever repeated."""
    grams: list[tuple[str, ...]] = []
    for text in texts:
        words = text.lower().split()
        grams += [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


@dataclass(frozen=True)
class Kept:
    """What of its beginning a story still has at its end."""

    hero: bool
    thing: bool
    end: bool


def sentences(text: str) -> list[str]:
    """The sentences of `text`; a quotation mark stays with the sentence that it closes."""
    return [part for part in re.split(r"(?<=[.!?])[\"\u201d]?\s+", text) if part.strip()]


def kept(told: str, hero: str, thing: str, ended: bool) -> Kept:
    """Whether `told`, a story's text after the words that introduced `hero` (a name) and `thing` (a noun), keeps them.

    The hero is kept when the last third of the sentences names them and nobody else is named more often; the thing when
    the last third names it; the end when the model `ended` by itself and its last two sentences name hero or thing.
    """
    parts = sentences(told)
    last = " ".join(parts[-max(2, len(parts) // 3) :])
    closing = " ".join(parts[-2:])
    names = Counter(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+|^[A-Z][a-z]+(?= (?:was|had|said|went|and)\b)", told, re.M))
    others = [count for name, count in names.items() if name != hero]
    hero_kept = names_it(last, hero) and told.count(hero) >= max(others, default=0)
    return Kept(hero_kept, names_it(last, thing), ended and (names_it(closing, hero) or names_it(closing, thing)))


def names_it(text: str, word: str) -> bool:
    """Whether `text` has `word` as a word."""
    return re.search(rf"\b{word}\b", text) is not None
