"""`ridgeline trace` for diffusion pipelines: one denoising step, with predicted and measured times."""

import dataclasses
import json

import torch

from ridgeline.cli.console import loading_bar, print_json, say, status
from ridgeline.cli.flags import build_from, given_flags
from ridgeline.cli.options import device_at, device_named
from ridgeline.cli.plan_options import named_sections
from ridgeline.cli.trace_options import TraceFlags, chosen_layer, clock_of, refuse_text_options, traced_on
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


def _check(model: str, device: str, place: torch.device, flags: TraceFlags) -> None:
    """Raise ValueError for options that do not apply to diffusion pipelines, or contradict each other or the device."""
    others = [*given_flags(flags.look, "layer", "attention"), *given_flags(flags.sampling, "seed")]
    others += [*given_flags(flags.running, "repeats", "threads"), *given_flags(flags.priced)]
    refuse_text_options(model, others)
    looks = [*["--attention"] * flags.look.attention, *["--pull"] * flags.diffusion.pull]
    path = flags.diffusion.svg
    if path is not None and not looks:
        raise ValueError("--svg needs --attention or --pull, whose result it draws; give one of them, or leave it out")
    if path is not None and path.suffix != ".svg":
        raise ValueError(f"--svg is {path}; name an .svg file")
    if path is not None:
        check_writable(path)
    if place.type != "cpu" and looks:
        raise ValueError(f"{looks[0]} works only on the CPU; leave out {looks[0]} or --device {device}")


def show_diffusion_trace(model: str, prompt: str, device: str, flags: TraceFlags) -> None:
    """Trace the generation of an image or video and show the trace.

    Args:
        model: The pipeline.
        prompt: The prompt.
        device: The device to price passes on, and to run on if it is a GPU of this machine.
        flags: The further options.

    Raises:
        ValueError: If an option is invalid or does not apply to diffusion pipelines.
    """
    look, diffusion, running = flags.look, flags.diffusion, flags.running
    place = traced_on(device)
    _check(model, device, place, flags)
    size = None if diffusion.size is None else Size.parse(diffusion.size)
    request = build_from(diffusion, DiffusionRequest, prompt=prompt, size=size, seed=flags.sampling.seed)
    sections = named_sections(diffusion.section, STAGES)
    with loading_bar(model) as progress:
        pipeline = load_pipeline(model, threads=running.threads, progress=progress, device=place)
    layer = chosen_layer(look.layer, 1 + max(layer_numbers(pipeline.denoiser).values()))
    plan = pipeline.plan(request)
    with status("generating"):
        moment = run_to_step(pipeline, plan, diffusion.step)
        layer_seen = layer if isinstance(layer, int) else None
        words = word_attention(moment, layer_seen) if look.attention else None
        pull = measure_guidance_delta(moment) if diffusion.pull else None
    threads = torch.get_num_threads()
    with status("tracing"):
        priced_on = device_named(device, threads) if place.type == "cpu" else device_at(place)
        at_hand = device == "this" or place.type != "cpu"
        ledger = trace_image(
            moment, priced_on, repeats=running.repeats, at_hand=at_hand, threads=threads, clock=clock_of(place)
        )
    ledger = dataclasses.replace(ledger, words=words, guidance_delta=pull)
    if diffusion.svg is not None:
        figure = draw_panels(ledger)
        assert figure is not None, "an earlier check refuses this"
        write_whole(diffusion.svg, svg(figure))
        say(f"wrote {diffusion.svg}")
    flags.files.write(
        csv=lambda: to_csv(*ledger.stages.values()),
        perfetto=lambda: json.dumps(steps_perfetto(tuple(ledger.stages.values()))),
        roofline=lambda: ledger_roofline(ledger.denoise),
    )
    if flags.as_json:
        print_json(image_json(ledger))
    else:
        sections = tuple(ledger.stages) if diffusion.full else sections
        show(image_report(ledger, ReportOptions(layer, flags.files.roofline is not None), sections), WIDTH)
