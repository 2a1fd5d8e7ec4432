"""`ridgeline trace` traces one request op by op, with predicted and measured times, or predicted times alone."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli import options
from ridgeline.cli.console import say, status
from ridgeline.cli.flags import with_flags
from ridgeline.cli.options import device_at, device_named, parse_tokens
from ridgeline.cli.plan_options import add_adapters_of, given_flags
from ridgeline.cli.text_request import (
    check_room,
    image_generation_warning,
    load,
    prompt_ids,
    read_prompt,
    sampling_params,
)
from ridgeline.cli.trace_options import (
    DiffusionTraceFlags,
    TraceFileFlags,
    chosen_layer,
    clock_of,
    refuse_image_options,
    refuse_text_options,
    traced_on,
)
from ridgeline.core.checkpoint.embedding_config import read_embedding, with_pooling
from ridgeline.core.checkpoint.source import ModelSource, catalogue_name, open_source
from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.engine import EngineSettings, SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.trace.priced_trace import PricedTrace, priced_trace
from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, check
from ridgeline.insight.trace.request_trace import trace as trace_request
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.perfetto import to_perfetto
from ridgeline.insight.trace.views.priced_report import WIDTH as PRICED_WIDTH
from ridgeline.insight.trace.views.priced_report import priced_document, priced_json
from ridgeline.insight.trace.views.report import WIDTH, ReportOptions, build_report
from ridgeline.insight.trace.views.trace_export import to_csv, to_json
from ridgeline.insight.trace.views.trace_summary import summary as summary_of
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.deployment_plan import check_devices
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.util.document.terminal_renderer import show

_LOOK, _PRICED = "Inside the model", "Prediction only"
_ATTENTION = (
    "Show the attention weights of a token, by head (of --layer). For an encoder-decoder: the "
    "cross-attention grid, with a row per token written and a column per token read."
)
_SUMMARY = "Show only where the time of one token went: a few lines, predicted next to measured."
_MAX_TEXT = 4 << 20
_GPU_REFUSALS = (
    "Price every op for this device: nothing runs, no weights and no prompt are needed; --input "
    "gives the prompt's length."
)
# A trace shows a single prefill, so one request runs at a time and a step must hold its whole prompt.
_SETTINGS = EngineSettings(limits=Limits(tokens=1 << 18, requests=1), prefix_cache=False)


def _look(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_LOOK)


@dataclass(frozen=True, slots=True)
class InspectionFlags:
    """The options for the parts of a model's internals that a trace shows."""

    layer: Annotated[
        str | None, _look("--layer", text="Show the ops of one layer, or of `all`; by default the layers are summed.")
    ] = None
    attention: Annotated[bool, _look("--attention", text=_ATTENTION)] = False
    lens: Annotated[bool, _look("--lens", text="Show what each layer would predict (logit lens).")] = False
    memory: Annotated[
        bool,
        _look(
            "--memory",
            text="Show the feed-forward neurons with the highest activations, and the tokens they promote.",
        ),
    ] = False
    experts: Annotated[
        bool, _look("--experts", text="Show the experts that the tokens were routed to (mixtures of experts).")
    ] = False
    source: Annotated[
        list[str] | None, _look("--source", text="With --experts: a text to compare, as NAME=FILE; repeatable.")
    ] = None
    position: Annotated[
        int | None, _look("--position", text="The token of the prompt to look at; the last by default.")
    ] = None

    def wanted(self, repeats: int | None) -> TraceOptions:
        """Return the options of the tracer.

        Raises:
            ValueError: If options cannot be combined.
        """
        if self.source and not self.experts:
            raise ValueError("--source needs --experts; give both, or neither")
        sources = self._sources()
        return TraceOptions(self.attention, self.lens, self.memory, self.experts, self.position, repeats, sources)

    def _sources(self) -> tuple[tuple[str, str], ...]:
        """Return the texts of --source with their names.

        Raises:
            ValueError: If an entry is malformed, there is only one, a name occurs twice, or a file cannot be read.
        """
        named = [part.partition("=") for part in self.source or ()]
        if any(not equals or not name for name, equals, _ in named):
            raise ValueError("--source must be NAME=FILE, a name and its text file")
        paths = [(name, Path(file)) for name, _, file in named]
        if len(paths) == 1 or len(dict(paths)) < len(paths):
            raise ValueError("--source needs at least two texts with different names")
        return tuple((name, _text_of(path)) for name, path in paths)


