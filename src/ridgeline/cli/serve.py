"""`ridgeline serve` serves models through an OpenAI-compatible API until a signal ends it."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli import options
from ridgeline.cli.console import describe_definition, loading_bar
from ridgeline.cli.engine_flags import TextFlags, known_device
from ridgeline.cli.flags import build_from, given_flags, panel, with_flags
from ridgeline.cli.limits import ServerLimitFlags, check_limits, limits_of
from ridgeline.cli.missing_kernels import missing_kernels_warning
from ridgeline.cli.options import calibrated_device, device_named
from ridgeline.cli.serve_priced import PricedFlags, check_priced, describe_priced_devices, served_priced
from ridgeline.cli.serve_replicas import ReplicaFlags, most_replicas, replica_resources, served_replicas
from ridgeline.cli.serve_split import SplitFlags, check_split, served_split
from ridgeline.cli.simulate import check_continues
from ridgeline.cli.text_request import image_generation_warning
from ridgeline.core.checkpoint import ModelSource, open_source
from ridgeline.core.checkpoint.weight_loader import weight_bytes
from ridgeline.core.models import build_to_run
from ridgeline.engine import placement
from ridgeline.server.http.auth import read_keys
from ridgeline.server.lifecycle import Model, Servable, ServedLLM, run_server
from ridgeline.server.routes.tool_use import format_for
from ridgeline.server.server_settings import ServerSettings, is_loopback
from ridgeline.server.service import EngineClient
from ridgeline.server.telemetry.logs import set_up_logs
from ridgeline.server.telemetry.traffic_recorder import check_new_file
from ridgeline.util.document.humanize import three_digits
from ridgeline.util.document.printable import printable
from ridgeline.util.host import check_threads, cores, return_freed_memory, threads_for

if TYPE_CHECKING:  # a text server must not import diffusion code
    from ridgeline.server.images.diffusion_engine import DiffusionEngine
    from ridgeline.server.images.served_images import ServedImages
    from ridgeline.server.multi_model import MultiModelEngine, ServedMultiModel

logger = logging.getLogger("ridgeline.server")

_ServedBy = Callable[[ModelSource], ServedLLM]
"""A function that returns a language model as a single engine would serve it."""


_server, _adapters = panel("Server"), panel("Adapters")
_SERVER_OF_TEXT = ("--open-objects", "--tool-call-parser", "--record", "--seed")
"""The server options that only apply to language models."""


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The options of the HTTP server: address, authentication and logging."""

    host: str = _server(
        "The address to listen on; other machines can connect only with an API key or --insecure.", default="127.0.0.1"
    )
    port: int = _server("The port; 0 picks a free one.", default=8000)
    served_model_name: options.ServedModelName = None
    api_key: list[str] | None = _server(
        "An API key that clients must send; repeatable. Other users of this machine can see it: --api-key-file is "
        "safer."
    )
    api_key_file: Path | None = _server("A file with one API key per line.", metavar="FILE")
    insecure: bool = _server("Accept connections from other machines without an API key.", default=False)
    allowed_origins: list[str] | None = _server(
        "A web origin whose pages may call the server, * for all; repeat it, or give a JSON list."
    )
    allowed_hosts: list[str] | None = _server(
        "A further host name under which a server without API keys answers; repeatable."
    )
    strict: bool = _server("Reject requests with unknown fields.", default=False)
    open_objects: bool = _server(
        "Allow properties that a JSON schema does not name, as JSON Schema does, if it does not forbid them.",
        default=False,
    )
    tool_call_parser: str | None = _server(
        "The format of the model's tool calls, if its chat template does not show it, by its name in vLLM, such as "
        "hermes or qwen3_coder. docs/serving.md lists the names."
    )
    access_log: bool = _server("Log one line per request, without its text.", default=True)
    log_format: str = _server("The log format: text, or json for one object per line.", default="text")
    metrics_alias: str | None = _server("vllm: export the metrics also under vLLM's names.")
    record: str | None = _server("Record the traffic (times and lengths, no text) to this new file.", metavar="FILE")
    seed: int | None = _server("The source of the seeds of requests that send none.")

    def settings(self, limits: dict[str, Any]) -> ServerSettings:
        """Return the server settings with the given limits.

        Raises:
            ValueError: If an option is invalid.
        """
        keys = (*(self.api_key or ()), *(read_keys(self.api_key_file) if self.api_key_file is not None else ()))
        if self.record is not None:
            check_new_file(Path(self.record))
        return build_from(
            self,
            ServerSettings,
            models=tuple(self.served_model_name or ()),
            keys=keys,
            allowed_origins=_each("--allowed-origins", self.allowed_origins),
            allowed_hosts=_each("--allowed-hosts", self.allowed_hosts),
            tool_parser=self.tool_call_parser,
            **limits,
        )


