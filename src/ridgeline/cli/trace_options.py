"""The options of all traces for layers and files, and those of diffusion pipelines.

The latter are always declared, whatever kind of model is traced.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

from ridgeline.cli.console import say
from ridgeline.cli.diffusion_options import SECOND_GUIDANCE
from ridgeline.engine.placement import device_named as placed
from ridgeline.insight.trace.gpu_measurement import gpu_clock
from ridgeline.insight.trace.timeline import Clock
from ridgeline.util.document.elements import Figure
from ridgeline.util.document.svg import svg
from ridgeline.util.files import check_apart, check_writable, write_whole


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


def _file(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel="Files", metavar="FILE")


@dataclass(frozen=True, slots=True)
class TraceFileFlags:
    """The options for the files that a trace writes."""

    csv: Annotated[Path | None, _file("--csv", "Write a line for each op and step.")] = None
    perfetto: Annotated[Path | None, _file("--perfetto", "Write a trace for ui.perfetto.dev or chrome://tracing.")] = (
        None
    )
    roofline: Annotated[
        Path | None,
        _file(
            "--roofline",
            "Write an .svg of every op class under the roofline, also drawn in the terminal; - draws in the "
            "terminal only.",
        ),
    ] = None

    def check(self) -> None:
        """Raise ValueError, before anything is measured, for a file that could not be written."""
        if self.roofline is not None and str(self.roofline) != "-" and self.roofline.suffix != ".svg":
            raise ValueError(
                f"--roofline is {self.roofline}; name an .svg file (not .png, which would need another library), or -"
            )
        for option, path in (("--csv", self.csv), ("--perfetto", self.perfetto)):
            if str(path) == "-":
                raise ValueError(f"{option} is -; name a file, or /dev/stdout for standard output")
        paths = self._paths()
        for path in paths.values():
            check_writable(path)
        check_apart(paths)

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
        for option, path in self._paths().items():
            write_whole(path, contents[option]())
            say(f"wrote {path}")

    def _paths(self) -> dict[str, Path]:
        """Return the paths of the files to write, by option; `-` is not a file."""
        named = {"--csv": self.csv, "--perfetto": self.perfetto, "--roofline": self.roofline}
        return {option: path for option, path in named.items() if path is not None and str(path) != "-"}


def _drawn(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Diffusion", **more)


@dataclass(frozen=True, slots=True)
class DiffusionTraceFlags:
    """The options for the traced image or video. Its seed is a sampling option."""

    steps: Annotated[int | None, _drawn("The number of denoising steps; by default what the pipeline says.")] = None
    step: Annotated[int, _drawn("The step to trace; the steps before it run untraced.")] = 1
    guidance: Annotated[
        float | None, _drawn("The guidance scale: how strongly the prompt is followed; 2 passes per step.")
    ] = None
    second_guidance: Annotated[float | None, _drawn(SECOND_GUIDANCE)] = None
    negative: Annotated[str | None, _drawn("A description of what to avoid.", metavar="TEXT")] = None
    pull: Annotated[bool, _drawn("Show the effect of guidance: the difference of the step's two passes.")] = False
    svg: Annotated[Path | None, _drawn("Write an .svg with what --attention and --pull show.", metavar="FILE")] = None
    size: Annotated[str | None, _drawn("WIDTHxHEIGHT in pixels, one of the pipeline's sizes.", metavar="WxH")] = None
    frames: Annotated[int | None, _drawn("The number of frames of a video; by default what the pipeline says.")] = None

    full: Annotated[bool, _drawn("Show every stage op by op, after the summary.", "--full")] = False
    section: Annotated[
        list[str] | None, _drawn("Show only these stages, op by op, like denoise,decode; repeatable.")
    ] = None


def refuse_text_options(model: str, given: Iterable[str]) -> None:
    """Raise ValueError for options that only apply to text models."""
    for name in given:
        raise ValueError(f"{model} generates images, but {name} is for models that generate text; leave it out")


def refuse_image_options(model: str, given: Iterable[str]) -> None:
    """Raise ValueError for options that only apply to diffusion pipelines."""
    for name in given:
        raise ValueError(f"{model} generates text, but {name} is for diffusion pipelines; leave it out")
