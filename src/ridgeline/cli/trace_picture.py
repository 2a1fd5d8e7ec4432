"""`ridgeline trace` of a pipeline: one step of a picture, priced beside measured."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ridgeline.cli.options import device_named
from ridgeline.cli.terminal import loading_bar, say, status
from ridgeline.cli.trace_options import Files, chosen_layer
from ridgeline.diffusion.geometry import Size
from ridgeline.diffusion.loading import load_pipeline
from ridgeline.diffusion.request import Request
from ridgeline.document.svg import svg
from ridgeline.document.terminal import show
from ridgeline.files import check_writable, write_whole
from ridgeline.trace.anatomy import layer_numbers
from ridgeline.trace.moment import moment_of
from ridgeline.trace.picture import trace_picture
from ridgeline.trace.pull import pull_of
from ridgeline.trace.views.export import to_csv
from ridgeline.trace.views.looks import looks
from ridgeline.trace.views.perfetto import steps_perfetto
from ridgeline.trace.views.picture import picture_json, picture_story
from ridgeline.trace.views.roofline import ledger_roofline
from ridgeline.trace.views.story import WIDTH, Shown
from ridgeline.trace.words import word_attention


def _picture(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Of a pipeline that draws pictures", **more)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The picture that is traced; its seed is that of sampling."""

    steps: Annotated[int | None, _picture("How many; by default as the pipeline says.")] = None
    step: Annotated[int, _picture("Which of them is traced; those before it run as they are.")] = 1
    guidance: Annotated[float | None, _picture("How strongly the prompt is followed; 2 passes a step.")] = None
    negative: Annotated[str | None, _picture("What is not to be seen.", metavar="TEXT")] = None
    pull: Annotated[bool, _picture("What guidance pulls: the difference of the step's two passes.")] = False
    picture: Annotated[Path | None, _picture("An .svg of what --attention and --pull show.", metavar="FILE")] = None
    size: Annotated[str | None, _picture("WIDTHxHEIGHT in pixels, one of the pipeline's.", metavar="WxH")] = None
    frames: Annotated[int | None, _picture("Of a clip, 4k + 1; by default as the pipeline says.")] = None

    def request(self, prompt: str, seed: int | None) -> Request:
        """What is drawn. Raises ValueError."""
        size = None if self.size is None else Size.parse(self.size)
        return Request(prompt, self.negative, size, self.steps, self.guidance, seed, frames=self.frames)

    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{each.name}" for each in dataclasses.fields(self) if getattr(self, each.name) != each.default]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a trace of a picture is asked for beside the picture."""

    device: str
    layer: str | None
    attention: bool
    repeats: int | None
    threads: int | None
    files: Files
    as_json: bool


def refuse_of_texts(model: str, given: Iterable[str]) -> None:
    """Raises ValueError for an option that only what writes text has."""
    for name in given:
        raise ValueError(f"{model} draws pictures, and {name} is of models that write text; leave it out")


def refuse_of_pictures(model: str, given: Iterable[str]) -> None:
    """Raises ValueError for an option that only what draws pictures has."""
    for name in given:
        raise ValueError(f"{model} writes text, and {name} is of pipelines that draw pictures; leave it out")


def _check_picture(drawing: Drawing, asked: Asked) -> None:
    """Raises ValueError for a file that nothing would be drawn into, or that cannot be written."""
    path = drawing.picture
    if path is None:
        return
    if not (asked.attention or drawing.pull):
        raise ValueError("--picture draws what --attention and --pull show; give one of them, or leave it out")
    if path.suffix != ".svg":
        raise ValueError(f"--picture is {path}; name an .svg file")
    check_writable(path)


def show_picture(model: str, request: Request, drawing: Drawing, asked: Asked) -> None:
    """Trace a picture and show it. Raises ValueError."""
    _check_picture(drawing, asked)
    with loading_bar(model) as progress:
        pipeline = load_pipeline(model, threads=asked.threads, progress=progress)
    layer = chosen_layer(asked.layer, 1 + max(layer_numbers(pipeline.denoiser).values()))
    plan = pipeline.plan(request)
    with status("drawing"):
        moment = moment_of(pipeline, plan, drawing.step)
        layer_seen = layer if isinstance(layer, int) else None
        words = word_attention(moment, layer_seen) if asked.attention else None
        pull = pull_of(moment) if drawing.pull else None
    threads = torch.get_num_threads()
    with status("tracing"):
        device = device_named(asked.device, threads)
        ledger = trace_picture(moment, device, repeats=asked.repeats, at_hand=asked.device == "this", threads=threads)
    ledger = dataclasses.replace(ledger, words=words, pull=pull)
    if drawing.picture is not None:
        figure = looks(ledger)
        assert figure is not None, "checked before"
        write_whole(drawing.picture, svg(figure))
        say(f"wrote {drawing.picture}")
    asked.files.write(
        csv=lambda: to_csv(*ledger.stages.values()),
        perfetto=lambda: json.dumps(steps_perfetto(tuple(ledger.stages.values()))),
        roofline=lambda: ledger_roofline(ledger.denoise),
    )
    if asked.as_json:
        print(json.dumps(picture_json(ledger)))
    else:
        show(picture_story(ledger, Shown(layer, asked.files.roofline is not None)), WIDTH)
