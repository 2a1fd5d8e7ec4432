"""Prompts that ask for a clip of a digit that moves: the wordings of `digits`, and where it moves to."""

from __future__ import annotations

from random import Random
from zlib import crc32

from zoo.digits.prompts import ANY, DIGITS, HELD_BACK, LEADS, NOUNS, called, held_back, tidied

MOTIONS = (
    " moving {to}", " moving {to}", " that moves {to}", " going {to}", " sliding {to}", " drifting {to}",
    " which goes {to}", " travelling {to}", ", moving {to}", " that slides {to}", " as it moves {to}",
    " on its way {to}", ", going {to}", " flying {to}",
)  # fmt: skip
TO = {
    "left": ("left", "left", "to the left", "leftwards", "from right to left"),
    "right": ("right", "right", "to the right", "rightwards", "from left to right"),
    "up": ("up", "up", "upwards", "to the top", "from the bottom to the top"),
    "down": ("down", "down", "downwards", "to the bottom", "from the top to the bottom"),
}
_STILL, _ANY = 0.04, 0.04  # how often a prompt does not say where to, or not which digit


def kept(lead: str, noun: str, motion: str) -> bool:
    """Whether a wording is kept for evaluation: one that `digits` holds back, or a pair of noun and motion."""
    return held_back(lead, noun) or crc32(f"{noun}|{motion}".encode()) % HELD_BACK == 0


def prompt(random: Random, digit: int, direction: str, *, trained: bool = True) -> str:
    """A prompt that asks for a digit and a direction, in a wording that is trained on or in one of the others."""
    while True:
        lead, noun, motion = random.choice(LEADS), random.choice(NOUNS), random.choice(MOTIONS)
        if kept(lead, noun, motion) != trained:
            break
    name = random.choice((DIGITS[digit], str(digit)))
    return tidied(random, lead + called(noun, name) + motion.format(to=random.choice(TO[direction])))


def caption(random: Random, digit: int, direction: str) -> str:
    """A prompt to train on, which now and then leaves the digit open, or where it moves to."""
    if random.random() < _ANY:
        return tidied(random, random.choice(ANY) + random.choice(MOTIONS).format(to=random.choice(TO[direction])))
    if random.random() < _STILL:
        return tidied(random, called(random.choice(NOUNS), random.choice((DIGITS[digit], str(digit)))))
    return prompt(random, digit, direction)
