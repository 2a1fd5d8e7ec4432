"""Strides: a request taken apart into what can be done between two looks at who else waits.

Its texts are encoded, then each step of the denoiser is one stride, each picture's decode another, and each part of a
clip's. Somebody else's stride may run between any two of them; whoever stops asking for the next has cancelled the
rest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.pipeline import DenoiseOutput, Pipeline

StageName = Literal["encode", "denoise", "decode"]


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What has just been done.

    stage: of the request. step: what the denoiser gave, of a stride that denoised. image: which picture or clip was
    decoded, counted from 0. pixels: of the picture, fp32 [channels, lines, columns] about -1 to 1; of a clip its next
    frames [channels, frames, lines, columns]. whole: whether all of that picture or clip is decoded now.
    """

    stage: StageName
    step: DenoiseOutput | None = None
    image: int | None = None
    pixels: Tensor | None = None
    whole: bool = False


def run_work_units(pipeline: Pipeline, plan: DiffusionPlan, tiling: Tiling | None = None) -> Iterator[WorkUnit]:
    """Draw a plan, stride by stride. Each picture is decoded as soon as its latents are finished, so that the first is
    there early. Pixels are those of `Pipeline.draw`, bit for bit. tiling: of the decode. Raises ValueError as
    `Pipeline.decode`.
    """
    texts = pipeline.encode(plan)
    yield WorkUnit("encode")
    for step in pipeline.denoise(plan, texts):
        yield WorkUnit("denoise", step)
        if step.last:
            for image, latents_CHW in zip(step.images, step.latents, strict=True):
                for part, pixels in enumerate(pipeline.decode_parts(latents_CHW, tiling), 1):
                    yield WorkUnit("decode", image=image, pixels=pixels, whole=part == plan.geometry.parts)


def count_by_stage(plan: DiffusionPlan) -> dict[StageName, int]:
    """How many strides of each stage a plan has."""
    return {"encode": 1, "denoise": plan.steps, "decode": plan.request.images * plan.geometry.parts}


def count_work_units(plan: DiffusionPlan) -> int:
    """How many strides a plan has."""
    return sum(count_by_stage(plan).values())


def seconds_per_unit(plan: DiffusionPlan, seconds: Mapping[str, float]) -> dict[StageName, float]:
    """Seconds of one stride of each stage. seconds: of each stage in all."""
    return {stage: seconds[stage] / many for stage, many in count_by_stage(plan).items()}
