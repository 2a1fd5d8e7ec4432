"""From what a user typed to what the engine takes: a model that is loaded, settings, sampling, the prompt's ids."""

import dataclasses
from typing import Any

from ridgeline.cli.options import parse_bytes, parse_tokens
from ridgeline.cli.terminal import loading_bar, read_text, say
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.text.bytes import ByteTokenizer


def read_prompt(prompt: str) -> str:
    """As `read_text`. Raises ValueError for an empty one too."""
    text = read_text(prompt)
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    return text


def engine_settings(
    kv_memory: str | None, max_batch_tokens: str, chunk: str | None, page_size: int, prefix_cache: bool
) -> EngineSettings:
    """The engine's settings from the flags."""
    return EngineSettings(
        kv_bytes=None if kv_memory is None else parse_bytes(kv_memory),
        limits=Limits(
            tokens=parse_tokens(max_batch_tokens, "--max-batch-tokens"),
            chunk=None if chunk is None else parse_tokens(chunk, "--chunk"),
        ),
        page_size=page_size,
        prefix_cache=prefix_cache,
    )


def load(model: str, settings: EngineSettings, *, dummy_weights: bool, threads: int | None) -> LLM:
    """The model in an engine, with a bar on stderr while its weights load. One that has no tokenizer (under
    --dummy-weights) is said to have none: its token counts are those of bytes."""
    with loading_bar(model) as progress:
        llm = LLM(model, settings, dummy_weights=dummy_weights, threads=threads, progress=progress)
    if isinstance(llm.tokenizer, ByteTokenizer):
        say("this model comes without a tokenizer: each byte of the prompt is a token")
    return llm


def sampling_params(defaults: SamplingParams, max_tokens: str | None, unstated: int, **flags: Any) -> SamplingParams:
    """The model's own sampling, changed by the flags that were given (those that are not None). unstated: the most
    tokens where --max-tokens was not given."""
    most = unstated if max_tokens is None else parse_tokens(max_tokens, "--max-tokens")
    given = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(defaults, max_tokens=most, **given)


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
    wanted, context, held = params.max_tokens, llm.engine.context, llm.engine.ledger.capacity()
    assert wanted is not None
    room = min(context, held) - prompt
    if 0 < room < wanted:
        limit = f"the model's context is {context:,}" if context <= held else f"KV memory holds {held:,}"
        raise ValueError(
            f"{prompt:,} tokens of prompt and {wanted:,} of --max-tokens are {prompt + wanted:,}; {limit}; "
            f"give --max-tokens {room} or less{f', or raise {more_memory}' if more_memory and held < context else ''}"
        )
