"""The options that several commands share, each declared once as an annotated type, and parsers of amounts and devices.

Nothing here imports the engine, so that `ridgeline plan` starts fast.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.console import say
from ridgeline.core.checkpoint.source import name_conflict_note
from ridgeline.core.ops.number_formats import FORMATS
from ridgeline.price.device import Device
from ridgeline.price.devices import load_device
from ridgeline.util.host import check_threads
from ridgeline.util.times import parse_time

if TYPE_CHECKING:
    import torch


# -- what is run, and on what -----------------------------------------------------------------------------------------

_MODEL = (
    "A checkpoint folder, a GGUF file, a built-in model (tales, translate, mixture), or an id in the "
    "Hugging Face cache. With --dummy-weights also any config.json or catalogue name."
)
_PROMPT = "The text to continue, or the user message if the model has a chat template; - reads standard input."
CONFIG_HELP = "A checkpoint folder, a GGUF file, a config.json, a catalogue name, or an id in the Hugging Face cache."
DEVICE = "A GPU or CPU by name, like h100-sxm, its .json or .toml file, `this` for this machine's CPU, or `cuda`."
SECOND_GUIDANCE = (
    "The guidance scale of the second of two experts, which runs the steps with little noise; by default the same as "
    "the first's."
)
LENGTHS = "512, 1k (= 1,024), uniform:50:200 or lognormal:512:0.5 (median, sigma)"


def _panel(name: str, **usual: Any) -> Callable[..., Any]:
    """Return a function that declares options under a heading of the help page.

    It takes the help text, option names, and further arguments of typer.Option.
    """
    return lambda text, *names, **more: typer.Option(*names, help=text, rich_help_panel=name, **usual | more)


def report_model_choice(name: str | None) -> str | None:
    """Return the name unchanged, and say which model is used if a folder has the name of a known model."""
    if name is not None and (which := name_conflict_note(name)):
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
        help=f"{_MODEL} Diffusion pipelines work too, alone or next to a language model; several models take turns.",
        metavar="MODEL...",
        callback=_say_which_each,
        show_default=False,
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(help="A name under which clients can request the model; give several, or repeat the option."),
]
PromptText = Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="A system message, for models with a chat template.")]
DummyWeights = Annotated[
    bool, typer.Option("--dummy-weights", help="Use random weights: the speed is real, the text is not.")
]
ConfigName = Annotated[str, typer.Argument(help=CONFIG_HELP, callback=report_model_choice)]
OptionalConfigName = Annotated[
    str | None, typer.Argument(help=CONFIG_HELP, show_default=False, callback=report_model_choice)
]
Devices = Annotated[int, typer.Option(help="The number of devices that every layer is split over: 1, 2, 4 or 8.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Emit = Annotated[
    str | None,
    typer.Option(
        help="Print only the command or manifest that launches what was priced: vllm, sglang, llama.cpp or kubernetes "
        "(vLLM). The engine that it launches is then the default of --engine.",
        metavar="ENGINE",
        rich_help_panel="Output",
    ),
]

# -- what is priced ---------------------------------------------------------------------------------------------------


def _device_name(name: str) -> str:
    """Return `this` for `cpu`, which is what the commands that run a model call it."""
    return "this" if name == "cpu" else name


DeviceName = Annotated[str, typer.Option(help=DEVICE, callback=_device_name)]


def _format_name(name: str | None) -> str | None:
    """Return Ridgeline's name for a number format: `bf16` for `bfloat16`, `q4_k_m` for llama.cpp's `Q4_K_M`."""
    if name is None:
        return None
    lower = name.lower()
    return next((known.name for known in FORMATS if known.is_called(lower)), lower)


_setup, _workload = _panel("Deployment"), _panel("Workload")

Weights = Annotated[
    str | None,
    _setup(
        "The weight format: bf16; fp8, w8a8 or nvfp4 (weights and activations); int8, int4, int4-g64, int4-g32 or "
        "mxfp4 (weights only), with +head including the embedding and the LM head; or a mix of llama.cpp like q4_k_m. "
        "Default: what the config says.",
        "--weights",
        "--dtype",
        callback=_format_name,
    ),
]
KV = Annotated[
    str | None,
    _setup(
        "The format of the KV cache: bf16, fp8, int8 or nvfp4. Default: what the config says.", callback=_format_name
    ),
]
DpAttention = Annotated[
    bool,
    _setup(
        "Divide the requests among --devices for attention (data parallelism) and split every expert over all of them: "
        "the KV cache is neither split by heads nor copied. For mixtures of experts.",
        "--enable-dp-attention",
    ),
]
_ROPE = (
    "Extend the context of a model with rotary positions, as many model cards say: yarn:4 is YaRN with factor 4, from "
    "the context on which the model was trained; yarn:4:32768 also states that context."
)
_ROPE_FORM = "yarn:FACTOR[:ORIGINAL]"
Rope = Annotated[str | None, _setup(_ROPE, metavar=_ROPE_FORM)]
Input = Annotated[str, _workload("The length of the prompt in tokens; 1k is 1,024.")]
Batch = Annotated[int, _workload("The batch size.")]


# -- adapters ----------------------------------------------------------------------------------------------------------

Lora = Annotated[
    list[str] | None,
    typer.Option(
        help="A LoRA adapter as PEFT saves it: its folder, or NAME=FOLDER. With --input-file several: requests select "
        "one as their model.",
        metavar="FOLDER",
    ),
]
PricedLora = Annotated[
    list[str] | None,
    _panel("Adapters")(
        "A LoRA adapter to include in the price; repeatable, and the requests of a batch then use them in turn."
    ),
]


def adapters_of(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse adapters given as `FOLDER`, `NAME=FOLDER` or vLLM's `{"name": ..., "path": ...}` into folders by name.

    The name of a plain FOLDER is its last path component.

    Raises:
        ValueError: If an entry is malformed or a name occurs twice. The message names the option.
    """
    found: dict[str, str] = {}
    for each in given or ():
        name, path = _adapter(each, option)
        if not name or not path or not name.isprintable():
            raise ValueError(f"{option} is {each!r}; write NAME=FOLDER")
        if name in found:
            raise ValueError(f"{option} gives two adapters the name {name!r}; rename one of them")
        found[name] = path
    return found


