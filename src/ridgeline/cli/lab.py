"""`ridgeline lab` runs experiments and exercises."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ridgeline.backends.model_loader import load_model
from ridgeline.cli import options
from ridgeline.cli.console import print_json, say
from ridgeline.cli.lab_exercise import exercise
from ridgeline.cli.options import device_named, parse_tokens
from ridgeline.core.checkpoint import open_source, read_config
from ridgeline.core.checkpoint.embedding_config import read_embedding
from ridgeline.core.checkpoint.source import catalogue_name
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.models import build, family_of
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import read_recipe, recipe_named
from ridgeline.core.ops.number_formats import kv_format_named
from ridgeline.engine import LLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.learn.lab import kv_cache as kv_cache_lab
from ridgeline.learn.lab import prefill_decode as phases_lab
from ridgeline.learn.lab import queen as queen_lab
from ridgeline.learn.lab import sampling_from_scratch as sampling_lab
from ridgeline.learn.lab import statement_report as numbers_lab
from ridgeline.learn.lab import users_per_gpu as memory_lab
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.exercise import EXERCISES
from ridgeline.learn.lab.experiment import Experiment
from ridgeline.learn.lab.experiments import EXPERIMENTS
from ridgeline.learn.lab.instrumented_model import STORY, in_fp32
from ridgeline.learn.lab.simple_kv_cache import changed
from ridgeline.price.device import Device
from ridgeline.price.plan import Deployment, PlanWorkload
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.util.document.elements import Document
from ridgeline.util.document.svg import svg as draw_svg
from ridgeline.util.document.terminal_renderer import show
from ridgeline.util.files import check_writable, write_whole
from ridgeline.util.host import threads_for

lab = typer.Typer(
    help="""Run experiments of under a minute each and read their code, or write exercises yourself.

Begin with: ridgeline lab token""",
    epilog=f"""\b
An experiment:  ridgeline lab heads
An exercise:    ridgeline lab exercise attention, then the same with --check
About them all: ridgeline lab exercise

Exercises: {", ".join(EXERCISES)}.""",
)

_BUILTIN = "tales"
_LARGE = "qwen3-0.6b"
"""The default model of `kv-cache`, large enough for a noticeable wait of at most a minute."""
_MODEL = "A built-in model, a folder, a config.json or a catalogue name."


Write = Callable[[Path, Document], None]


def checked(path: Path | None) -> Path | None:
    """Return the path of an SVG file after a check, made before the experiment runs, that the file can be written."""
    if path is not None:
        check_writable(path)
    return path


Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Write the chart to this file.", callback=checked)
]


def command_of(experiment: Experiment, write: Write) -> Callable[..., None]:
    """Return the command that runs an experiment.

    Args:
        experiment: The experiment.
        write: Writes the figure of a document to a file.
    """

    def run(svg: Svg = None, as_json: options.Json = False) -> None:
        if not as_json:
            show(experiment.announcement())
        torch.set_num_threads(1)  # fast for a small model, and gives the same digits on every machine
        outcome = experiment.run()
        page = experiment.report(outcome)
        if svg is not None:
            write(svg, page)
        if as_json:
            print_json(experiment.as_json(outcome))
        else:
            print()
            show(page)
        if not outcome.as_expected:
            raise typer.Exit(1)

    run.__doc__ = _help_of(experiment)
    return run


def _help_of(experiment: Experiment) -> str:
    """Return the help text of the command that runs an experiment."""
    return (
        f"{experiment.question}\n\nIt says what it expects, then measures. Exit code 1 if an expectation did not hold."
    )


@lab.command(name="kv-cache")
def kv_cache(
    model: Annotated[str, typer.Option(help=f"{_MODEL} Without weights, random ones are used.")] = _LARGE,
    tokens: Annotated[str, typer.Option(help="The number of tokens to generate, with and without the cache.")] = "48",
    weights: options.RunWeights = None,
    threads: options.Threads = None,
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Generate with and without a KV cache, and compare positions computed and seconds."""
    _check_continues(model)
    count = _fitting(tokens, "--tokens", model)
    loaded, _ = _load(model, threads, weights)
    first = tokenizer_of(model, or_bytes=True).encode("Once", parse_special=False)[0]
    both = kv_cache_lab.compare(loaded, first, count)
    moved = changed(in_fp32(_BUILTIN), tokenizer_of(_BUILTIN).encode(STORY))
    _give(kv_cache_lab.document(both, moved), kv_cache_lab.as_json(both, moved), svg, as_json)


