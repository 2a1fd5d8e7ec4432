"""Obfuscation: random characters beside a streamed piece of text, so that its length does not tell what it says.

Who sees the packets of an encrypted stream can guess much of an answer from the lengths of its tokens (Weiss et al.,
"What Was Your Prompt? A Remote Keylogging Attack on AI Assistants", USENIX Security 2024).
"""

import secrets
from collections.abc import Mapping

import msgspec

BLOCK = 128
"""Bytes: the length of an obfuscated event is a multiple of it, and most tokens fit into one length."""


def obfuscated(event: Mapping[str, object]) -> dict[str, object]:
    """An event with OpenAI's field `obfuscation`, which fills its JSON up to whole blocks."""
    size = len(msgspec.json.encode({**event, "obfuscation": ""}))
    return {**event, "obfuscation": secrets.token_urlsafe(BLOCK)[: -size % BLOCK]}
