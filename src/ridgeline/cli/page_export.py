"""`ridgeline page export` writes the web page as a single file."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.console import counting_bar, rough_time, say, status
from ridgeline.cli.flags import option, with_flags
from ridgeline.cli.options import device_named
from ridgeline.core.checkpoint.source import ModelSource, catalogue_name, open_source
from ridgeline.engine.llm import LLM
from ridgeline.learn.page.data import CARDS, MODELS, TRAFFIC, device_data, models_data, stored_of, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.learn.page.recorder import record
from ridgeline.learn.page.request_recording import RECORDED, VERSION
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.util.files import check_outputs, write_whole
from ridgeline.util.untrusted import read_object

USUAL = "llama-3-8b,llama-3-70b,llama-3.1-405b,qwen3-8b,qwen3-30b-a3b,qwen3-235b-a22b,gpt-oss-120b,deepseek-v3"
MODEL, _PROMPT = "tales", "Once upon a time, there was a little dog named"
"""The model that records prompts, and the default prompt."""

_SEED = 1
_AS_IT_IS = "stored"
_COMPARED = 2
_WORTH_SAYING = 3.0  # minimum estimate in seconds to print


@dataclass(frozen=True, slots=True)
class ExportFlags:
    """The options for the models and the recordings of an exported page."""

    models: str = option("The models of the page, separated by commas.", default=USUAL)
    weights: str = option(
        "The weight formats to choose from; `stored` is what a model's config says.", default="stored,fp8,int4"
    )
    kv: str = option("The KV-cache formats to choose from.", default="stored,fp8")
    devices: str = option("The numbers of devices to choose from.", default="1,2,4,8")
    runs: bool = option(
        "Record runs of the engine with the built-in model, and the steps of the built-in diffusion pipeline.",
        default=True,
    )
    trace: list[str] | None = option(
        f"A request to play: a prompt for {MODEL}, which runs now, or a .json file from /page/trace; repeatable. By "
        "default a short prompt; '' for none.",
        metavar="PROMPT|FILE",
    )
    traffic: list[Path] | None = option(
        "A load test to show: the output of `bench serve --json`, or a simulation; two are compared.", metavar="FILE"
    )
    force: bool = option("Overwrite an existing file.", default=False)


@with_flags
def export(out: Annotated[Path, typer.Option(help="The file to write.", metavar="FILE")], flags: ExportFlags) -> None:
    """Write the web page as one file that works from disk, without a network.

    It holds the prices of each model in each format; formats that a model cannot be split in are left out. It also
    holds runs of the engine, the steps of a diffusion pipeline, and requests op by op, all recorded now.
    """
    check_outputs({"--out": out}, overwrite=flags.force)
    wanted = _parts(flags.models)
    if not wanted:
        raise ValueError("--models is empty; give model names separated by commas")
    ways = [_stored(*way) for way in itertools.product(*map(_parts, (flags.weights, flags.kv, flags.devices)))]
    tables = _tables([catalogue_name(name) or name for name in wanted], ways)
    listed = {name: list(own) for name, own in tables.items()}
    blocks = {table_name(name, way): table for name, own in tables.items() for way, table in own.items()}
    results = _results(flags.traffic or [])
    played = recordings(flags.trace)
    recorded = (_recorded() if flags.runs else {}) | ({RECORDED: played} if played else {})
    recorded |= {TRAFFIC: results} if results else {}
    data = render_standalone({MODELS: models_data(listed), CARDS: device_data(), **blocks, **recorded})
    write_whole(out, data)
    counts = f"{len(blocks)} tables of {len(tables)} models, {len(played)} recorded requests"
    say(f"{out}: {counts}, {len(data) / 1e6:.2f} MB")


def _recorded() -> dict[str, Any]:
    """Record runs of the engine and of a diffusion pipeline on this machine."""
    from ridgeline.learn.page.recorded_images import IMAGES, record_images
    from ridgeline.learn.page.recordings import RUNS, recorded_runs  # imported only for recordings

    say("recording runs of the engine and images on this machine")
    with status("recording"):
        device = device_named("this", 1)
        return {RUNS: recorded_runs(device), IMAGES: record_images(device)}


def _results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Read the load-test results to show, with their file names.

    Raises:
        ValueError: If a file has another content, or there are more than two.
    """
    if len(paths) > _COMPARED:
        raise ValueError(
            f"--traffic is given {len(paths)} times, but at most {_COMPARED} runs can be compared; give fewer"
        )
    found = []
    for path in paths:
        content = read_object(path)
        if content.get("format") != 1 or not isinstance(content.get("per_request"), dict):
            raise ValueError(
                f"--traffic {path} has no run under load; give a file from bench serve --json or simulate --out"
            )
        found.append({"name": path.name, "result": content})
    return found


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _stored(weights: str, kv: str, devices: str) -> StoredModel:
    """Return a storage variant of a model.

    Raises:
        ValueError: If a format or number of devices is unknown.
    """
    stored = {"weights": weights, "kv": kv, "devices": devices}
    return stored_of("&".join(f"{name}={value}" for name, value in stored.items() if value != _AS_IT_IS))