def adapter_of(given: Sequence[str] | None, purpose: str, otherwise: str) -> dict[str, str]:
    """Parse --lora for a command that accepts at most one adapter.

    Args:
        given: The values of --lora.
        purpose: What the adapter is for, such as "prompt", for the message.
        otherwise: The option that allows several adapters, for the message.

    Raises:
        ValueError: If there are several adapters or an entry is malformed.
    """
    found = adapters_of(given, "--lora")
    if len(found) > 1:
        raise ValueError(f"--lora is given more than once, but a {purpose} uses one adapter; give one, or {otherwise}")
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

SEED_HELP = "The random seed. The same seed gives the same text, whatever else runs in the batch."
Seed = Annotated[int, typer.Option(help=SEED_HELP, rich_help_panel="Sampling")]

# -- the engine -------------------------------------------------------------------------------------------------------


def _threads(context: typer.Context, count: int | None) -> int | None:
    """Check --threads against the number of cores, unless the engines run on a Ray cluster.

    `--ray-address` is parsed first.
    """
    if count is None or context.params.get("ray_address") is None:
        return None if count is None else check_threads(count, "--threads")
    if count < 1:
        raise ValueError(f"--threads is {count}; give 1 or more")
    return count


_engine = _panel("Engine")
_run_format = _panel("Engine", metavar="FORMAT", callback=_format_name)

RunDevice = Annotated[
    str, _engine("The device to run on: cpu, cuda, cuda:N for GPU number N, or auto for a GPU if there is one.")
]
Context = Annotated[
    str | None,
    _engine(
        "The maximum length of a request, prompt and response together; 1k is 1,024. Default: the model's maximum."
    ),
]
RunWeights = Annotated[
    str | None,
    _run_format(
        "Quantize the weights of an unquantized checkpoint while loading: int8 or fp8 (one scale per row), int4, "
        "int4-g64 or int4-g32 (groups of 128, 64 or 32 with a zero point), w8a8 (int8 weights and activations). +head, "
        "as in int8+head, includes the embedding and the LM head. Only w8a8 quantizes activations, unlike vLLM's "
        "--quantization."
    ),
]
RunKV = Annotated[
    str | None,
    _run_format(
        "Store the KV cache in int8 (one scale per head and token) or fp8 (e4m3), in half the memory of bf16. Default: "
        "what the config says. vLLM's --kv-cache-dtype."
    ),
]
RunRope = Annotated[str | None, _engine(_ROPE, metavar=_ROPE_FORM)]
MaxRequests = Annotated[int, _engine("The maximum number of requests that run at the same time; further ones wait.")]
MaxBatchTokens = Annotated[
    str, _engine("The maximum number of tokens in one step; longer prompts are split over several steps. 1k is 1,024.")
]
Chunk = Annotated[
    str | None, _engine("The maximum number of prompt tokens of one request in one step. Default: as many as fit.")
]
PageSize = Annotated[int, _engine("The number of tokens that a KV-cache page holds.")]
Threads = Annotated[
    int | None,
    _engine("The number of CPU threads. Default: all cores, or one for a small model.", callback=_threads),
]
TensorParallel = Annotated[
    int,
    _engine(
        "Split the model over this number of processes on this machine, each with a part of every matrix. --threads "
        "counts for each process, --kv-memory for all together. vLLM's --tensor-parallel-size."
    ),
]

# -- what people write in them -----------------------------------------------------------------------------------------

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)")
_BYTE_UNITS: dict[str, float] = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTE_UNITS |= {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([kKM]?)")
_THOUSANDS = {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20}
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?) ?%")
_COUNT = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([kKMG]?)")
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
_MOST_REQUESTS = 10**12  # far above any real job


