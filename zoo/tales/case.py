"""Capitals for lower-cased stories: sentence starts, dialogue starts, names, days and "I".

Names are learned from text whose case survives and from "named X" in the stories themselves. Whether a quotation opens
a sentence, and whether the words after it do, follows from the mark before it and from who has been said to speak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

APOSTROPHES = "'\u2019"
LETTERS = "a-z\u00e1\u00e9\u00f1\u00f3"
SPEECH = (
    "said|asked|replied|shouted|cried|called|yelled|exclaimed|answered|whispered|screamed|thought|laughed|explained|added|"
    "begged|told|agreed|says|asks|suggested|warned|sighed|squeaked|barked|roared"
)
TITLES = frozenset({"mr", "mrs", "ms", "dr", "miss"})
DAYS = frozenset(
    {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "christmas", "halloween", "easter"}
)
KIN = frozenset(
    {"mom", "mommy", "dad", "daddy", "mama", "papa", "mum", "mummy", "grandma", "grandpa", "granny", "mother", "father"}
)
OWNERS = frozenset(
    {"my", "your", "his", "her", "their", "our", "the", "a", "an", "its", "every", "each", "new", "old", "of"}
)
KIN_ADJECTIVES = frozenset({"little", "big", "kind"})
ARTICLES = frozenset(
    {"a", "an", "the", "my", "his", "her", "their", "your", "some", "this", "that", "no", "any", "very", "many"}
)
FIRST_PERSON = re.compile(rf"\bi(?=[{APOSTROPHES}](?:m|ll|ve|d|s)\b|\b(?!\.e))")
NAMED = re.compile(
    r"\b(?:named|name is|name was|i am called|girl called|boy called|dog called|cat called) "
    rf"([a-z\u00f1\u00e9]+)(?=[\s.,!?\"\u201d{APOSTROPHES}])"
)


def learn_names(cased: Iterable[str]) -> set[str]:
    """Words that text with its case intact writes with a capital inside sentences."""
    upper: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for text in cased:
        for word in re.findall(r"(?<=[a-z,;] )[A-Za-z][a-z]+(?![a-z])", text):
            (upper if word[0].isupper() else lower)[word.lower()] += 1
    return {word for word, count in upper.items() if count >= 4 and count > 4 * lower[word] and word not in KIN}


def frequent_names(stories: list[str]) -> set[str]:
    """Names that several stories give their heroes and that hardly occur after an article, so are not plain words."""
    given = Counter(name for story in stories for name in NAMED.findall(story))
    articled = Counter(re.findall(r"\b(?:a|an|the|his|her|some) ([a-z]+)", " ".join(stories)))
    return {name for name, count in given.items() if count >= 2 and articled[name] <= count // 4 and len(name) > 2}


def mend_case(story: str, names: set[str]) -> str:
    """`story`, all in lower case, with its capitals; `names` are those of all stories, its own come from "named X"."""
    own = {name for name in NAMED.findall(story) if name not in ARTICLES and len(name) > 1}
    return "\n".join(mend_starts(mend_words(paragraph, names, own)) for paragraph in story.split("\n"))


def mend_words(paragraph: str, names: set[str], own: set[str]) -> str:
    """Capitals that depend on the word: "I", known names, names this story gives (`own`), and kin used as names."""
    pieces = re.split(rf"([{LETTERS}]+)", FIRST_PERSON.sub("I", paragraph))
    before = earlier = ""
    owned = False
    for index in range(1, len(pieces), 2):
        gap, word = pieces[index - 1 : index + 1]
        suffix = gap != "" and gap in APOSTROPHES
        titled = before in TITLES and gap.strip(". ") == ""
        if word == "tv":
            pieces[index] = "TV"
        elif word in {"mr", "mrs", "ms"} or titled:
            pieces[index] = word.capitalize()
        elif word in KIN:
            joined = before == "and" and earlier in KIN and owned
            owned = joined or suffix or before == "s" or before in OWNERS | KIN_ADJECTIVES
            pieces[index] = word if owned else word.capitalize()
        elif not suffix and (word in names or (word in own and before not in ARTICLES)):
            pieces[index] = word.capitalize()
        earlier, before = before, word
    return "".join(pieces)


def mend_starts(paragraph: str) -> str:
    """Capitals that depend on the place: after a full stop, and where a quotation opens a sentence of its own."""
    out = list(paragraph)
    inside = announced = False  # in a quotation; the quotation follows its speaker: she said, "..."
    fresh = spoken = True  # the next letter, the next quotation starts a sentence
    for index, char in enumerate(paragraph):
        if char in '"\u201c\u201d':
            inside = char == "\u201c" or (char == '"' and not inside)
            if inside:
                announced = paragraph[:index].rstrip().endswith((",", ":"))
                fresh = spoken or not announced
            else:
                fresh = starts_after_quotation(paragraph, index, announced)
                spoken = not paragraph[:index].endswith(",")
        elif char in ".!?":
            fresh = not (paragraph[index + 1 : index + 2].isalnum() or ends_in_title(paragraph[:index]))
            spoken = True
        elif char.isalnum():
            if fresh:
                out[index] = char.upper()
            fresh = False
    return "".join(out)


def starts_after_quotation(paragraph: str, index: int, announced: bool) -> bool:
    """Whether a sentence starts after the quotation that closes at `index`, rather than: "Come!" the fox said."""
    ending, after = paragraph[:index][-1:], paragraph[index + 1 :]
    if ending not in {".", "!", "?"} or re.match(rf" (?:{SPEECH})\b", after):
        return False
    tagged = re.match(rf" (?:\w+ ){{0,3}}(?:{SPEECH})\b", after)
    return not tagged or ending == "." or announced


def ends_in_title(text: str) -> bool:
    """Whether the full stop after `text` belongs to Mr., Mrs., Ms. or Dr."""
    return re.search(r"\b(mr|mrs|ms|dr)$", text, re.IGNORECASE) is not None
