"""`ridgeline trace` for diffusion pipelines: one denoising step, with predicted and measured times."""

import dataclasses
import json
from dataclasses import dataclass

import torch

from ridgeline.cli.console import loading_bar, say, status
from ridgeline.cli.options import device_at, device_named
from ridgeline.cli.plan_options import named_sections
from ridgeline.cli.trace_options import DiffusionTraceFlags, TraceFileFlags, chosen_layer, clock_of, traced_on
from ridgeline.insight.trace.anatomy import layer_numbers
from ridgeline.insight.trace.denoise_step import run_to_step
from ridgeline.insight.trace.guidance_delta import measure_guidance_delta
from ridgeline.insight.trace.image_trace import trace_image
from ridgeline.insight.trace.views.image_report import STAGES, image_json, image_report
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.patch_attention import draw_panels
from ridgeline.insight.trace.views.perfetto import steps_perfetto
from ridgeline.insight.trace.views.report import WIDTH, ReportOptions
from ridgeline.insight.trace.views.trace_export import to_csv
from ridgeline.insight.trace.word_attention import word_attention
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import show
from ridgeline.util.files import check_writable, write_whole


@dataclass(frozen=True, slots=True)
class DiffusionTraceOptions:
    """The options of a diffusion trace that do not describe the image itself."""

    device: str
    layer: str | None
    attention: bool
    repeats: int | None
    threads: int | None
    files: TraceFileFlags
    as_json: bool


def _check_image(diffusion: DiffusionTraceFlags, trace_options: DiffusionTraceOptions) -> None:
    """Raise ValueError for a chart file that would be empty or cannot be written."""
    path = diffusion.svg
    if path is None:
        return
    if not (trace_options.attention or diffusion.pull):
        raise ValueError("--svg needs --attention or --pull, whose result it draws; give one of them, or leave it out")
    if path.suffix != ".svg":
        raise ValueError(f"--svg is {path}; name an .svg file")
    check_writable(path)


def show_diffusion_trace(
    model: str, prompt: str, seed: int | None, diffusion: DiffusionTraceFlags, trace_options: DiffusionTraceOptions
) -> None:
    """Trace the generation of an image or video and show the trace.

    Args:
        model: The pipeline.
        prompt: The prompt.
        seed: The seed; None for a random one.
        diffusion: The options for the image or video.
        trace_options: The further options.

    Raises:
        ValueError: If an option is invalid.
    """
    size = None if diffusion.size is None else Size.parse(diffusion.size)
    request = DiffusionRequest(
        prompt, diffusion.negative, size, diffusion.steps, diffusion.guidance, seed,
        frames=diffusion.frames, second_guidance=diffusion.second_guidance,
    )  # fmt: skip
    _check_image(diffusion, trace_options)
    sections = named_sections(diffusion.section, STAGES)
    place = traced_on(trace_options.device)
    if place.type != "cpu" and (trace_options.attention or diffusion.pull):
        looks_in = "--attention" if trace_options.attention else "--pull"
        raise ValueError(f"{looks_in} works only on the CPU; leave out {looks_in} or --device {trace_options.device}")
    with loading_bar(model) as progress:
        pipeline = load_pipeline(model, threads=trace_options.threads, progress=progress, device=place)
    layer = chosen_layer(trace_options.layer, 1 + max(layer_numbers(pipeline.denoiser).values()))
    plan = pipeline.plan(request)
    with status("generating"):
        moment = run_to_step(pipeline, plan, diffusion.step)
        layer_seen = layer if isinstance(layer, int) else None
        words = word_attention(moment, layer_seen) if trace_options.attention else None
        pull = measure_guidance_delta(moment) if diffusion.pull else None
    threads = torch.get_num_threads()
    with status("tracing"):
        device = device_named(trace_options.device, threads) if place.type == "cpu" else device_at(place)
        at_hand = trace_options.device == "this" or place.type != "cpu"
        ledger = trace_image(
            moment, device, repeats=trace_options.repeats, at_hand=at_hand, threads=threads, clock=clock_of(place)
        )
    ledger = dataclasses.replace(ledger, words=words, guidance_delta=pull)
    if diffusion.svg is not None:
        figure = draw_panels(ledger)
        assert figure is not None, "an earlier check refuses this"
        write_whole(diffusion.svg, svg(figure))
        say(f"wrote {diffusion.svg}")
    trace_options.files.write(
        csv=lambda: to_csv(*ledger.stages.values()),
        perfetto=lambda: json.dumps(steps_perfetto(tuple(ledger.stages.values()))),
        roofline=lambda: ledger_roofline(ledger.denoise),
    )
    if trace_options.as_json:
        print(json.dumps(image_json(ledger)))
    else:
        sections = tuple(ledger.stages) if diffusion.full else sections
        show(image_report(ledger, ReportOptions(layer, trace_options.files.roofline is not None), sections), WIDTH)
