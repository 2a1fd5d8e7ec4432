"""`ridgeline plan` for diffusion pipelines: seconds and dollars per image or video, and how to improve them."""

from ridgeline.cli.console import print_json
from ridgeline.cli.flags import build_from, given_flags
from ridgeline.cli.plan_options import PlanFlags, listed_options, sections_of
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.ops.number_formats import FORMATS, format_named
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_plan import PipelineOptions, PipelinePlan
from ridgeline.media.diffusion.pipeline_plan_comparison import compare_pipeline_document, compare_pipeline_json
from ridgeline.media.diffusion.pipeline_plan_page import SECTIONS, pipeline_document, pipeline_json
from ridgeline.media.diffusion.pipeline_price import PipelinePrice
from ridgeline.price.device import Device
from ridgeline.util.document.terminal_renderer import show

_USUAL = "bf16"


def plan_diffusion(source: ModelSource, flags: PlanFlags) -> None:
    """Print the plan of a diffusion pipeline, or its comparison on several devices.

    Raises:
        ValueError: If an option is invalid or does not apply to diffusion pipelines.
    """
    setup, diffusion = flags.setup, flags.diffusion
    _check(source.title, flags)
    parts = build_on_meta(source, format_named(setup.weights or _USUAL).dtype)
    usual, price = PipelineDefaults.of(source, parts), PipelinePrice(parts)
    diffusion.check()
    size = None if diffusion.size is None else Size.parse(diffusion.size)
    request = build_from(diffusion, PipelineOptions, size=size)

    def planned(gpu: Device) -> PipelinePlan:
        placed = (gpu, request, setup.device_count, setup.memory_utilization)
        return PipelinePlan(source.title, price, usual, *placed, eager=diffusion.eager)

    devices = flags.compared_devices()
    if devices is not None:
        quoted, unpriced = flags.quoted_devices(devices)
        plans = [planned(each) for each in quoted if setup.device_count == 1 or each.link is not None]
        if not plans:
            raise ValueError("none of these devices has a link; give --devices 1, or devices with a link")
        shown_there = compare_pipeline_document(plans, unpriced)
        print_json(compare_pipeline_json(plans)) if flags.as_json else show(shown_there)
        return
    sections = sections_of(flags.shown, SECTIONS)
    plan = planned(flags.device)
    print_json(pipeline_json(plan)) if flags.as_json else show(pipeline_document(plan, sections))


def _check(title: str, flags: PlanFlags) -> None:
    """Raise ValueError for options that only apply to text models."""
    names = given_flags(flags.workload)
    names += given_flags(flags.setup, "device", "devices", "weights", "memory_utilization")
    names += ["--lora"] if flags.lora else []
    if names:
        raise ValueError(
            f"{title} generates no text: {listed_options(names)} for language models; give --size, --steps, "
            "--guidance, --frames, --count, --eager or --compile instead"
        )
    plain, weights = [known.name for known in FORMATS], flags.setup.weights
    if weights is not None and weights not in plain:
        raise ValueError(f"--weights is {weights!r}; for a diffusion pipeline it must be one of {', '.join(plain)}")