def _text_of(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ValueError: If it cannot be read, is too large or is not UTF-8.
    """
    try:
        if path.stat().st_size > _MAX_TEXT:
            raise ValueError(f"--source {path} is larger than {_MAX_TEXT >> 20} MiB; give an excerpt of some pages")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ValueError(f"--source {path} cannot be read: {why}; name a file of UTF-8 text") from None


@dataclass(frozen=True, slots=True)
class TraceSamplingFlags:
    """The sampling options of the traced request."""

    max_tokens: options.MaxTokens8 = None
    temperature: options.Temperature = None
    top_k: options.TopK = None
    top_p: options.TopP = None
    min_p: options.MinP = None
    seed: options.OptionalSeed = None

    def params(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """Return the model's sampling defaults changed by these options and `more`.

        The default of --max-tokens is 8.
        """
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "max_tokens"}
        return sampling_params(defaults, self.max_tokens, 8, **given, **more)


@dataclass(frozen=True, slots=True)
class TraceRunFlags:
    """The options for running the model that is traced."""

    raw: options.Raw = False
    system: options.System = None
    dummy_weights: options.DummyWeights = False
    lora: options.PricedLora = None
    repeats: Annotated[
        int | None,
        typer.Option(help="The number of measurements of each step; by default as many as fit into some seconds."),
    ] = None
    threads: options.Threads = None
    tensor_parallel: options.TensorParallel = 1


@dataclass(frozen=True, slots=True)
class PricedTraceFlags:
    """The options for pricing a request on a device instead of running it."""

    priced: Annotated[
        str | None,
        typer.Option(help=_GPU_REFUSALS, rich_help_panel=_PRICED, metavar="DEVICE"),
    ] = None
    input: options.Input = "1k"
    batch: options.Batch = 1
    devices: options.Devices = 1
    weights: options.Weights = None
    kv: options.KV = None

    def trace(self, model: str, lora: Sequence[str] | None) -> PricedTrace:
        """Return the trace that these options describe.

        Args:
            model: The model.
            lora: The adapters, as --lora states them.
        """
        assert self.priced is not None
        device = device_named(self.priced)
        setup = Deployment(device, self.devices, self.weights, self.kv, engine=default_engine(device))
        check_devices(setup)
        source = open_source(catalogue_name(model) or model)
        models = ModelCache(
            source.config, add_adapters_of(source, lora), partial(with_pooling, embedding=read_embedding(source))
        )
        case = models.scenario(setup)
        return priced_trace(model, case, parse_tokens(self.input, "--input"), self.batch)

    def check(self) -> None:
        """Raise ValueError for options that only apply to a priced request.

        The weight and KV formats also apply to a request that runs.
        """
        given = given_flags(self, "weights", "kv")
        if given:
            raise ValueError(
                f"{given[0]} applies only to a prediction without a run; give --priced DEVICE, or leave it out"
            )


@with_flags
def trace(
    model: options.ModelName,
    prompt: options.PromptText = None,
    device: options.DeviceName = "this",
    *,
    look: InspectionFlags,
    sampling: TraceSamplingFlags,
    diffusion: DiffusionTraceFlags,
    running: TraceRunFlags,
    files: TraceFileFlags,
    priced: PricedTraceFlags,
    summary: Annotated[bool, typer.Option("--summary", help=_SUMMARY)] = False,
    as_json: options.Json = False,
) -> None:
    """Trace one request through the model, op by op, with predicted and measured times.

    Shows the text, the token ids, every op with its bound, expected and measured time, the candidate tokens, and a
    summary of where the time went. For a diffusion pipeline it shows the text encoders, one denoising step and the
    decoder.

    The prefill and the first decode step are measured, each op by itself. Tracing does not change the tokens.

    With --priced DEVICE nothing runs; every op of any model is priced for any device.
    """
    if priced.priced is not None:
        given = [*["a prompt"] * (prompt is not None), *given_flags(look), *given_flags(files)]
        given += ["--device"] * (device != "this") + ["--summary"] * summary
        given += [*given_flags(diffusion), *given_flags(sampling), *given_flags(running)]
        _show_priced(model, priced, running.lora, [name for name in given if name != "--lora"], as_json)
        return
    priced.check()
    if prompt is None:
        raise ValueError(
            "PROMPT is missing; give the text to trace, or --priced DEVICE to predict the model without one"
        )
    files.check()
    if summary:
        _check_summary(look, files, as_json=as_json)
    text = read_prompt(prompt)
    source = open_source(model)
    if source.pipeline:
        if summary:
            refuse_text_options(model, ["--summary"])
        _show_drawn(model, text, device, look, sampling, diffusion, running, files, priced, as_json=as_json)
        return
    refuse_image_options(model, given_flags(diffusion))
    _show_written(source, text, device, look, sampling, running, files, priced, as_json=as_json, short=summary)


def _check_summary(look: InspectionFlags, files: TraceFileFlags, *, as_json: bool) -> None:
    """Raise ValueError for options whose output --summary would not show."""
    drawn = ["--roofline -"] * (str(files.roofline) == "-")
    for name in (*given_flags(look), *drawn, *["--json"] * as_json):
        raise ValueError(f"--summary shows only where the time of a token went; leave out --summary or {name}")


def _show_drawn(
    model: str,
    prompt: str,
    device: str,
    look: InspectionFlags,
    sampling: TraceSamplingFlags,
    diffusion: DiffusionTraceFlags,
    running: TraceRunFlags,
    files: TraceFileFlags,
    priced: PricedTraceFlags,
    *,
    as_json: bool,
) -> None:
    """Trace the output of a diffusion pipeline and show the trace.

    Raises:
        ValueError: If an option is invalid or does not apply to diffusion pipelines.
    """
    from ridgeline.cli.trace_diffusion import (  # not imported for a language model
        DiffusionTraceOptions,
        show_diffusion_trace,
    )

    looks = given_flags(look, "layer", "attention")
    given_sampling = given_flags(sampling, "seed")
    others = given_flags(running, "repeats", "threads")
    others += ["--weights"] * (priced.weights is not None) + ["--kv"] * (priced.kv is not None)
    refuse_text_options(model, [*looks, *given_sampling, *others])
    trace_options = DiffusionTraceOptions(
        device, look.layer, look.attention, running.repeats, running.threads, files, as_json
    )
    show_diffusion_trace(model, prompt, sampling.seed, diffusion, trace_options)


def _show_written(
    source: ModelSource, prompt: str, device: str, look: InspectionFlags, sampling: TraceSamplingFlags,
    running: TraceRunFlags, files: TraceFileFlags, formats: PricedTraceFlags, *, as_json: bool, short: bool,
) -> None:  # fmt: skip
    """Trace the output of a language model and show the trace.

    Args:
        source: The model.
        prompt: The prompt.
        device: The device to price steps on, and to run on if it is a GPU of this machine.
        look: The parts of the internals to show.
        sampling: The sampling options.
        running: The options for running the model.
        files: The files to write.
        formats: The weight and KV formats to quantise to.
        as_json: Whether to print JSON.
        short: Whether to show only the summary.

    Raises:
        ValueError: If options are invalid or cannot be combined.
    """
    adapters = options.adapter_of(running.lora, "request", "--priced DEVICE")
    if adapters and look.memory:
        raise ValueError("--memory shows the neurons of the model without adapters; leave out --lora or --memory")
    dummy, place = running.dummy_weights, traced_on(device)
    inside = given_flags(look, "layer")
    if place.type != "cpu" and inside:
        raise ValueError(f"{inside[0]} works only on the CPU; leave out {inside[0]} or --device {device}")
    if running.tensor_parallel > 1 and inside:
        raise ValueError(f"{inside[0]} needs the whole model, but --tensor-parallel divides it; leave one of them out")
    on = "cpu" if place.type == "cpu" else device
    settings = dataclasses.replace(
        _SETTINGS,
        adapters=adapters,
        weights=formats.weights,
        kv=formats.kv,
        ranks=running.tensor_parallel,
        device=on,
    )
    llm = load(source, settings, dummy_weights=dummy, threads=running.threads)
    layer, wanted = chosen_layer(look.layer, layers_of(llm.loaded.model)[-1]), look.wanted(running.repeats)
    params = sampling.params(llm.loaded.defaults, ignore_eos=dummy)
    name, encode_prompt = source.title, partial(prompt_ids, llm, prompt, running.system, running.raw)
    subject = TraceSubject(name, prompt, encode_prompt, next(iter(adapters), ""))
    ids = subject.encode()
    if sampling.max_tokens is not None:
        check_room(llm, ids, params)
    check(llm, ids, wanted)  # before probing the machine
    with status("tracing"):
        priced_device = device_named(device, llm.threads) if place.type == "cpu" else device_at(place)
        priced_device, at_hand = llm.loaded.with_interconnect(priced_device), device == "this" or place.type != "cpu"
        ledger = trace_request(
            llm, subject, params, priced_device, wanted, at_hand=at_hand, threads=llm.threads, clock=clock_of(place)
        )
    files.write(
        csv=lambda: to_csv(ledger),
        perfetto=lambda: json.dumps(to_perfetto(ledger)),
        roofline=lambda: ledger_roofline(ledger),
    )
    if as_json:
        print(json.dumps(to_json(ledger)))
    elif short:
        show(summary_of(ledger))
    else:
        show(build_report(ledger, ReportOptions(layer, files.roofline is not None)), WIDTH)
    if warning := image_generation_warning(source):
        say(warning)


def _show_priced(
    model: str, priced: PricedTraceFlags, lora: Sequence[str] | None, running: list[str], as_json: bool
) -> None:
    """Price a request and show the result.

    Args:
        model: The model.
        priced: The pricing options.
        lora: The adapters.
        running: The given options that only apply to a model that runs, which are refused.
        as_json: Whether to print JSON.

    Raises:
        ValueError: If such an option was given.
    """
    if running:
        raise ValueError(f"--priced runs no model, but {running[0]} is for a model that runs; leave it out")
    made = priced.trace(model, lora)
    if as_json:
        print(json.dumps(priced_json(made)))
    else:
        show(priced_document(made), PRICED_WIDTH)
