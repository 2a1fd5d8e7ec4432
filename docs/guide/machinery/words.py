"""What a chapter may not say: a figure with a unit that was typed by hand, and a term that nobody has explained."""

import re
from collections.abc import Iterable, Mapping

from docs.guide.machinery.chapters import definitions_of, prose_of, reading_order

_UNITS = (
    r"[munµ]?s|seconds?|minutes?|[KMGTP]?i?B(?:/s)?|bytes?|[kMGTP]?FLOPs?(?:/s|/B)?|TFLOPS|tok/s|"
    r"tokens? a second|billion|million|%|percent|times|GHz|dollars?"
)
_TYPED = re.compile(rf"(?<![\w.])(?:\$\s?\d[\d,.]*|(?!\d+B\b)\d[\d,]*(?:\.\d+)?\s?(?:{_UNITS})(?!\w))")
_ABBREVIATION = re.compile(r"(?<!\w)[A-Z]{2,}[a-z]?(?!\w)")
_NAMES = frozenset(["AND", "OR", "XOR", "API", "HTTP", "GB", "BART", "FLAN", "GPT", "RTX", "XXL"])
"""Of logic, interfaces, units, models and cards: no glossary has them."""
_TERM = re.compile(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`")


def typed_figures(text: str) -> list[tuple[int, str]]:
    """Figures with units that stand in a chapter's prose, with their lines (8B is a model's name): they belong into
    numbers.toml, or, where a text is quoted, into the role `says`."""
    return [(number, found.group()) for number, line in prose_of(text) for found in _TYPED.finditer(line)]


def terms_of(text: str) -> set[str]:
    """Terms that a chapter refers to."""
    return {" ".join(term.split()).lower() for term in _TERM.findall(text)}


def glossary_of(text: str) -> set[str]:
    """Terms that the glossary defines."""
    return {term.lower() for definition in definitions_of(text) for term in definition.terms}


_TOURS = ("quickstart", "choose", "glossary")
"""They lead on to the chapters that explain."""


def in_order(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The chapters of the index in its order, as they are read: names and texts."""
    return [(name, texts[f"{name}.md"]) for name in reading_order(texts["index.md"]) if name not in _TOURS]


def unexplained(texts: Iterable[tuple[str, str]], glossary: Iterable[str]) -> list[str]:
    """Of chapters, by name and in the order in which they are read: terms that stand in a chapter before any has led to
    the glossary, and abbreviations that it does not have."""
    defined = {term: re.compile(rf"(?<![\w-]){re.escape(term)}s?(?![\w-])") for term in glossary}
    known, met, found = {word for term in defined for word in term.split()}, set[str](), []
    for name, text in texts:
        prose = " ".join(line for _, line in prose_of(text))
        met |= terms_of(text)
        found += [f"{name}: {term} is not explained yet" for term in sorted(_said(prose.lower(), defined) - met)]
        found += [
            f"{name}: {short} is not in the glossary"
            for short in sorted(set(_ABBREVIATION.findall(prose)))
            if short not in _NAMES and not {short.lower(), short.lower().rstrip("s")} & known
        ]
    return found


def _said(prose: str, defined: Mapping[str, re.Pattern[str]]) -> set[str]:
    """The terms that stand in prose. A longer one is taken out first: an activation function is no activation."""
    said = set()
    for term in sorted(defined, key=len, reverse=True):
        prose, count = defined[term].subn(" ", prose)
        if count:
            said.add(term)
    return said


def term_faults(texts: Mapping[str, str], glossary: Iterable[str]) -> list[str]:
    """Terms that are used and not defined, and those that are defined and never used."""
    defined, used = set(glossary), {term for text in texts.values() for term in terms_of(text)}
    lost = [
        f"{name}: {term} is not in the glossary" for name, text in texts.items() for term in terms_of(text) - defined
    ]
    return sorted(lost) + [
        f"the glossary defines {term}, which no chapter refers to" for term in sorted(defined - used)
    ]
