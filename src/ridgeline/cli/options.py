"""Options that several commands share, each declared once, and what people write in them: amounts, cards.

Nothing here needs the engine: a plan should not wait for it.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.console import say
from ridgeline.core.checkpoint.source import taken_of_two
from ridgeline.core.ops.number_formats import FORMATS
from ridgeline.core.text.reasoning import BY_PARSER
from ridgeline.price.device import Device
from ridgeline.price.devices import load_device
from ridgeline.util.host import check_threads
from ridgeline.util.times import parse_time

if TYPE_CHECKING:
    import torch

_SAMPLING, _ENGINE = "Sampling", "Engine"

# -- what is run, and on what -----------------------------------------------------------------------------------------

_MODEL = (
    "A checkpoint folder, a GGUF file, a built-in model (tales, translate, mixture), an id in the Hugging Face cache, "
    "or with --dummy-weights any config.json or catalogue name."
)
_PROMPT = "The text to continue, or the message to answer where the model has a chat template; - reads standard input."
_CONFIG = (
    "A checkpoint folder, a GGUF file, a config.json, a name of the catalogue, or an id in the Hugging Face cache."
)
DEVICE = "A card like h100-sxm, its .json or .toml file, `this` processor, or `cuda`."
LENGTHS = "512, 1k (= 1,024), uniform:50:200 or lognormal:512:0.5 (median, sigma)"


def panel(name: str) -> Callable[..., Any]:
    """Options under a heading of the help: what is made of a help text, names and more of typer.Option."""
    return lambda text, *names, **more: typer.Option(*names, help=text, rich_help_panel=name, **more)


def report_model_choice(name: str | None) -> str | None:
    """Say which of two models is taken where a folder has the name of one that is known; the name as it is."""
    if name is not None and (which := taken_of_two(name)):
        say(which)
    return name


def _say_which_each(names: list[str]) -> list[str]:
    for name in names:
        report_model_choice(name)
    return names


ModelName = Annotated[str, typer.Argument(help=_MODEL, callback=report_model_choice)]
ServedModels = Annotated[
    list[str],
    typer.Argument(
        help=f"{_MODEL} Or pipelines, which draw pictures, beside it or alone: several take turns.",
        metavar="MODEL...",
        callback=_say_which_each,
        show_default=False,
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(help="A name by which requests may call the model; several, or repeated."),
]
PromptText = Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="A system message, for models with a chat template.")]
DummyWeights = Annotated[bool, typer.Option("--dummy-weights", help="Random weights: speed, no sense.")]
ConfigName = Annotated[str, typer.Argument(help=_CONFIG, callback=report_model_choice)]
OptionalConfigName = Annotated[
    str | None, typer.Argument(help=_CONFIG, show_default=False, callback=report_model_choice)
]
DeviceName = Annotated[str, typer.Option(help=DEVICE)]
Devices = Annotated[int, typer.Option(help="Cards that every layer is divided over: 1, 2, 4, 8.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]

# -- what is priced ---------------------------------------------------------------------------------------------------

_WEIGHTS = (
    "bf16; fp8, w8a8 or nvfp4 (weights and activations); int8, int4, int4-g64, int4-g32 or mxfp4 (weights alone), with "
    "+head the embedding and the head too; a mix of llama.cpp like q4_k_m. By default as the config says."
)


def _setup(text: str, *names: str) -> Any:
    """A format: people write llama.cpp's as their files spell them, Q4_K_M."""
    return typer.Option(*names, help=text, rich_help_panel="How it is set up", callback=_format_name)


def _format_name(name: str | None) -> str | None:
    """Return the name that Ridgeline has for a format: `bf16` for `bfloat16`, `q4_k_m` for `Q4_K_M`."""
    if name is None:
        return None
    lower = name.lower()
    return next((known.name for known in FORMATS if known.is_called(lower)), lower)


