"""The effect of classifier-free guidance in one denoising step, by position in the image and as decoded pixels."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.insight.trace.denoise_step import DenoiseStep
from ridgeline.media.diffusion.samplers import predicted_data
from ridgeline.util.json_data import json_shape


@json_shape("norms", "relative")
@dataclass(frozen=True, slots=True)
class GuidanceDelta:
    """The difference between the conditional and the negative prediction of a denoising step."""

    norms: tuple[tuple[float, ...], ...]
    """The norm over channels of the difference at each latent, by line; a video as a sheet of frames."""
    relative: float
    """The norm of the whole difference relative to that of the negative prediction."""
    guided: Tensor
    """The pixels [channels, lines, columns] that the guided prediction leads to if it is correct.

    For a video, this is a sheet with one frame per latent frame.
    """
    prompt: Tensor
    """The pixels that the prediction with the prompt alone leads to."""
    negative: Tensor
    """The pixels that the prediction with the negative prompt leads to."""


def check_guidance(moment: DenoiseStep) -> None:
    """Check that classifier-free guidance is on in a denoising step.

    Raises:
        ValueError: If guidance is off, so that there is no difference to show.
    """
    if moment.guidance.negative is None:
        raise ValueError("--pull shows how the two guidance passes differ, but guidance is off: give --guidance")


@torch.inference_mode()
def measure_guidance_delta(moment: DenoiseStep) -> GuidanceDelta:
    """Run the denoiser with both texts and return how the predictions differ.

    Raises:
        ValueError: If guidance is off.
    """
    check_guidance(moment)
    both = torch.cat([moment.predict(moment.prepare(texts)) for texts in moment.calls])
    difference, plan = both[0] - both[1], moment.plan
    level = plan.schedule.levels[moment.number - 1]
    shown = torch.cat((moment.guided(both), both))
    pixels = moment.pipeline.decode(predicted_data(moment.state.x, shown, level, plan.schedule.prediction))
    guided, prompt, negative = (_shown(each, difference.shape[1]) for each in pixels)
    norms = by_line(difference.float().norm(dim=0))
    return GuidanceDelta(norms, float(difference.norm() / both[1].norm()), guided, prompt, negative)


def by_line(values: Tensor) -> tuple[tuple[float, ...], ...]:
    """Return the values of an image [lines, columns] as a tuple for each line.

    The frames of a video [frames, lines, columns] are first arranged on one sheet (`contact_sheet`).
    """
    sheet_HW = values if values.dim() == 2 else contact_sheet(values)
    return tuple(tuple(line) for line in sheet_HW.tolist())


def contact_sheet(frames_THW: Tensor) -> Tensor:
    """Arrange frames [T, ..., H, W] in rows of one sheet that is about square, padded with zeros."""
    count, (height, width) = len(frames_THW), frames_THW.shape[-2:]
    beside = min(count, max(1, round(math.sqrt(count * height / width))))
    blank = frames_THW.new_zeros(-count % beside, *frames_THW.shape[1:])
    rows = torch.split(torch.cat((frames_THW, blank)), beside)
    return torch.cat([torch.cat(list(row), dim=-1) for row in rows], dim=-2)


def _shown(pixels: Tensor, frames: int) -> Tensor:
    """Return the pixels of an image [C, H, W]; of a video [C, frames, H, W] a sheet with one frame per latent frame.

    Each latent frame stands for several frames; the sheet shows the last of them.
    """
    if pixels.dim() == 3:
        return pixels
    each = (pixels.shape[1] - 1) // max(1, frames - 1) or 1
    return contact_sheet(pixels[:, ::each].transpose(0, 1))
