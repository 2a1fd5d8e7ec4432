"""What a chapter may not say: a figure with a unit that was typed by hand, and a term that nobody defined."""

import re
from collections.abc import Iterable, Mapping

from docs.guide.machinery.chapters import prose_of

_UNITS = (
    r"[munµ]?s|seconds?|minutes?|[KMGTP]?i?B(?:/s)?|bytes?|[kMGTP]?FLOPs?(?:/s|/B)?|TFLOPS|tok/s|"
    r"tokens? a second|billion|million|%|percent|times|GHz|dollars?"
)
_TYPED = re.compile(rf"(?<![\w.])(?:\$\s?\d[\d,.]*|(?!\d+B\b)\d[\d,]*(?:\.\d+)?\s?(?:{_UNITS})(?!\w))")
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
    body = re.search(r"```\{glossary\}\n(.*?)\n```", text, re.DOTALL)
    return (
        {line.strip().lower() for line in body[1].splitlines() if line and not line.startswith(" ")} if body else set()
    )


def term_faults(texts: Mapping[str, str], glossary: Iterable[str]) -> list[str]:
    """Terms that are used and not defined, and those that are defined and never used."""
    defined, used = set(glossary), {term for text in texts.values() for term in terms_of(text)}
    lost = [
        f"{name}: {term} is not in the glossary" for name, text in texts.items() for term in terms_of(text) - defined
    ]
    return sorted(lost) + [
        f"the glossary defines {term}, which no chapter refers to" for term in sorted(defined - used)
    ]
