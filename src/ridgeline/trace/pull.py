"""What guidance pulls: the difference of the two predictions of a step, where in the picture it is, and what of it
comes to be seen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.diffusion.samplers import data_of
from ridgeline.trace.moment import Moment


@dataclass(frozen=True, slots=True)
class Pull:
    """norms: of the prediction with the prompt less that with the negative one, over the channels, for each latent, by
    line. relative: the norm of all of it, of that of the negative prediction. guided, prompt, negative: the pixels
    [channels, lines, columns] that either prediction, and both under guidance, would lead to if they were right."""

    norms: tuple[tuple[float, ...], ...]
    relative: float
    guided: Tensor
    prompt: Tensor
    negative: Tensor


def check_pull(moment: Moment) -> None:
    """Raises ValueError where nothing pulls."""
    if moment.plan.guidance.negative is None:
        raise ValueError("--pull shows how two passes differ, and guidance is off: nothing pulls; give --guidance")


@torch.inference_mode()
def pull_of(moment: Moment) -> Pull:
    """Ask the denoiser as the step does. Raises ValueError as `check_pull`."""
    check_pull(moment)
    both = torch.cat([moment.predict(moment.prepare(texts)) for texts in moment.calls])
    difference, plan = both[0] - both[1], moment.plan
    level = plan.schedule.levels[moment.number - 1]
    shown = torch.cat((moment.guided(both), both))
    guided, prompt, negative = moment.pipeline.decode(data_of(moment.state.x, shown, level, plan.schedule.prediction))
    norms = tuple(tuple(line) for line in difference.float().norm(dim=0).tolist())
    return Pull(norms, float(difference.norm() / both[1].norm()), guided, prompt, negative)
