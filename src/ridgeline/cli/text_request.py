"""From what a user typed to a request: a model that is loaded, sampling, the prompt's ids, room for its answer."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.backends import priced_backend
from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, read_text, say, say_warnings, status
from ridgeline.cli.options import parse_tokens
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.source import as_source
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.engine_builder import warm_up
from ridgeline.media.images.image_generator import generates_image_tokens

SOUND = "the model reads sound, no text: ridgeline transcribe FILE --model FOLDER"
"""What is said to who gives a speech model a text."""


def read_prompt(prompt: str) -> str:
    """As `read_text`. Raises ValueError for an empty one too."""
    text = read_text(prompt)
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    return text


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The options of sampling. Sampling is what the model's generation_config.json says unless they say otherwise."""

    max_tokens: options.MaxTokens256 = None
    temperature: options.Temperature = None
    top_k: options.TopK = None
    top_p: options.TopP = None
    min_p: options.MinP = None
    repetition_penalty: options.RepetitionPenalty = None
    frequency_penalty: options.FrequencyPenalty = None
    presence_penalty: options.PresencePenalty = None
    seed: options.OptionalSeed = None
    stop: options.Stop = None
    min_tokens: options.MinTokens = 0
    ignore_eos: options.IgnoreEos = False

    def given(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "max_tokens"}
        off: dict[str, Any] = {"min_tokens": 0, "ignore_eos": False}
        return {name: value for name, value in values.items() if value not in (None, off.get(name))}

    def params(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """The model's own sampling changed by these and `more`; without --max-tokens, 256 of them at most."""
        return sampling_params(defaults, self.max_tokens, 256, **self.given(), **more)


def load(model: ModelSource | str, settings: EngineSettings, *, dummy_weights: bool, threads: int | None) -> LLM:
    """The model in an engine, with a bar on stderr while its weights load. One that has no tokenizer (under
    --dummy-weights) is said to have none: its token counts are those of bytes. On a card it has answered once.
    """
    source = as_source(model)
    with loading_bar(source.name) as progress:
        llm = LLM(source, settings, dummy_weights=dummy_weights, threads=threads, progress=progress)
    say_warnings(llm.loaded.warnings)
    if isinstance(llm.tokenizer, ByteTokenizer):
        say("this model comes without a tokenizer: each byte of the prompt is a token")
    captured = llm.loaded.on_card and priced_backend("gpu").replayed_steps(llm.loaded.model) is not None
    if captured:  # or the first answer would wait for it, and its pace be none
        with status("compiling kernels for the card"):
            warm_up(llm.engine)
    return llm


def draws_too(model: ModelSource | str) -> str:
    """What is said of a language model that draws as well; "" of any other."""
    source = as_source(model)
    if not generates_image_tokens(source):
        return ""
    return f"{source.name} draws too: ridgeline image takes it; if it was trained to draw alone, its text means nothing"


def report_ignored_config(llm: LLM) -> None:
    """What the model's generation_config.json asks for and does not get."""
    for key in llm.loaded.texts.unfollowed:
        say(f"the model's generation_config.json asks for {key}, which this version does not do")


def sampling_params(defaults: SamplingParams, max_tokens: str | None, unstated: int, **flags: Any) -> SamplingParams:
    """The model's own sampling, changed by the flags that were given (those that are not None). unstated: the most
    tokens where --max-tokens was not given.
    """
    most = unstated if max_tokens is None else parse_tokens(max_tokens, "--max-tokens")
    given = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(defaults, max_tokens=most, **given)


def prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    """Ids of a text: a message to answer where the model has a chat template, unless `raw`. Raises ValueError."""
    if llm.loaded.model.encoder_width:
        raise ValueError(SOUND)
    if raw or llm.loaded.templates is None:
        if system is not None:
            raise ValueError("--system needs a chat template; this model has none, or --raw is given")
        return llm.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])


def check_room(llm: LLM, ids: Sequence[int], params: SamplingParams, more_memory: str = "") -> None:
    """Refuse more tokens than could come after a prompt of these, as vLLM's server does. more_memory: the option, if
    any, that gives KV memory. Raises ValueError; a prompt that is itself too long is the engine's to refuse.
    """
    prompt = len(llm.loaded.texts.decoder_prompt(ids))
    wanted, context, held = params.max_tokens, llm.engine.context, llm.engine.kv_cache_manager.capacity()
    assert wanted is not None
    room = min(context, held) - prompt
    if 0 < room < wanted:
        limit = f"the model's context is {context:,}" if context <= held else f"KV memory holds {held:,}"
        raise ValueError(
            f"{prompt:,} tokens of prompt and {wanted:,} of --max-tokens are {prompt + wanted:,}; {limit}; "
            f"give --max-tokens {room} or less{f', or raise {more_memory}' if more_memory and held < context else ''}"
        )
