"""`ridgeline plan` for diffusion pipelines: seconds and dollars per image or video, and how to improve them."""

import json
from collections.abc import Sequence

from ridgeline.cli.options import device_named
from ridgeline.cli.plan_options import (
    DiffusionFlags,
    DisplayFlags,
    MoneyFlags,
    SetupFlags,
    WorkloadFlags,
    compared_devices,
    given_flags,
    listed_options,
    quoted_devices,
    sections_of,
    with_price,
)
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


def plan_diffusion(
    source: ModelSource,
    setup: SetupFlags,
    workload: WorkloadFlags,
    diffusion: DiffusionFlags,
    money: MoneyFlags,
    shown: DisplayFlags,
    lora: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print the plan of a diffusion pipeline, or its comparison on several devices.

    Raises:
        ValueError: If an option is invalid or does not apply to diffusion pipelines.
    """
    _check(source.title, setup, workload, lora)
    parts = build_on_meta(source, format_named(setup.weights or _USUAL).dtype)
    usual, price = PipelineDefaults.of(source, parts), PipelinePrice(parts)
    given_options = _pipeline_options(diffusion)

    def planned(gpu: Device) -> PipelinePlan:
        return PipelinePlan(
            source.title,
            price,
            usual,
            gpu,
            given_options,
            setup.devices,
            setup.memory_utilization,
            eager=diffusion.eager,
        )

    devices = compared_devices(shown, setup.device)
    if devices is not None:
        named = None if setup.device is None else device_named(setup.device).name
        quoted, unpriced = quoted_devices(devices, money, named)
        plans = [planned(each) for each in quoted if setup.devices == 1 or each.link is not None]
        if not plans:
            raise ValueError("none of these devices has a link; give --devices 1, or devices with a link")
        shown_there = compare_pipeline_document(plans, unpriced)
        print(json.dumps(compare_pipeline_json(plans))) if as_json else show(shown_there)
        return
    assert setup.device is not None
    sections = sections_of(shown, SECTIONS)
    plan = planned(with_price(device_named(setup.device), money))
    print(json.dumps(pipeline_json(plan))) if as_json else show(pipeline_document(plan, sections))


def _pipeline_options(diffusion: DiffusionFlags) -> PipelineOptions:
    diffusion.check()
    size = None if diffusion.size is None else Size.parse(diffusion.size)
    return PipelineOptions(size, diffusion.steps, diffusion.guidance, diffusion.frames, diffusion.count)


def _check(title: str, setup: SetupFlags, workload: WorkloadFlags, lora: Sequence[str] | None) -> None:
    """Raise ValueError for options that only apply to text models."""
    names = given_flags(workload) + given_flags(setup, "device", "devices", "weights", "memory_utilization")
    names += ["--lora"] if lora else []
    if names:
        raise ValueError(
            f"{title} generates no text: {listed_options(names)} for language models; give --size, --steps, "
            "--guidance, --frames, --count, --eager or --compile instead"
        )
    plain = [known.name for known in FORMATS]
    if setup.weights is not None and setup.weights not in plain:
        raise ValueError(
            f"--weights is {setup.weights!r}; for a diffusion pipeline it must be one of {', '.join(plain)}"
        )
