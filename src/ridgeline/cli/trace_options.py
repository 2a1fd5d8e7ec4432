"""The options of `ridgeline trace`, and their conversion into the tracers' input.

Those of diffusion pipelines are always declared, whatever kind of model is traced.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from ridgeline.cli import options
from ridgeline.cli.class_status import class_status
from ridgeline.cli.console import say
from ridgeline.cli.flags import given_flags, option, panel
from ridgeline.cli.options import SECOND_GUIDANCE, device_named, parse_tokens
from ridgeline.cli.plan_options import add_adapters_of
from ridgeline.cli.text_request import BasicSamplingFlags
from ridgeline.core.checkpoint.embedding_config import read_embedding, with_pooling
from ridgeline.core.checkpoint.source import catalogue_name, open_source
from ridgeline.core.models.rope_override import offer_longer_context
from ridgeline.engine.placement import device_named as placed
from ridgeline.insight.trace.gpu_measurement import gpu_clock
from ridgeline.insight.trace.priced_trace import PricedTrace, priced_trace
from ridgeline.insight.trace.request_trace import TraceOptions
from ridgeline.insight.trace.timeline import Clock
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.deployment_plan import check_devices
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.util.document.elements import Figure
from ridgeline.util.document.svg import svg
from ridgeline.util.files import check_outputs, write_whole

_file = partial(panel("Files"), metavar="FILE")
_drawn, _look = panel("Diffusion"), panel("Inside the model")
_MAX_TEXT = 4 << 20


def chosen_layer(layer: str | None, layers: int) -> int | str | None:
    """Return the layer that --layer selects: a number, `all`, or None.

    Raises:
        ValueError: If the model has no such layer.
    """
    if layer is None or layer == "all":
        return layer
    if not layer.isdecimal() or int(layer) >= layers:
        raise ValueError(f"--layer is {layer!r}, but the model has layers 0 to {layers - 1}; give one of these, or all")
    return int(layer)


def traced_on(device: str) -> torch.device:
    """Return the torch device on which a traced model runs.

    This is a GPU for cuda and cuda:N, otherwise the CPU, whatever device the request is priced on.

    Raises:
        ValueError: If the machine has no such GPU.
    """
    if device.partition(":")[0] != "cuda":
        return torch.device("cpu")
    place = placed(device)
    torch.cuda.set_device(place)  # this thread launches Triton kernels and records events
    return place


def clock_of(place: torch.device) -> Clock:
    """Return a clock that waits until a device has finished all queued work before it reads the time."""
    return perf_counter if place.type == "cpu" else gpu_clock(perf_counter)


@dataclass(frozen=True, slots=True)
class TraceFileFlags:
    """The options for the files that a trace writes."""

    csv: Path | None = _file("Write a line for each op and step.")
    perfetto: Path | None = _file("Write a trace for ui.perfetto.dev or chrome://tracing.")
    roofline: Path | None = _file(
        "Write an .svg of every op class under the roofline, also drawn in the terminal; - draws in the terminal only."
    )

    def check(self) -> None:
        """Raise ValueError, before anything is measured, for a file that could not be written."""
        if self.roofline is not None and str(self.roofline) != "-" and self.roofline.suffix != ".svg":
            raise ValueError(
                f"--roofline is {self.roofline}; name an .svg file (not .png, which would need another library), or -"
            )
        for name, path in (("--csv", self.csv), ("--perfetto", self.perfetto)):
            if str(path) == "-":
                raise ValueError(f"{name} is -; name a file, or /dev/stdout for standard output")
        check_outputs(self._paths(), overwrite=True)

    def write(self, *, csv: Callable[[], str], perfetto: Callable[[], str], roofline: Callable[[], Figure]) -> None:
        """Write the requested files and report them on stderr.

        Raises:
            ValueError: If a file cannot be written.
        """
        contents: dict[str, Callable[[], str]] = {
            "--csv": csv,
            "--perfetto": perfetto,
            "--roofline": lambda: svg(roofline()),
        }
        for name, path in self._paths().items():
            write_whole(path, contents[name]())
            say(f"wrote {path}")

    def _paths(self) -> dict[str, Path]:
        """Return the paths of the files to write, by option; `-` is not a file."""
        named = {"--csv": self.csv, "--perfetto": self.perfetto, "--roofline": self.roofline}
        return {option: path for option, path in named.items() if path is not None and str(path) != "-"}


@dataclass(frozen=True, slots=True)
class DiffusionTraceFlags:
    """The options for the traced image or video. Its seed is a sampling option."""

    steps: int | None = _drawn("The number of denoising steps; by default what the pipeline says.")
    step: int = _drawn("The denoising step to trace, counted from 1; the steps before it run untraced.", default=1)
    guidance: float | None = _drawn("The guidance scale: how strongly the prompt is followed; 2 passes per step.")
    second_guidance: float | None = _drawn(SECOND_GUIDANCE)
    negative: str | None = _drawn("A description of what to avoid.", metavar="TEXT")
    pull: bool = _drawn(
        "Show the effect of guidance: the difference of the step's two passes.", "--pull/--no-pull", default=False
    )
    svg: Path | None = _drawn("Write an .svg with what --attention and --pull show.", metavar="FILE")
    size: str | None = _drawn("WIDTHxHEIGHT in pixels, one of the pipeline's sizes.", metavar="WxH")
    frames: int | None = _drawn("The number of frames of a video; by default what the pipeline says.")

    full: bool = _drawn("Show every stage op by op, after the summary.", default=False)
    section: list[str] | None = _drawn("Show only these stages, op by op, like denoise,decode; repeatable.")


@dataclass(frozen=True, slots=True)
class InspectionFlags:
    """The options for the parts of a model's internals that a trace shows."""

    layer: str | None = _look("Show the ops of one layer, counted from 0, or of `all`; by default, sum the layers.")
    attention: bool = _look(
        "Show the attention weights of a token, by head (of --layer). For an encoder-decoder: the cross-attention "
        "grid, with a row per token written and a column per token read.",
        default=False,
    )
    lens: bool = _look("Show what each layer would predict (logit lens).", default=False)
    memory: bool = _look(
        "Show the feed-forward neurons with the highest activations, and the tokens they promote.", default=False
    )
    experts: bool = _look("Show the experts that the tokens were routed to (mixtures of experts).", default=False)
    source: list[str] | None = _look("With --experts: a text to compare, as NAME=FILE; repeatable.")
    position: int | None = _look("The token of the prompt to look at, counted from 0; the last by default.")

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
class TraceRunFlags:
    """The options for running the model that is traced."""

    raw: options.Raw = False
    system: options.System = None
    dummy_weights: options.DummyWeights = False
    lora: options.PricedLora = None
    repeats: int | None = option(
        "The number of measurements of each step; by default as many as fit into some seconds."
    )
    threads: options.Threads = None
    tensor_parallel: options.TensorParallel = 1


