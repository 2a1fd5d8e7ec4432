"""Other names for the people of a story, so that a short corpus does not teach that every girl is called Lily."""

from __future__ import annotations

import re
from random import Random

from zoo.tales.cast import BOYS, GIRLS, words

# Names that are words too: where they open a sentence nothing tells which they are.
WORDS = frozenset(words("Will Mark Grace Ruby Ivy Olive Hazel Poppy June Fern Pearl Holly Iris"))
NAME = re.compile(r"\b[A-Z][a-z]+\b")


def rename(story: str, random: Random, share: float = 0.6) -> str:
    """`story`, in `share` of the cases with its girls' and boys' names replaced by others, each one everywhere."""
    if random.random() > share:
        return story
    found = set(NAME.findall(story))
    names: dict[str, str] = {}
    for known in (GIRLS, BOYS):
        present = sorted(found & set(known) - WORDS)
        fresh = random.sample([name for name in known if name not in found], len(present))
        names.update(zip(present, fresh, strict=True))
    return NAME.sub(lambda match: names.get(match[0], match[0]), story)