@lab.command()
def memory(
    device: options.DeviceName = "rtx-4090",
    model: Annotated[
        list[str] | None, typer.Option(help="A folder, a config.json or a catalogue name; repeatable.")
    ] = None,
    devices: options.Devices = 1,
    context: Annotated[str, typer.Option(help="The number of tokens per user.")] = "2000",
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Count the users that fit on a GPU, subtraction by subtraction, for an 8B and a 70B model."""
    gpu, names = device_named(device), model or ["llama-3-8b", "llama-3-70b"]
    length = parse_tokens(context, "--context")
    for name in names:
        _check_writes(name)
    users = [memory_lab.users_on(name, gpu, devices, length) for name in names]
    _give(memory_lab.document(users, gpu, length), memory_lab.as_json(users, gpu, length), svg, as_json)


@lab.command()
def sampling(
    model: Annotated[str, typer.Option(help="A checkpoint folder or a built-in model.")] = _BUILTIN,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "One day, a",
    tokens: Annotated[str, typer.Option(help="The number of tokens that each setting generates.")] = "48",
    seed: options.Seed = 1,
    weights: options.RunWeights = None,
    kv: options.RunKV = None,
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Compare greedy, temperature, top-k and top-p sampling from scratch with the engine's sampler."""
    count = _fitting(tokens, "--tokens", model)
    llm = LLM(model, EngineSettings(kv_bytes=64 << 20), weights=weights, kv=kv)
    written = sampling_lab.compare(llm, prompt, count, seed)
    page = sampling_lab.document(written, prompt, llm.tokenizer)
    _give(page, sampling_lab.as_json(written, prompt), svg, as_json)


@lab.command()
def phases(
    model: Annotated[str, typer.Option(help=_MODEL)] = "llama-3-8b",
    device: options.DeviceName = "a100-sxm-80gb",
    context: Annotated[str, typer.Option(help="The tokens of the prompt, and of the context in decode.")] = "2000",
    weights: options.RunWeights = None,
    kv: options.RunKV = None,
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Compare prefill with decode: the ridge point, the idle share, the speed limit, and the batch that reaches it."""
    length = _fitting(context, "--context", model)
    family = family_of(read_config(model))
    if not family.generates:
        raise ValueError(
            f"{model} generates no text, so it has no decode phase; name a model that does, such as llama-3-8b"
        )
    if device == "this" and _encodes(model):
        raise ValueError(
            f"{model} has an encoder, for which this experiment has no input; give a GPU with --device, such as "
            "h100-sxm"
        )
    if device == "this":
        both = _phases_here(model, length, weights, kv)
    else:
        config = read_config(model)
        recipe = read_recipe(config) if weights is None else recipe_named(weights)
        recipe = recipe if kv is None else replace(recipe, kv=kv_format_named(kv))
        gpu = device_named(device)
        room = _room(model, gpu, weights, kv, length)
        both = phases_lab.compare(build(config, recipe=recipe), gpu, length, room=room)
    _give(phases_lab.document(both, model), phases_lab.as_json(both, model), svg, as_json)


@lab.command()
def numbers(svg: Svg = None, as_json: options.Json = False) -> None:
    """Compare figures from texts on inference with the computed ones, and explain the differences."""
    found = numbers_lab.statements(CostCalculator())
    _give(numbers_lab.document(found), numbers_lab.as_json(found), svg, as_json)


def _phases_here(model: str, length: int, weights: str | None, kv: str | None) -> phases_lab.PhaseComparison:
    """Return the phases on this machine, with measured times if the context has room for some more tokens."""
    loaded, threads = _load(model, None, weights, kv)
    measured = phases_lab.measure(loaded, length) if length + phases_lab.ANSWER <= loaded.context else None
    return phases_lab.compare(loaded, device_named("this", threads), length, measured)


def _room(name: str, gpu: Device, weights: str | None, kv: str | None, context: int) -> int | None:
    """Return the number of users of a given context that fit on a device.

    Return None for a context of one token, or for a model whose users need something else than a KV cache of that
    context.
    """
    family = family_of(read_config(name))
    if _encodes(name) or not family.generates or context < 2:
        return None
    case = ModelCache(read_config(name)).scenario(Deployment(gpu, weights=weights, kv=kv))
    return memory_of(case, PlanWorkload(input=context - 1, output=1)).users


def _fitting(text: str, option: str, model: str) -> int:
    """Return the number of tokens that an option states.

    Raises:
        ValueError: If it exceeds the model's context. This is checked before weights are read or anything is timed.
    """
    tokens, context = parse_tokens(text, option), build(read_config(model)).context
    if tokens > context:
        raise ValueError(f"{option} is {tokens:,}, but {model} has a context of {context:,}; give a smaller number")
    return tokens


def _encodes(name: str) -> bool:
    """Return whether a model has an encoder for text or audio."""
    return build(read_config(name)).has_cross_attention


def _check_continues(name: str) -> None:
    """Raise ValueError for an encoder or a model that has one, because they do not continue a text."""
    if _encodes(name) or not family_of(read_config(name)).generates:
        raise ValueError(f"{name} does not continue a text by itself; name a decoder-only model, such as tales")


def _check_writes(name: str) -> None:
    """Raise ValueError for a model without a KV cache, or with an additional one for its encoder."""
    source = open_source(catalogue_name(name) or name)
    family = family_of(source.config)
    if read_embedding(source) is not None or not family.generates:
        raise ValueError(
            f"{name} computes embeddings and keeps no KV cache; give a model that generates text, or use `ridgeline "
            "plan`"
        )
    if build(source.config).has_cross_attention:
        raise ValueError(
            f"{name} also keeps the keys and values of its encoder; give a decoder-only model, or use `ridgeline plan`"
        )


def _load(name: str, threads: int | None, weights: str | None, kv: str | None = None) -> tuple[Model, int]:
    """Return a model and its number of threads. The weights are random if only its config exists."""
    source = open_source(name)
    model = load_model(source, dummy_weights=not source.has_weights, weights=weights, kv=kv)
    threads = threads_for(sum(parameter.nbytes for parameter in model.parameters()), threads)
    torch.set_num_threads(threads)
    return model, threads


def _give(page: Document, data: dict[str, Any], svg: Path | None, as_json: bool) -> None:
    """Write the figure of an experiment's page if requested, and print the page or its data as JSON."""
    if svg is not None:
        _write(svg, page)
    if as_json:
        print_json(data)
    else:
        show(page)


def _write(path: Path, page: Document) -> None:
    """Write the figure of an experiment's page as an SVG file."""
    (figure,) = page.figures
    write_whole(path, draw_svg(figure))
    say(f"chart written to {path}")


@lab.command(help=_help_of(EXPERIMENTS["directions"]))
def directions(
    model: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint folder with a larger vocabulary, to compute king - man + woman in its embeddings."
        ),
    ] = None,
    svg: Svg = None,
    as_json: options.Json = False,
) -> None:
    """Run the experiment on directions of meaning, with the built-in model or another one."""
    experiment = EXPERIMENTS["directions"] if model is None else queen_lab.experiment(model)
    command_of(experiment, _write)(svg=svg, as_json=as_json)


for _experiment in EXPERIMENTS.values():
    if _experiment.name != "directions":  # it has a model option of its own
        lab.command(_experiment.name)(command_of(_experiment, _write))
lab.command()(exercise)