@dataclass(frozen=True, slots=True)
class AdapterFlags:
    """The options for the LoRA adapters of a server."""

    lora_modules: list[str] | None = _adapters(
        "LoRA adapters that requests select as their model: NAME=FOLDER, or vLLM's JSON; give several, or repeat the "
        "option.",
        metavar="NAME=FOLDER",
    )
    enable_lora: bool = _adapters(
        "Load the adapters of --lora-modules (the default, accepted for vLLM's sake).", default=False
    )
    max_lora_rank: int | None = _adapters("Refuse adapters with a higher rank.")
    max_loras: int | None = _adapters(
        "The number of adapters in one step. All loaded ones can run together, so give at least their number."
    )

    def settings(self) -> dict[str, Any]:
        """Return the adapter fields of EngineSettings.

        Raises:
            ValueError: If the options contradict each other.
        """
        adapters = options.adapters_of(self.lora_modules, "--lora-modules")
        if self.enable_lora and not adapters:
            raise ValueError(
                "--enable-lora needs --lora-modules NAME=FOLDER, because adapters cannot be loaded later; give both"
            )
        if self.max_loras is not None and self.max_loras < len(adapters):
            raise ValueError(
                f"--max-loras is {self.max_loras}, but all {len(adapters)} adapters can be in one step; give at least "
                "that number"
            )
        return {"adapters": adapters, "adapter_rank": self.max_lora_rank}


@with_flags
def serve(
    model: options.ServedModels,
    *,
    server: ServerFlags,
    engine: TextFlags,
    adapters: AdapterFlags,
    replicas: ReplicaFlags,
    split: SplitFlags,
    priced: PricedFlags,
    limits: ServerLimitFlags,
) -> int:
    """Serve models over HTTP with OpenAI's API: text, embeddings, speech, images and videos.

    Metrics are at /metrics, health checks at /health. Ctrl-C or SIGTERM lets running requests finish; a second one
    stops them. Exit codes: 0 ended by a signal, 1 the engine failed, 130 ended by the second signal.
    """
    settings = server.settings(limits_of(limits))
    sources = [open_source(each) for each in model]
    pipelines = [source for source in sources if source.pipeline]
    writers = [source for source in sources if not source.pipeline]
    check_options(sources, server, engine, adapters)
    check_limits(limits, model[0], writes=bool(writers), draws=bool(pipelines))
    check_priced(priced, [*given_flags(engine), *given_flags(adapters), *given_flags(server)])
    replicas.check(pipelines)
    split.check(pipelines, replicas, priced.priced, settings.stalled_seconds)
    served = partial(_served, settings=settings, engine=engine, adapters=adapters, seed=server.seed)
    if not pipelines:
        return_freed_memory()  # the steps, which reuse memory, run in other processes
    if priced.priced is not None:
        return _serve_priced(sources, settings, served, priced, replicas)
    if not pipelines:
        return _serve_language(writers[0], settings, served, engine, replicas, split)
    images = served_images(pipelines, engine.threads)
    if not writers:
        return _run(images, settings, lambda url, diffusion_engine: say_images_ready(url, diffusion_engine, settings))
    return _serve_together(writers[0], images, settings, served, engine.device)


