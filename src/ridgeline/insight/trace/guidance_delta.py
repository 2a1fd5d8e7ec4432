"""What guidance pulls: the difference of the two predictions of a step, where in the picture it is, and what of it
comes to be seen.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.insight.trace.denoise_step import DenoiseStep
from ridgeline.media.diffusion.samplers import data_of


@dataclass(frozen=True, slots=True)
class GuidanceDelta:
    """How the two predictions of a step differ.

    norms: for each latent the norm, over the channels, of the prediction with the prompt less the one with the negative
    prompt; by line, of a clip as a sheet of frames. relative: the norm of the whole difference, as a share of that of
    the negative prediction. guided, prompt, negative: pixels [channels, lines, columns] to which both predictions under
    guidance, and either alone, would lead if they were right; of a clip a sheet with a frame for each of its latents.
    """

    norms: tuple[tuple[float, ...], ...]
    relative: float
    guided: Tensor
    prompt: Tensor
    negative: Tensor


def check_guidance(moment: DenoiseStep) -> None:
    """Raises ValueError where nothing pulls."""
    if moment.guidance.negative is None:
        raise ValueError("--pull shows how two passes differ, and guidance is off: nothing pulls; give --guidance")


@torch.inference_mode()
def measure_guidance_delta(moment: DenoiseStep) -> GuidanceDelta:
    """Ask the denoiser as the step does. Raises ValueError as `check_guidance`."""
    check_guidance(moment)
    both = torch.cat([moment.predict(moment.prepare(texts)) for texts in moment.calls])
    difference, plan = both[0] - both[1], moment.plan
    level = plan.schedule.levels[moment.number - 1]
    shown = torch.cat((moment.guided(both), both))
    pixels = moment.pipeline.decode(data_of(moment.state.x, shown, level, plan.schedule.prediction))
    guided, prompt, negative = (_shown(each, difference.shape[1]) for each in pixels)
    norms = by_line(difference.float().norm(dim=0))
    return GuidanceDelta(norms, float(difference.norm() / both[1].norm()), guided, prompt, negative)


def by_line(values: Tensor) -> tuple[tuple[float, ...], ...]:
    """A picture's values [lines, columns] by line; a clip's [frames, lines, columns] as a sheet, by line."""
    sheet_HW = values if values.dim() == 2 else contact_sheet(values)
    return tuple(tuple(line) for line in sheet_HW.tolist())


def contact_sheet(frames_THW: Tensor) -> Tensor:
    """Frames [T, ..., H, W] in rows, so many beside each other that the sheet is about as wide as high; what is left of
    the last row is 0.
    """
    count, (height, width) = len(frames_THW), frames_THW.shape[-2:]
    beside = min(count, max(1, round(math.sqrt(count * height / width))))
    blank = frames_THW.new_zeros(-count % beside, *frames_THW.shape[1:])
    rows = torch.split(torch.cat((frames_THW, blank)), beside)
    return torch.cat([torch.cat(list(row), dim=-1) for row in rows], dim=-2)


def _shown(pixels: Tensor, frames: int) -> Tensor:
    """Pixels [C, H, W], or of a clip [C, frames, H, W] one frame for each of its latents, the last of those that it
    stands for, as a sheet.
    """
    if pixels.dim() == 3:
        return pixels
    each = (pixels.shape[1] - 1) // max(1, frames - 1) or 1
    return contact_sheet(pixels[:, ::each].transpose(0, 1))
