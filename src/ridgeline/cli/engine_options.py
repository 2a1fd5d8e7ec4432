"""Options of the commands that run a model: sampling and the engine, each with the help that teaches what it does."""

import dataclasses
from typing import Annotated, Any

import typer

from ridgeline.cli.amounts import parse_bytes, parse_tokens
from ridgeline.engine import EngineSettings, SamplingParams
from ridgeline.engine.scheduler import Limits

_SAMPLING, _ENGINE = "Sampling", "Engine"


def _sampling(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_SAMPLING)


def _engine(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_ENGINE)


_MOST = "Most tokens to generate; 1k is 1,024. By default {}, or what the context leaves."
MaxTokens8 = Annotated[str | None, _sampling(_MOST.format(8))]
MaxTokens256 = Annotated[str | None, _sampling(_MOST.format(256))]
Temperature = Annotated[
    float | None, _sampling("Divides the logits: 0 always takes the likeliest token, 1 samples as the model says.")
]
TopK = Annotated[int | None, _sampling("Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float | None, _sampling("Keep the fewest tokens that together reach this probability.")]
MinP = Annotated[float | None, _sampling("Drop tokens less likely than this share of the likeliest.")]
RepetitionPenalty = Annotated[float | None, _sampling("Above 1: tokens of the prompt and the text are less likely.")]
FrequencyPenalty = Annotated[float | None, _sampling("Taken from a logit once for each time its token came.")]
PresencePenalty = Annotated[float | None, _sampling("Taken from a logit once its token came.")]
Seed = Annotated[int | None, _sampling("Same seed, same text, whatever else runs beside it.")]
Stop = Annotated[list[str] | None, _sampling("A string that ends the text; may be repeated.")]
MinTokens = Annotated[int, _sampling("No end before so many tokens.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=_SAMPLING)]

_PREFIX_CACHE = (
    "Keep and share the KV pages of equal prefixes. In fp32 a seed's text is the same with it and without; in bf16 and "
    "fp16 what a prompt's last positions are computed with depends on it, and their rounding."
)
KVMemory = Annotated[
    str | None, _engine("Memory for keys and values, like 512MiB; by default half of what is free, at most 4GiB.")
]
MaxBatchTokens = Annotated[str, _engine("Positions that a step may run; 1k is 1,024.")]
Chunk = Annotated[str | None, _engine("Prompt positions of one request that a step may run; by default all that fit.")]
PageSize = Annotated[int, _engine("Positions that a KV page holds.")]
PrefixCache = Annotated[bool, _engine(_PREFIX_CACHE)]


def sampling_params(defaults: SamplingParams, **flags: Any) -> SamplingParams:
    """The model's own sampling, changed by the flags that were given (those that are not None)."""
    return dataclasses.replace(defaults, **{name: value for name, value in flags.items() if value is not None})


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
