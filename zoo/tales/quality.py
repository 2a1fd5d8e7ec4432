"""Measures of text: how much it repeats itself."""

from __future__ import annotations

from collections.abc import Iterable


def distinct_ratio(texts: Iterable[str], n: int) -> float:
    """Distinct word n-grams over all word n-grams of `texts`; 1.0 when nothing is ever repeated."""
    grams: list[tuple[str, ...]] = []
    for text in texts:
        words = text.lower().split()
        grams += [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