def _serve_language(
    model: ModelSource,
    settings: ServerSettings,
    served_by: _ServedBy,
    engine: TextFlags,
    replicas: ReplicaFlags,
    split: SplitFlags,
) -> int:
    built = build_to_run(model.config, weights=engine.weights, kv=engine.kv)
    threads = engine.threads or threads_for(weight_bytes(built), ranks=engine.tensor_parallel)
    if engine.threads is None and replicas.ray_address is None:  # all replicas share this machine
        engines = most_replicas(replicas) if split.split is None else sum(split.counts())
        threads = min(threads, max(1, cores() // (engine.tensor_parallel * engines)))
    place = placement.device_named(engine.device)
    priced_for = partial(calibrated_device, place, min(threads, cores()))  # of this machine, even with a cluster
    served = replace(served_by(model), threads=threads, device=priced_for)
    guesses = None if served.settings is None else served.settings.speculation
    if guesses is not None and guesses.method == "auto" and place.type != "cpu":
        known_device(priced_for())

    if split.given:
        assert served.settings is not None
        check_split(split, built, model.name, served.settings, engine.threads)

    def ready(url: str, llm: EngineClient) -> None:
        say_ready(url, llm, served.name, settings)
        _say_draws(model)

    if split.split is not None:
        return _run(served_split(split, served), settings, lambda url, apart: ready(url, apart.engines))
    return _run_engines(replace(served, transfer=split.transfer()), settings, replicas, ready)


def _run_engines(
    served: ServedLLM, settings: ServerSettings, replicas: ReplicaFlags, ready: Callable[[str, EngineClient], None]
) -> int:
    """Run a server of a model on one engine or on several replicas."""
    if not replicas.given:
        return _run(served, settings, ready)
    from ridgeline.server.replicas.ray_cluster import check_ray, ray_cluster

    check_ray()
    share, most = replica_resources(replicas, served), most_replicas(replicas)
    with ray_cluster(replicas.ray_address, most * share.cores, most * share.gpus) as cluster:
        several = served_replicas(served, replicas, cluster, share)
        return _run(several, settings, lambda url, started: ready(url, started.fleet))


def _serve_priced(
    sources: Sequence[ModelSource],
    settings: ServerSettings,
    served_by: _ServedBy,
    priced: PricedFlags,
    replicas: ReplicaFlags,
) -> int:
    """Run a server that simulates a language model instead of running it.

    Raises:
        ValueError: If there are several models, or the model does not continue text.
    """
    if len(sources) > 1:
        raise ValueError("--priced serves one language model; leave out the other models")
    check_continues(sources[0])
    served = served_priced(sources[0], served_by(sources[0]), priced)
    title = describe_priced_devices(served)

    def ready(url: str, llm: EngineClient) -> None:
        say_ready(url, llm, served.name, settings)
        logger.warning(
            f"no model runs here: each step takes the time predicted for {title}, and responses are filler text"
        )

    return _run_engines(served, replace(settings, priced=title), replicas, ready)


def _serve_together(
    model: ModelSource, images: "ServedImages", settings: ServerSettings, served_by: _ServedBy, device: str
) -> int:
    from ridgeline.server.multi_model import ServedMultiModel

    if placement.device_named(device).type != "cpu":
        raise ValueError(
            "--device: next to a diffusion pipeline a language model runs on the CPU; leave it out, or serve it alone"
        )
    together = ServedMultiModel(served_by(model), images)

    def ready(url: str, models: "MultiModelEngine") -> None:
        say_multi_model_ready(url, together, models, settings)
        _say_draws(model)

    return _run(together, settings, ready)


def _run(served: Servable[Model], settings: ServerSettings, ready: Callable[[str, Model], None]) -> int:
    """Set up logging in the requested format, and run a server."""
    set_up_logs("json" if settings.log_format == "json" else "text")
    return run_server(served, settings, ready)


def _served(
    model: ModelSource, settings: ServerSettings, engine: TextFlags, adapters: AdapterFlags, seed: int | None
) -> ServedLLM:
    engine_settings = engine.settings(
        model, seed=seed, grammar_bytes=settings.grammar_cache_bytes, **adapters.settings()
    )
    name = model.title
    return ServedLLM(model.name, name, engine_settings, engine.dummy_weights, progress_bar=lambda: loading_bar(name))


def check_options(
    models: Sequence[ModelSource], server: ServerFlags, engine: TextFlags, adapters: AdapterFlags
) -> None:
    """Raise ValueError for models that cannot share a server, or text options without a language model."""
    writers = [each.name for each in models if not each.pipeline]
    if len(writers) > 1:
        raise ValueError(
            f"{len(writers)} language models are given, but a server runs one; start another server for {writers[1]}"
        )
    if len(models) > 1 and server.served_model_name:
        raise ValueError(
            "--served-model-name is for a single model; leave it out, because several models use their folder names"
        )
    if len({each.title for each in models}) < len(models):
        raise ValueError("two of the models have the same name; rename the folder or the file of one")
    if writers:
        return
    given = [name for name in given_flags(server) if name in _SERVER_OF_TEXT]
    given += [*given_flags(engine, "threads"), *given_flags(adapters)]
    if given:
        raise ValueError(f"{given[0]} is for language models, but {models[0].name} generates images; leave it out")


def served_images(models: Sequence[ModelSource], threads: int | None) -> "ServedImages":
    """Return the diffusion pipelines to serve, by the names that responses use.

    Raises:
        ValueError: If there are more threads than cores.
    """
    from ridgeline.server.images.served_images import ServedImages

    if threads is not None:
        check_threads(threads)
    named = {each.title: each.name for each in models}
    return ServedImages(named, lambda count: device_named("this", count), threads, loading_bar)


def say_images_ready(url: str, diffusion_engine: "DiffusionEngine", settings: ServerSettings) -> None:
    """Log the address, the model names and the limits of a server of diffusion pipelines."""
    names = ", ".join(
        diffusion_engine.pipelines
        if len(diffusion_engine.pipelines) > 1
        else settings.models or diffusion_engine.pipelines
    )
    _say_serving(url, names, diffusion_engine.loop.threads, settings)
    device = diffusion_engine.device
    missing = device.stale_calibration or "ridgeline calibrate"
    how = "" if device.calibrated else f" (not calibrated: {missing})"
    logger.info(f"Predicted step times are those of {device.title}{how}")
    logger.info(f"limits: {_drawing_limits(settings)} (all: {url}/v1/models)")


def say_ready(url: str, llm: EngineClient, name: str, settings: ServerSettings) -> None:
    """Log the address, the model name and the limits of a language model's server.

    The KV capacity is already in the log.
    """
    _say_serving(url, ", ".join(settings.models or (name,)), llm.info.threads, settings, llm.info.replicas)
    _say_definition(llm)
    logger.info(f"limits: {_writing_limits(llm, settings)} (all: {url}/v1/models)")
    _say_formats(llm, settings)
    _say_warnings(llm)


def say_multi_model_ready(
    url: str, served: "ServedMultiModel", models: "MultiModelEngine", settings: ServerSettings
) -> None:
    """Log the address, the names and the limits of a server with a language model and diffusion pipelines."""
    pipeline_names = ", ".join(models.diffusion_engine.pipelines)
    _say_serving(url, f"{served.name}, {pipeline_names}", models.llm.info.threads, settings)
    _say_definition(models.llm)
    logger.info(f"limits of {served.name}: {_writing_limits(models.llm, settings)}")
    _say_formats(models.llm, settings)
    _say_warnings(models.llm)
    logger.info(f"limits of {pipeline_names}: {_drawing_limits(settings)} (all: {url}/v1/models)")


def _say_serving(url: str, names: str, count: int, settings: ServerSettings, replicas: int = 1) -> None:
    who = (
        "with an API key"
        if settings.keys
        else "without an API key"
        if not is_loopback(settings.host)
        else "for this machine"
    )
    threads = f"{count} thread{'s' if count > 1 else ''}"
    if replicas > 1:
        threads = f"{replicas} replicas of {threads} each"
    logger.info(f"serving {names} {who} at {url}/v1 with {threads}; its page: {url}/", extra={"fields": {"url": url}})
    if warning := missing_kernels_warning():
        logger.warning(warning)


def _say_definition(llm: EngineClient) -> None:
    """Log which class of a package defines the language model, if no family here does."""
    if llm.info.definition:
        logger.info(describe_definition(llm.info.definition))


def _say_formats(llm: EngineClient, settings: ServerSettings) -> None:
    """Log the formats in which the server reads the responses of a model with a chat template."""
    texts = llm.texts
    if texts.templates is None or llm.info.vectors is not None:
        return
    try:
        template = texts.templates.pick(tools=True)
    except ValueError:  # without a default, chats are refused
        return
    calls = format_for(template, settings)
    names = ("unknown" if calls is None else calls.name, texts.reasoning_format and texts.reasoning_format.name)
    logger.info(f"formats: tool calls {names[0]}, reasoning {names[1] or 'none'}")


def _say_warnings(llm: EngineClient) -> None:
    """Log the warnings of the loaded model."""
    for line in llm.info.warnings:
        logger.warning(printable(line))


def _say_draws(model: ModelSource) -> None:
    if warning := image_generation_warning(model):
        logger.warning(warning)


def _drawing_limits(settings: ServerSettings) -> str:
    from ridgeline.server.images.image_service import QUEUED_REQUESTS

    queued = QUEUED_REQUESTS if settings.queued_requests is None else settings.queued_requests
    return (
        f"{queued:,} requests, {settings.queue_seconds:g} s to the first step, {settings.total_seconds:g} s in total; "
        f"n up to {settings.choices}, {three_digits(settings.image_bytes / (1 << 20))} MiB of images"
    )


def _writing_limits(llm: EngineClient, settings: ServerSettings) -> str:
    info = llm.info
    queued = 4 * info.requests if settings.queued_requests is None else settings.queued_requests
    return (
        f"{info.requests:,} running requests, {queued:,} in the queue for {settings.queue_seconds:g} s, "
        f"{settings.total_seconds:g} s in total; n up to {settings.choices}; bodies up to "
        f"{three_digits(settings.body_bytes / (1 << 20))} MiB"
    )


def _each(option: str, values: list[str] | None) -> tuple[str, ...]:
    """Return the values of a repeatable option, each of which may be a JSON list as in vLLM.

    Raises:
        ValueError: If a value that begins like a list is not valid JSON.
    """
    found: list[str] = []
    for value in values or ():
        if not value.startswith("["):
            found.append(value)
            continue
        try:
            listed = json.loads(value)
        except ValueError:
            raise ValueError(
                f"{option} is {value!r}, which is not a valid JSON list; repeat the option instead"
            ) from None
        found += map(str, listed)
    return tuple(found)