def _tables(names: Sequence[str], ways: Sequence[StoredModel]) -> Mapping[str, Mapping[StoredModel, Any]]:
    """Return the price tables of each model in each storage variant that it supports.

    Raises:
        ValueError: If a model supports none of the variants.
    """
    sources = [open_source(name) for name in names]
    total = len(sources) * len(ways)
    _say_estimate(sources[0], ways[0], total)
    made = {}
    tried = itertools.count(1)
    with counting_bar("tables", total) as done:
        for source in sources:
            made[source.title] = _tables_of(source, ways, lambda: done(next(tried)))
    return made


def _say_estimate(source: ModelSource, way: StoredModel, total: int) -> None:
    """Compute one table and print an estimate for all of them if they will take long."""
    began = time.monotonic()
    with suppress(ValueError):
        model_table(source, way)
    seconds = total * (time.monotonic() - began)
    if seconds >= _WORTH_SAYING:
        say(f"computing {total:,} tables of predicted times: about {rough_time(seconds)}")


def _tables_of(source: ModelSource, ways: Sequence[StoredModel], done: Callable[[], None]) -> Mapping[StoredModel, Any]:
    """Return the price tables of one model, and call `done` after each storage variant."""
    cache, made, refusals = ModelCache(source.config), {}, []
    for way in ways:
        try:
            made[way] = model_table(source, way, cache)
        except ValueError as error:
            refusals.append(error)
        done()
    if not made:
        raise refusals[0]
    return made


def recordings(paths: Sequence[str] | None) -> list[Any]:
    """Return a recording per entry, read from a .json file of `/page/trace` or made from a prompt.

    None stands for the default prompt, and empty entries are skipped.

    Raises:
        ValueError: If a prompt cannot be recorded or a file cannot be read.
    """
    wanted = [each for each in ([_PROMPT] if paths is None else paths) if each]
    files = {each: _read_recording(Path(each)) for each in wanted if each.endswith(".json")}
    prompts = [each for each in wanted if each not in files]
    made = files | _recorded_prompts(prompts)
    return [made[each] for each in wanted]


def _recorded_prompts(prompts: Sequence[str]) -> dict[str, Any]:
    """Return recordings of the engine that runs prompts, by prompt."""
    if not prompts:
        return {}
    llm = LLM(MODEL)
    rules = replace(llm.loaded.defaults, seed=_SEED)
    ids = {prompt: llm.encode(prompt) for prompt in prompts}
    made = {}
    with counting_bar("recordings", len(prompts)) as done:
        device = device_named("this", llm.threads)
        for count, prompt in enumerate(prompts, 1):
            made[prompt] = record(llm.loaded, MODEL, prompt, ids[prompt], rules, device)
            done(count)
    return made


def _read_recording(path: Path) -> dict[str, Any]:
    """Return the recording in a file.

    Raises:
        ValueError: If the file holds no recording of the current version.
    """
    content = read_object(path)
    if content.get("version") != VERSION or not isinstance(content.get("steps"), list):
        raise ValueError(f"--trace {path} has no recording of version {VERSION}; give a response of POST /page/trace")
    return content
