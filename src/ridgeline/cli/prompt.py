"""From the prompt that a user typed to the ids that a model reads."""

import sys

from ridgeline.cli.terminal import say
from ridgeline.engine import LLM, SamplingParams
from ridgeline.text.bytes import ByteTokenizer


def read_text(argument: str) -> str:
    """The text itself, or standard input for `-`. Raises ValueError where that is closed or no UTF-8."""
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the text itself instead of -")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not text in UTF-8: {error}; convert it first") from None


def read_prompt(prompt: str) -> str:
    """As `read_text`. Raises ValueError for an empty one too."""
    text = read_text(prompt)
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    return text


def say_if_bytes(llm: LLM) -> None:
    """Say on stderr that a model under --dummy-weights has no tokenizer: its token counts are those of bytes."""
    if isinstance(llm.tokenizer, ByteTokenizer):
        say("this model comes without a tokenizer: each byte of the prompt is a token")


def prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    """Ids of a text: a message to answer where the model has a chat template, unless `raw`. Raises ValueError."""
    if raw or llm.loaded.templates is None:
        if system is not None:
            raise ValueError("--system needs a chat template; this model has none, or --raw is given")
        return llm.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])


def check_room(llm: LLM, prompt: int, params: SamplingParams, more_memory: str = "") -> None:
    """Refuse more tokens than could come after a prompt of so many, as vLLM's server does. more_memory: the option, if
    any, that gives KV memory. Raises ValueError; a prompt that is itself too long is the engine's to refuse."""
    asked, context, held = params.max_tokens, llm.engine.context, llm.engine.ledger.capacity()
    assert asked is not None
    room = min(context, held) - prompt
    if 0 < room < asked:
        limit = f"the model's context is {context:,}" if context <= held else f"KV memory holds {held:,}"
        raise ValueError(
            f"{prompt:,} tokens of prompt and {asked:,} of --max-tokens are {prompt + asked:,}; {limit}; "
            f"give --max-tokens {room} or less{f', or raise {more_memory}' if more_memory and held < context else ''}"
        )