def parse_bytes(text: str, option: str) -> float:
    """Return the bytes that a text such as `512MiB`, `2GiB` or `1.5 GB` states.

    The unit is mandatory because GiB and GB differ.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(
            f"{option} is {text!r}; write an amount of memory above 0 with its unit, like 512MiB or 2GB (B, KiB, MiB, "
            "GiB, TiB, KB, MB, GB or TB)"
        )
    return float(match[1]) * _BYTE_UNITS[match[2]]


def parse_tokens(text: str, option: str) -> int:
    """Return the tokens that a text such as `2000`, `1k` (1,024) or `128k` states.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    match = _TOKENS.fullmatch(text.strip())
    count = float(match[1]) * _THOUSANDS[match[2]] if match is not None else 0.0
    if count < 1 or count != int(count):
        raise ValueError(f"{option} is {text!r}; write a whole number of tokens above 0, like 2000 or 1k (= 1,024)")
    return int(count)


def parse_share(text: str, of: int, option: str) -> int:
    """Return the tokens that a text such as `70%` of a number of tokens states, or `1.5k` itself; 0 for none.

    Args:
        text: A percentage, or a number of tokens.
        of: The number of tokens that are 100 %.
        option: The name of the option.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    if text.strip() == "0":
        return 0
    match = _PERCENT.fullmatch(text.strip())
    if match is not None and float(match[1]) <= 100:
        return round(of * float(match[1]) / 100)
    try:
        return parse_tokens(text, option)
    except ValueError:
        raise ValueError(f"{option} is {text!r}; write a share like 70%, or tokens like 1500 or 1.5k") from None


def parse_count(text: str, option: str) -> int:
    """Return the requests that a text such as `500`, `10k` (10,000) or `1M` (1,000,000) states.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    match = _COUNT.fullmatch(text.strip())
    count = None if match is None else round(float(match[1]) * _DECIMAL[match[2]], 6)
    if count is None or not count.is_integer() or count > _MOST_REQUESTS:
        raise ValueError(f"{option} is {text!r}; write a whole number of requests, like 500, 10k (= 10,000) or 1M")
    return int(count)


def parse_nanoseconds(text: str, option: str) -> int:
    """Return the nanoseconds that a text such as `500ms`, `2s`, `50 us`, `10m` or `1h` states; the unit is mandatory.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    nanoseconds = parse_time(text)
    if not nanoseconds:
        raise ValueError(f"{option} is {text!r}; write a time above 0 with its unit, like 500ms or 2s, up to a year")
    return nanoseconds


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds that a text such as `500ms` or `2s` states, parsed like `parse_nanoseconds`."""
    return parse_nanoseconds(text, option) / 1e9


def parse_dollars(text: str, option: str) -> float:
    """Return the dollars that a text such as `2.5` or `$2.5` states.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    match = re.fullmatch(r"\$?(\d+(?:\.\d+)?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{option} is {text!r}; write dollars above 0 per device and hour, like 2.5")
    return float(match[1])


API_KEYS = ("RIDGELINE_API_KEY", "OPENAI_API_KEY")


def api_key_of(given: str | None) -> str | None:
    """Return the API key for a server: the given one, otherwise the first of API_KEYS in the environment."""
    return given or next((os.environ[name] for name in API_KEYS if os.environ.get(name)), None)


def device_named(name: str, threads: int | None = None) -> Device:
    """Return a device of the catalogue, of a device file, or of this machine.

    `this` or `cpu` is the CPU of this machine, which is probed for two seconds if it is not calibrated for this number
    of threads. `cuda` or `cuda:N` is a calibrated GPU of this machine.

    Raises:
        ValueError: If the name is unknown (`load_device`) or the GPU is not calibrated.
    """
    name = _device_name(name)
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
        raise ValueError(f"--device is {name!r}; give cuda, or cuda:N for GPU number N")
    return this_accelerator(int(number or 0))


def device_at(place: "torch.device") -> Device:
    """Return the CPU or GPU of this machine on which a model runs.

    It is probed if it is not calibrated. A CPU counts with PyTorch's current number of threads.
    """
    if place.type == "cpu":
        from torch import get_num_threads

        return device_named("this", get_num_threads())
    from ridgeline.insight.calibrate.local_device import this_accelerator

    return this_accelerator(place.index or 0, estimate=True)


def calibrated_device(place: "torch.device", threads: int | None) -> Device | None:
    """Return the CPU of this machine, or its GPU if that is calibrated, on which a model runs; otherwise None."""
    if place.type == "cpu":
        return device_named("this", threads)
    try:
        return device_named(str(place))
    except ValueError:  # not calibrated; a run is not to fail for want of what it should have taken
        return None


def why_uncalibrated(place: "torch.device") -> str:
    """Return why a GPU of this machine, for which `calibrated_device` is None, has no calibration, and the remedy."""
    from ridgeline.insight.calibrate.calibration_file import Uncalibrated, gpu_kind, load_all

    try:
        load_all(gpu_kind(place.index or 0))
    except Uncalibrated as error:
        return str(error)
    raise AssertionError("the GPU is calibrated")
