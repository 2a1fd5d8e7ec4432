"""From the prompt that a user typed to the ids that a model reads."""

import sys

from ridgeline.cli.loading import err
from ridgeline.engine import LLM
from ridgeline.text.bytes import ByteTokenizer


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`. Raises ValueError for an empty one."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    return text


def say_if_bytes(llm: LLM) -> None:
    """Say on stderr that a model under --dummy-weights has no tokenizer: its token counts are those of bytes."""
    if isinstance(llm.tokenizer, ByteTokenizer):
        err.print("this model comes without a tokenizer: each byte of the prompt is a token")


def prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    """Ids of a text: a message to answer where the model has a chat template, unless `raw`. Raises ValueError."""
    if raw or llm.loaded.templates is None:
        if system is not None:
            raise ValueError("--system needs a chat template; this model has none, or --raw is given")
        return llm.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])