@dataclass(frozen=True, slots=True)
class PricedTraceFlags:
    """The options for pricing a request on a device instead of running it."""

    priced: str | None = option(
        "Predict the time of every op on this device: nothing runs, no weights and no prompt are needed; --input gives "
        "the prompt's length.",
        rich_help_panel="Prediction only",
        metavar="DEVICE",
    )
    input: options.Input = "1k"
    batch: options.Batch = 1
    devices: options.Devices = 1
    weights: options.Weights = None
    kv: options.KV = None
    rope: options.Rope = None

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
        source = open_source(catalogue_name(model) or model).with_rope(self.rope)
        models = ModelCache(
            source.config, add_adapters_of(source, lora), partial(with_pooling, embedding=read_embedding(source))
        )
        with class_status(source.config):
            case = models.scenario(setup)
            length = parse_tokens(self.input, "--input")
            longer = offer_longer_context(source.config, length + 1) if length >= case.model.context else ""
            return priced_trace(model, case, length, self.batch, longer)

    def check(self) -> None:
        """Raise ValueError for options that only apply to a priced request.

        The weight and KV formats also apply to a request that runs.
        """
        given = given_flags(self, "weights", "kv")
        if given:
            raise ValueError(
                f"{given[0]} applies only to a prediction without a run; give --priced DEVICE, or leave it out"
            )


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """All options of `ridgeline trace` but the device."""

    look: InspectionFlags
    sampling: BasicSamplingFlags
    diffusion: DiffusionTraceFlags
    running: TraceRunFlags
    files: TraceFileFlags
    priced: PricedTraceFlags
    summary: bool = option(
        "Show only where the time of one token went: a few lines, predicted next to measured.", default=False
    )
    as_json: options.Json = False

    def check_summary(self) -> None:
        """Raise ValueError for options whose output --summary would not show."""
        drawn = ["--roofline -"] * (str(self.files.roofline) == "-")
        for name in (*given_flags(self.look), *drawn, *["--json"] * self.as_json):
            raise ValueError(f"--summary shows only where the time of a token went; leave out --summary or {name}")


def refuse_text_options(model: str, given: Iterable[str]) -> None:
    """Raise ValueError for options that only apply to text models."""
    for name in given:
        raise ValueError(f"{model} generates images, but {name} is for models that generate text; leave it out")


def refuse_image_options(model: str, given: Iterable[str]) -> None:
    """Raise ValueError for options that only apply to diffusion pipelines."""
    for name in given:
        raise ValueError(f"{model} generates text, but {name} is for diffusion pipelines; leave it out")
