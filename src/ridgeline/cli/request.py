"""From what a user typed to what the engine takes: a model that is loaded, settings, sampling, the prompt's ids."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.checkpoint import open_source
from ridgeline.cli import options
from ridgeline.cli.options import parse_bytes, parse_tokens
from ridgeline.cli.terminal import loading_bar, read_text, say
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.ops.formats import Format, format_of
from ridgeline.text.bytes import ByteTokenizer
from ridgeline.text.reasoning import BY_PARSER


def read_prompt(prompt: str) -> str:
    """As `read_text`. Raises ValueError for an empty one too."""
    text = read_text(prompt)
    if not text:
        raise ValueError("the prompt is empty; give at least one character")
    return text


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The options of every command that runs a model for people."""

    dummy_weights: options.DummyWeights = False
    dtype: options.Dtype = "auto"
    context: options.Context = None
    kv_memory: options.KVMemory = None
    memory_share: options.MemoryShare = None
    kv_dtype: options.KVDtype = "auto"
    max_batch_tokens: options.MaxBatchTokens = "2k"
    max_requests: options.MaxRequests = 256
    chunk: options.Chunk = None
    page_size: options.PageSize = 16
    prefix_cache: options.PrefixCache = True
    threads: options.Threads = None
    chat_template: options.ChatTemplate = None
    reasoning_parser: options.ReasoningParser = None

    def settings(self, model: str, **more: Any) -> EngineSettings:
        """What the engine is told for a model; `more` fields of it. Raises ValueError, also for a format that the model
        is not stored in."""
        fields = open_source(model).config
        stored = format_of(fields.dtype)
        _check_format("--dtype", self.dtype, stored, f"{model} is stored in {stored.long}, and is never converted")
        kept = (
            f"{model} keeps keys and values in {stored.long}; others are priced (ridgeline plan --kv), and do not run"
        )
        _check_format("--kv-dtype", self.kv_dtype, stored, kept)
        return EngineSettings(
            kv_bytes=None if self.kv_memory is None else parse_bytes(self.kv_memory, "--kv-memory"),
            memory_share=self.memory_share,
            context=None if self.context is None else parse_tokens(self.context, "--context"),
            limits=Limits(
                tokens=parse_tokens(self.max_batch_tokens, "--max-batch-tokens"),
                requests=self.max_requests,
                chunk=None if self.chunk is None else parse_tokens(self.chunk, "--chunk"),
            ),
            page_size=self.page_size,
            prefix_cache=self.prefix_cache,
            chat_template=None if self.chat_template is None else str(self.chat_template),
            reasoning=_reasoning_tags(self.reasoning_parser),
            **more,
        )

    def load(self, model: str, **more: Any) -> LLM:
        """The model in an engine, as `load`; `more` as of `settings`."""
        return load(model, self.settings(model, **more), dummy_weights=self.dummy_weights, threads=self.threads)


def _reasoning_tags(parser: str | None) -> tuple[str, ...] | None:
    if parser is not None and parser not in BY_PARSER:
        raise ValueError(f"--reasoning-parser is {parser!r}; give one of {', '.join(BY_PARSER)}")
    return None if parser is None else BY_PARSER[parser]


_SHORT = {"half": "float16", "float": "float32"}  # torch's and vLLM's other names


def _check_format(option: str, asked: str, stored: Format, why: str) -> None:
    """Refuse a number format that is not the model's own."""
    if asked != "auto" and _SHORT.get(asked, asked) not in (stored.name, stored.long):
        raise ValueError(f"{option} is {asked!r}; {why}: give auto")


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


def load(model: str, settings: EngineSettings, *, dummy_weights: bool, threads: int | None) -> LLM:
    """The model in an engine, with a bar on stderr while its weights load. One that has no tokenizer (under
    --dummy-weights) is said to have none: its token counts are those of bytes."""
    with loading_bar(model) as progress:
        llm = LLM(model, settings, dummy_weights=dummy_weights, threads=threads, progress=progress)
    if isinstance(llm.tokenizer, ByteTokenizer):
        say("this model comes without a tokenizer: each byte of the prompt is a token")
    return llm


def say_unfollowed(llm: LLM) -> None:
    """What the model's generation_config.json asks for and does not get."""
    for key in llm.loaded.texts.unfollowed:
        say(f"the model's generation_config.json asks for {key}, which this version does not do")


def sampling_params(defaults: SamplingParams, max_tokens: str | None, unstated: int, **flags: Any) -> SamplingParams:
    """The model's own sampling, changed by the flags that were given (those that are not None). unstated: the most
    tokens where --max-tokens was not given."""
    most = unstated if max_tokens is None else parse_tokens(max_tokens, "--max-tokens")
    given = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(defaults, max_tokens=most, **given)


def prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    """Ids of a text: a message to answer where the model has a chat template, unless `raw`. Raises ValueError."""
    if llm.loaded.model.encoder_width:
        raise ValueError("the model reads sound, no text: ridgeline transcribe FILE --model FOLDER")
    if raw or llm.loaded.templates is None:
        if system is not None:
            raise ValueError("--system needs a chat template; this model has none, or --raw is given")
        return llm.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])


def check_room(llm: LLM, ids: Sequence[int], params: SamplingParams, more_memory: str = "") -> None:
    """Refuse more tokens than could come after a prompt of these, as vLLM's server does. more_memory: the option, if
    any, that gives KV memory. Raises ValueError; a prompt that is itself too long is the engine's to refuse."""
    prompt = len(llm.loaded.texts.decoder_prompt(ids))
    wanted, context, held = params.max_tokens, llm.engine.context, llm.engine.ledger.capacity()
    assert wanted is not None
    room = min(context, held) - prompt
    if 0 < room < wanted:
        limit = f"the model's context is {context:,}" if context <= held else f"KV memory holds {held:,}"
        raise ValueError(
            f"{prompt:,} tokens of prompt and {wanted:,} of --max-tokens are {prompt + wanted:,}; {limit}; "
            f"give --max-tokens {room} or less{f', or raise {more_memory}' if more_memory and held < context else ''}"
        )
