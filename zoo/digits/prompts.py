"""Prompts that ask for a digit, in many wordings, of which some are held back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from zlib import crc32

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAITS = ("thin", "thick", "left", "right")
"""What a prompt may ask for beside the digit: the stroke, and where it leans."""
LEADS = (
    "", "", "", "", "draw ", "write ", "please draw ", "please write ", "show me ", "give me ", "sketch ", "I want ",
    "make ", "a picture of ", "an image of ", "a drawing of ", "a scan of ", "draw me ", "can you draw ", "paint ",
)  # fmt: skip
NOUNS = (
    "{a}{name}", "{a}handwritten {name}", "the digit {name}", "the number {name}", "{a}hand-drawn {name}",
    "number {name}", "digit {name}", "{a}written {name}", "{name}", "{name}", "the handwritten digit {name}",
    "{a}{name} written by hand", "the figure {name}", "{a}{name} in handwriting", "{a}single {name}",
    "the numeral {name}",
)  # fmt: skip
ANY = ("a digit", "a handwritten digit", "a number", "some digit", "any digit", "a handwritten number")
"""What may be any of them."""
BEFORE = {
    "thin": ("thin", "fine", "light"),
    "thick": ("thick", "bold", "heavy"),
    "left": ("slanted left", "left-leaning", "tilted left"),
    "right": ("slanted right", "right-leaning", "tilted right"),
}
"""Words for a trait that stand before the noun."""
AFTER = {
    "thin": (" with a thin stroke", ", thin", " in thin lines", " written with a fine pen"),
    "thick": (" with a thick stroke", ", thick", " in thick lines", " written with a broad pen"),
    "left": (" leaning to the left", ", slanted to the left", " that leans left", " tilted to the left"),
    "right": (" leaning to the right", ", slanted to the right", " that leans right", " tilted to the right"),
}
"""And after it."""
HELD_BACK = 10  # one wording in so many is never trained on
_SAID = 0.4  # how often a trait that an image has is told


def held_back(lead: str, noun: str) -> bool:
    """Whether a wording is kept for evaluation: the pair is; its halves, without the other, are not."""
    return bool(lead) and crc32(f"{lead}|{noun}".encode()) % HELD_BACK == 0


def wording(random: Random, *, trained: bool) -> tuple[str, str]:
    """A lead and a noun, of those that are trained on or of the others."""
    while True:
        pair = random.choice(LEADS), random.choice(NOUNS)
        if held_back(*pair) != trained:
            return pair


def prompt(random: Random, digit: int, traits: Sequence[str] = (), *, trained: bool = True) -> str:
    """A prompt that asks for a digit and tells all of these traits."""
    lead, noun = wording(random, trained=trained)
    name = random.choice((DIGITS[digit], str(digit)))
    before, after = "", ""
    for trait in random.sample(list(traits), len(traits)):
        if "{a}" in noun and random.random() < 0.6:
            before += random.choice(BEFORE[trait]) + " "
        else:
            after += random.choice(AFTER[trait])
    return tidied(random, lead + called(noun, name, before) + after)


def called(noun: str, name: str, before: str = "") -> str:
    """A noun with the digit's name in it, its article, and what stands between the two."""
    spoken = before or noun.removeprefix("{a}").format(name=name, a="")
    article = "an " if spoken.startswith(("eight", "8")) else "a "
    return noun.replace("{a}", article + before).format(name=name)


def tidied(random: Random, text: str) -> str:
    """As people begin and end what they type."""
    if random.random() < 0.3:
        text = text[:1].upper() + text[1:]
    return text + random.choice(("", "", "", "."))


def caption(random: Random, digit: int, traits: Sequence[str]) -> str:
    """A prompt to train on for an image of a digit that has these traits: some of them are told, and now and then not
    even the digit."""
    if random.random() < 0.03:
        return tidied(random, random.choice(ANY))
    return prompt(random, digit, [trait for trait in traits if random.random() < _SAID])


def captions(count: int) -> list[str]:
    """So many of them, of all digits and traits, always the same."""
    random = Random(0)
    return [caption(random, random.randrange(10), random.sample(TRAITS, 2)) for _ in range(count)]