def _workload(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Workload")


def _lora(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Adapters", **more)


_RUN_WEIGHTS = (
    "Quantise the matrices of a plain checkpoint while it is loaded: int8 or fp8 (a scale a row), int4, int4-g64 or "
    "int4-g32 (groups of 128, 64, 32 with a zero), w8a8 (int8, rows of activations too); int8+head the embedding and "
    "the head too. But for w8a8, and unlike vLLM's --quantization, of weights alone."
)

_DP_ATTENTION = (
    "Each of --devices runs attention for requests of its own and holds a part of every expert: KV is not divided by "
    "heads nor copied, requests are divided among the cards. For mixtures of experts."
)

Weights = Annotated[str | None, _setup(_WEIGHTS, "--weights", "--dtype")]
KV = Annotated[str | None, _setup("KV cache in bf16, fp8, int8 or nvfp4; by default as the config says.", "--kv")]
DpAttention = Annotated[
    bool, typer.Option("--enable-dp-attention", help=_DP_ATTENTION, rich_help_panel="How it is set up")
]
Input = Annotated[str, _workload("Prompt tokens; 1k is 1,024.")]
Batch = Annotated[int, _workload("Requests side by side.")]

# -- adapters ----------------------------------------------------------------------------------------------------------

_LORA = (
    "A LoRA adapter as PEFT saves it: its folder, or NAME=FOLDER; with --input-file several, which requests choose as "
    "their model."
)
_LORA_MODULES = "LoRA adapters that requests choose as their model: NAME=FOLDER, or vLLM's JSON; several, or repeated."

Lora = Annotated[list[str] | None, typer.Option(help=_LORA, metavar="FOLDER")]
PricedLora = Annotated[
    list[str] | None, _lora("A LoRA adapter to price beside the model; repeated, a batch's requests ask them in turn.")
]
LoraModules = Annotated[list[str] | None, _lora(_LORA_MODULES, metavar="NAME=FOLDER")]
EnableLora = Annotated[bool, _lora("As vLLM has it: the adapters of --lora-modules are loaded.", "--enable-lora")]
MaxLoraRank = Annotated[int | None, _lora("Refuse an adapter of a higher rank than this.")]
MaxLoras = Annotated[int | None, _lora("Adapters that a step may touch; all that are loaded may, so at least those.")]


def adapters_of(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """The folders of adapters by name, of `FOLDER`, `NAME=FOLDER` or vLLM's `{"name": ..., "path": ...}`. A folder
    alone has its last part as name. Raises ValueError naming the option.
    """
    found: dict[str, str] = {}
    for each in given or ():
        name, path = _adapter(each, option)
        if not name or not path or not name.isprintable():
            raise ValueError(f"{option} is {each!r}; write NAME=FOLDER")
        if name in found:
            raise ValueError(f"{option}: two adapters are called {name!r}; give one of them another name")
        found[name] = path
    return found


def adapter_of(given: Sequence[str] | None, asked: str, otherwise: str) -> dict[str, str]:
    """As `adapters_of`, of --lora where what is asked has one adapter at most. otherwise: the option with which there
    may be more. Raises ValueError.
    """
    found = adapters_of(given, "--lora")
    if len(found) > 1:
        raise ValueError(f"--lora is given more than once; a {asked} has one adapter: give one, or {otherwise}")
    return found


def _adapter(given: str, option: str) -> tuple[str, str]:
    if given.startswith("{"):
        try:
            values = json.loads(given)
            return str(values["name"]), str(values["path"])
        except (ValueError, KeyError):
            raise ValueError(f'{option} is {given!r}; write {{"name": NAME, "path": FOLDER}}') from None
    name, equals, path = given.partition("=")
    return (name, path) if equals and not Path(given).exists() else (Path(given).resolve().name, given)


# -- sampling ---------------------------------------------------------------------------------------------------------


def _sampling(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_SAMPLING)


_MAX_TOKENS = "Most tokens to generate; 1k is 1,024. By default {}, or what the context leaves."
_SEED = "Same seed, same text, whatever else runs beside it."

MaxTokens8 = Annotated[str | None, _sampling(_MAX_TOKENS.format(8))]
MaxTokens256 = Annotated[str | None, _sampling(_MAX_TOKENS.format(256))]
Temperature = Annotated[
    float | None, _sampling("Divides the logits: 0 always takes the likeliest token, 1 samples as the model says.")
]
TopK = Annotated[int | None, _sampling("Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float | None, _sampling("Keep the fewest tokens that together reach this probability.")]
MinP = Annotated[float | None, _sampling("Drop tokens less likely than this share of the likeliest.")]
RepetitionPenalty = Annotated[float | None, _sampling("Above 1: tokens of the prompt and the text are less likely.")]
FrequencyPenalty = Annotated[float | None, _sampling("Taken from a logit once for each time its token came.")]
PresencePenalty = Annotated[float | None, _sampling("Taken from a logit once its token came.")]
OptionalSeed = Annotated[int | None, _sampling(_SEED)]
Seed = Annotated[int, _sampling(_SEED)]
Stop = Annotated[list[str] | None, _sampling("A string that ends the text; may be repeated.")]
MinTokens = Annotated[int, _sampling("No end before so many tokens.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=_SAMPLING)]

# -- the engine -------------------------------------------------------------------------------------------------------


def _engine(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=_ENGINE, **more)


def _text(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Text", **more)


_PREFIX_CACHE = (
    "Keep and share the KV pages of equal prefixes, by default where the model's layers can. In fp32 a seed's text is "
    "the same with it and without. In bf16 and fp16 a prompt's last positions, at least two, go through the same "
    "kernels as without, but fewer rows together: rounding, and so the text, rarely differs."
)

_DTYPE = "auto, or the dtype of the model, which runs in no other: half, float16, bfloat16, float or float32."
_RUN_KV = (
    "Keep keys and values in int8 (a scale for each head of a token) or fp8 (e4m3), in half the memory of bf16; by "
    "default as the config says. vLLM's --kv-cache-dtype."
)
_SHARE = (
    "Share of the available memory that weights, a step, and keys and values take; instead of --kv-memory. Of a card: "
    "of all its memory, 0.9 by default, vLLM's --gpu-memory-utilization."
)
_KV_MEMORY = (
    "Memory for keys and values, like 512MiB; by default half of what is free, at most 4GiB, and on a card what "
    "--memory-share leaves."
)
_RUN_DEVICE = "Where it runs: cpu, cuda, cuda:N for card N, or auto for a card where there is one."
_EAGER = "Ask for every op of a step: nothing is recorded, or captured as a CUDA graph."

KVMemory = Annotated[str | None, _engine(_KV_MEMORY)]
MemoryShare = Annotated[float | None, _engine(_SHARE)]
RunDevice = Annotated[str, _engine(_RUN_DEVICE)]
Eager = Annotated[bool, typer.Option("--enforce-eager", help=_EAGER, rich_help_panel=_ENGINE)]
ChatTemplate = Annotated[
    Path | None, _text("A chat template in Jinja, instead of the model's own.", metavar="FILE", dir_okay=False)
]
ReasoningParser = Annotated[
    str | None,
    _text(f"How the model marks its thoughts, by default as its template does: {', '.join(BY_PARSER)}."),
]
Context = Annotated[
    str | None, _engine("Positions a request may have, prompt and text together; by default the model's. 1k is 1,024.")
]
Dtype = Annotated[str, _engine(_DTYPE)]
RunWeights = Annotated[str | None, _engine(_RUN_WEIGHTS, metavar="FORMAT", callback=_format_name)]
RunKV = Annotated[str | None, _engine(_RUN_KV, metavar="FORMAT", callback=_format_name)]
MaxRequests = Annotated[int, _engine("Requests under way at a time; further ones wait.")]
MaxBatchTokens = Annotated[str, _engine("Positions that a step may run; longer prompts take several. 1k is 1,024.")]
Chunk = Annotated[str | None, _engine("Prompt positions of one request that a step may run; by default all that fit.")]
PageSize = Annotated[int, _engine("Positions that a KV page holds.")]
PrefixCache = Annotated[bool | None, _engine(_PREFIX_CACHE)]


def _threads(context: typer.Context, count: int | None) -> int | None:
    """No more than there are cores; those of a cluster's machines are counted there (--ray-address is read first)."""
    if count is None or context.params.get("ray_address") is None:
        return None if count is None else check_threads(count, "--threads")
    if count < 1:
        raise ValueError(f"--threads is {count}; give 1 or more")
    return count


Threads = Annotated[
    int | None,
    _engine("Threads to compute with; by default all cores, and one for a small model.", callback=_threads),
]

_TENSOR_PARALLEL = (
    "Divide the model over so many processes of this machine, each with a part of every matrix; --threads are those of "
    "each, --kv-memory is for all. vLLM's --tensor-parallel-size."
)
TensorParallel = Annotated[int, _engine(_TENSOR_PARALLEL)]

_SPECULATE = (
    "Guess at next tokens, several of which a step verifies, for the same text in fewer steps: ngram looks the last "
    "ones up in the request, auto does where that is predicted to pay, a model's name has that smaller model guess."
)
_SPECULATIVE_CONFIG = (
    'The same as vLLM has it, in JSON: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, '
    '"prompt_lookup_min": 2}, or {"model": NAME, "num_speculative_tokens": 4}.'
)
Speculate = Annotated[str | None, _engine(_SPECULATE, metavar="ngram|auto|MODEL")]
SpeculateTokens = Annotated[
    int | None, _engine("Most tokens of a request that --speculate guesses for a step; by default 4.")
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option("--speculative-config", "-sc", help=_SPECULATIVE_CONFIG, metavar="JSON", rich_help_panel=_ENGINE),
]

# -- what people write in them -----------------------------------------------------------------------------------------

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?B|B)")
_BYTE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([kKM]?)")
_THOUSANDS = {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20}


def parse_bytes(text: str, option: str) -> float:
    """Bytes of `512MiB`, `2GiB`, `1.5 GB`. Raises ValueError naming the option: bytes carry units here, because GiB and
    GB differ.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{option} is {text!r}; write an amount of memory above 0 with its unit, like 512MiB or 2GB")
    return float(match[1]) * _BYTE_UNITS[match[2]]


def parse_tokens(text: str, option: str) -> int:
    """Tokens of `2000`, `1k` (1,024) or `128k`. Raises ValueError naming the option."""
    match = _TOKENS.fullmatch(text.strip())
    count = float(match[1]) * _THOUSANDS[match[2]] if match is not None else 0.0
    if count < 1 or count != int(count):
        raise ValueError(f"{option} is {text!r}; write a whole number of tokens above 0, like 2000 or 1k (= 1,024)")
    return int(count)


def parse_nanoseconds(text: str, option: str) -> int:
    """Of `500ms`, `2s`, `50 us`, `10m` or `1h`. Raises ValueError naming the option: times carry units here."""
    nanoseconds = parse_time(text)
    if not nanoseconds:
        raise ValueError(f"{option} is {text!r}; write a time above 0 with its unit, like 500ms or 2s, up to a year")
    return nanoseconds


def parse_seconds(text: str, option: str) -> float:
    """The same in seconds."""
    return parse_nanoseconds(text, option) / 1e9


def parse_dollars(text: str, option: str) -> float:
    """Dollars of `2.5` or `$2.5`. Raises ValueError naming the option."""
    match = re.fullmatch(r"\$?(\d+(?:\.\d+)?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{option} is {text!r}; write dollars above 0 for one card and hour, like 2.5")
    return float(match[1])


API_KEYS = ("RIDGELINE_API_KEY", "OPENAI_API_KEY")


def api_key_of(given: str | None) -> str | None:
    """The key for a server: as it was given, else the first of API_KEYS that the environment has."""
    return given or next((os.environ[name] for name in API_KEYS if os.environ.get(name)), None)


def device_named(name: str, threads: int | None = None) -> Device:
    """A card of the catalogue, of a file, or the machine at hand: `this` is its processor, which is probed for two
    seconds where `ridgeline calibrate` has not measured it for so many threads; `cuda` or `cuda:N` an accelerator of
    it, calibrated. Raises ValueError as `load_card`.
    """
    kind, _, number = name.partition(":")
    if name != "this" and kind != "cuda":
        return load_device(name)
    from ridgeline.insight.calibrate.local_device import (  # what measures is loaded only to measure
        this_accelerator,
        this_device,
    )

    if name == "this":
        return this_device(threads, estimate=True)
    if number and not number.isdecimal():
        raise ValueError(f"--device is {name!r}; give cuda, or cuda:N for card N")
    return this_accelerator(int(number or 0))


def device_at(place: "torch.device") -> Device:
    """The machine at hand that something runs on: its processor, with the threads that torch has, or its card. Where
    that is not calibrated it is probed.
    """
    if place.type == "cpu":
        from torch import get_num_threads

        return device_named("this", get_num_threads())
    from ridgeline.insight.calibrate.local_device import this_accelerator

    return this_accelerator(place.index or 0, estimate=True)


def device_under(place: "torch.device", threads: int | None) -> Device | None:
    """The machine at hand that a model runs on: its processor, or its card, where that is calibrated."""
    if place.type == "cpu":
        return device_named("this", threads)
    try:
        return device_named(str(place))
    except ValueError:  # not calibrated; a run is not to fail for want of what it should have taken
        return None
