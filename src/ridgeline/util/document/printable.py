"""The escaping of untrusted text before it is shown."""

import re

# Control characters except tab and newline, and marks that change the direction of text.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return untrusted text with control characters except tab and newline escaped as in Python (`\x1b`).

    Line separators and characters that embed, override or isolate a text direction are escaped too. Such characters
    could steer the terminal; a config or a token may contain them.
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
