"""Work units: a request split into parts, between which a server may run parts of other requests.

Encoding the texts is one unit, each denoising step is one, and so is the decode of each image or of each part of a
video. Units of other requests may run between any two of them. A caller cancels the rest of a request by not requesting
the next unit.
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
    """A unit of a diffusion request that has just finished."""

    stage: StageName
    """The pipeline stage of the unit."""
    step: DenoiseOutput | None = None
    """The result of the denoising step that the unit ran (latents, preview guess); None for other units."""
    image: int | None = None
    """The index of the decoded image or video in the request, counted from 0."""
    pixels: Tensor | None = None
    """The pixels of an image, fp32 [channels, rows, columns] from about -1 to 1.

    For a video these are its next frames [channels, frames, rows, columns].
    """
    whole: bool = False
    """Whether the unit completes the decode of its image or video."""


def run_work_units(pipeline: Pipeline, plan: DiffusionPlan, tiling: Tiling | None = None) -> Iterator[WorkUnit]:
    """Run a diffusion plan and yield each unit of work: text encoding, denoising steps, and image decodes.

    Each image is decoded as soon as its latents are finished, so the first image is ready early. The pixels equal those
    of `Pipeline.draw` bit for bit.

    Args:
        pipeline: Pipeline to run.
        plan: Plan of the request.
        tiling: Tiling of the decode.

    Raises:
        ValueError: If the latents cannot be decoded; see `Pipeline.decode`.
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
    """Return the number of work units of each stage in a plan."""
    return {"encode": 1, "denoise": plan.steps, "decode": plan.request.images * plan.geometry.parts}


def count_work_units(plan: DiffusionPlan) -> int:
    """Return the number of work units in a plan."""
    return sum(count_by_stage(plan).values())


def seconds_per_unit(plan: DiffusionPlan, seconds: Mapping[str, float]) -> dict[StageName, float]:
    """Return the seconds of one work unit of each stage, from the total seconds of each stage."""
    return {stage: seconds[stage] / many for stage, many in count_by_stage(plan).items()}
