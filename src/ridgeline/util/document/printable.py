"""Strangers' text, made harmless to whatever shows it."""

import re

# Control characters but for tab and newline, and those that turn the direction of a text.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""The text with what would steer a terminal as Python writes it (`\x1b`): a config or a token is a stranger's."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
