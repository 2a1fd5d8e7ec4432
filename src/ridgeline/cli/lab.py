"""`ridgeline lab`: four experiments to be run and read."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from ridgeline.checkpoint import load_model, open_source, read_config
from ridgeline.checkpoint.tokenizer import tokenizer_of
from ridgeline.cli import options
from ridgeline.cli.amounts import parse_tokens
from ridgeline.cli.device import device_named
from ridgeline.cli.files import check_writable
from ridgeline.cli.loading import err
from ridgeline.engine import LLM
from ridgeline.engine.setup import EngineSettings
from ridgeline.host import threads_for
from ridgeline.lab.draw import show
from ridgeline.lab.kv_cache import compare as compare_caches
from ridgeline.lab.memory import users_on
from ridgeline.lab.page import Page
from ridgeline.lab.pages import kv_cache as kv_cache_page
from ridgeline.lab.pages import memory as memory_page
from ridgeline.lab.pages import phases as phases_page
from ridgeline.lab.pages import sampling as sampling_page
from ridgeline.lab.phases import ANSWER, Phases, measure
from ridgeline.lab.phases import phases as compare_phases
from ridgeline.lab.sampling import compare as compare_sampling
from ridgeline.lab.svg import svg as draw_svg
from ridgeline.models import build
from ridgeline.models.model import Model

lab = typer.Typer(no_args_is_help=True, help="Four experiments, each under a minute: run them, then read their code.")

_BUILTIN = "tales"
_MODEL = "A checkpoint folder or a built-in model."
_CARD = "A card like rtx-4090, its .json or .toml file, or `this` machine."


def _checked(path: Path | None) -> Path | None:
    """Refuse a picture file that could not be written, before the experiment runs."""
    if path is not None:
        check_writable(path)
    return path


Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Write the picture to this file.", callback=_checked)
]


@lab.command(name="kv-cache")
def kv_cache(
    model: Annotated[str, typer.Option(help=_MODEL)] = _BUILTIN,
    tokens: Annotated[str, typer.Option(help="How many tokens to generate, both ways.")] = "256",
    threads: options.Threads = None,
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Generate with and without a KV cache, and count positions and seconds."""
    count = _fitting(tokens, "--tokens", model)
    loaded, _ = _load(model, threads)
    first = tokenizer_of(model, or_bytes=True).encode("Once", parse_special=False)[0]
    _give(kv_cache_page.page(compare_caches(loaded, first, count)), svg, as_json)


@lab.command()
def memory(
    device: Annotated[str, typer.Option(help=_CARD)] = "rtx-4090",
    model: Annotated[
        list[str] | None, typer.Option(help="A folder, a config.json or a name of the catalogue; may be repeated.")
    ] = None,
    devices: Annotated[int, typer.Option(help="Cards that every layer is divided over: 1, 2, 4, 8.")] = 1,
    context: Annotated[str, typer.Option(help="Tokens that a user has.")] = "2000",
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Users on a card, subtraction by subtraction, for an 8B and a 70B model."""
    card = device_named(device)
    length = parse_tokens(context, "--context")
    found = [users_on(name, card, devices, length) for name in model or ("llama-3-8b", "llama-3-70b")]
    _give(memory_page.page(found, card, length), svg, as_json)


@lab.command()
def sampling(
    model: Annotated[str, typer.Option(help=_MODEL)] = _BUILTIN,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "Once upon a time, there was a little",
    tokens: Annotated[str, typer.Option(help="How many tokens each setting generates.")] = "48",
    seed: Annotated[int, typer.Option(help="The seed of all settings.")] = 1,
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Greedy, temperature, top-k and top-p from scratch, held against the engine's sampler."""
    count = _fitting(tokens, "--tokens", model)
    llm = LLM(model, EngineSettings(kv_bytes=64 << 20))
    _give(sampling_page.page(compare_sampling(llm, prompt, count, seed), prompt, llm.tokenizer), svg, as_json)


@lab.command()
def phases(
    model: Annotated[
        str, typer.Option(help="A built-in model, a folder, a config.json or a catalogue name.")
    ] = _BUILTIN,
    device: Annotated[str, typer.Option(help=_CARD)] = "this",
    context: Annotated[str, typer.Option(help="Tokens of the prompt, and of context in decode.")] = "256",
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Prefill against decode: the ridge, the idle share, the speed limit, and the batch that reaches the ridge."""
    length = _fitting(context, "--context", model)
    if device == "this":
        found = _phases_here(model, length)
    else:
        found = compare_phases(build(read_config(model)), device_named(device), length)
    _give(phases_page.page(found, model), svg, as_json)


def _phases_here(model: str, length: int) -> Phases:
    """The phases on this machine, beside what it takes for them where the context has room for some tokens more."""
    loaded, threads = _load(model, None)
    measured = measure(loaded, length) if length + ANSWER <= loaded.context else None
    return compare_phases(loaded, device_named("this", threads), length, measured)


def _fitting(text: str, option: str, model: str) -> int:
    """Tokens that an option asks for. Raises ValueError, before weights are read or anything is timed, for more than
    the model's context."""
    tokens, context = parse_tokens(text, option), build(read_config(model)).context
    if tokens > context:
        raise ValueError(f"{option} is {tokens:,}; {model} has a context of {context:,}")
    return tokens


def _load(name: str, threads: int | None) -> tuple[Model, int]:
    """A model with its weights, random ones where only its config is there; and the threads that it runs with."""
    source = open_source(name)
    model = load_model(source, dummy_weights=not source.has_weights)
    threads = threads_for(sum(parameter.nbytes for parameter in model.parameters()), threads)
    torch.set_num_threads(threads)
    return model, threads


def _give(page: Page, svg: Path | None, as_json: bool) -> None:
    if svg is not None:
        svg.write_text(draw_svg(page), encoding="utf-8")
        err.print(f"picture written to {svg}", markup=False)
    if as_json:
        print(json.dumps(page.data))
    else:
        show(page, Console(highlight=False))
