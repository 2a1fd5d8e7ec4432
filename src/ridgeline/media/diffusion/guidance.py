"""Guidance: how strongly an image follows its prompt, and the number of denoiser passes that this takes.

Classifier-free guidance (arXiv:2207.12598) runs the denoiser twice per step, with the prompt and with an empty or
negative prompt. It extrapolates from the second prediction through the first:

    prediction = negative + w * (positive - negative)

w = 1 uses the prompt alone and saves a pass; w below 1 would be a step towards the negative prompt. n steps with
guidance are 2n passes. Some models were distilled to need no second pass: they take w as an input (embedded guidance)
or have no guidance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor

MAX_SCALE = 100.0

Text = TypeVar("Text")
DenoiserPass = Callable[[Tensor, float, Text], Tensor]
"""A denoiser as a function: (latents, t, text) -> prediction; t goes from 1 (noise) to 0 (data)."""


class Convention(Enum):
    """The convention in which a model's pipeline states its guidance scale."""

    TEXTBOOK = "w, effective above 1"
    ADDED = "s = w - 1, effective above 0 (Z-Image)"
    EMBEDDED = "an input of the denoiser, in one pass (FLUX.1-dev)"
    NONE = "none: distilled without it (FLUX.1-schnell)"


@dataclass(frozen=True, slots=True)
class Guidance:
    """The guidance of a diffusion request, independent of the model's convention."""

    scale: float = 1.0
    """The scale w of classifier-free guidance; 1 if there is no second pass."""
    negative: str | None = None
    """The text of the second guidance pass; None if there is none."""
    embedded: float | None = None
    """The guidance input of the denoiser; None if it has none."""

    def __post_init__(self) -> None:
        assert (self.scale > 1) == (self.negative is not None), (
            "a second pass exists if and only if the scale is above 1"
        )

    def passes(self, steps: int) -> int:
        """Return the number of denoiser passes in `steps` steps; `passes(1)` is also the number of texts to encode."""
        return steps if self.negative is None else 2 * steps


def make_guidance(convention: Convention, scale: float | None, negative: str | None) -> Guidance:
    """Return the guidance that a request's scale and negative prompt mean for a model.

    Args:
        convention: Convention of the model.
        scale: Scale in that convention; None for no guidance.
        negative: Negative prompt; None if the request has none, and guidance then uses the empty text.

    Raises:
        ValueError: If the scale is not a number, out of bounds or meaningless for the model, or if the negative prompt
            would have no effect.
    """
    if scale is not None and not (math.isfinite(scale) and 0 <= scale <= MAX_SCALE):
        raise ValueError(f"guidance is {scale}; it must be a number from 0 to {MAX_SCALE:g}")
    if convention is Convention.EMBEDDED:
        _refuse_negative(negative, "this model takes guidance as an input, in one pass: choose another model")
        if scale is None:
            raise ValueError("this model takes the guidance scale as an input: give a guidance scale")
        return Guidance(embedded=scale)
    if convention is Convention.NONE:
        _refuse_negative(negative, "this model was distilled to need no guidance: choose another model")
        if scale not in (None, 0, 1):
            raise ValueError(f"guidance is {scale:g}, but this model was distilled to need none: leave guidance out")
        return Guidance()
    least = 1 if convention is Convention.TEXTBOOK else 0  # guidance acts above this scale
    w = 1.0 if scale is None else scale + 1 - least
    if 0 < w < 1:
        raise ValueError(
            f"guidance {scale:g} would move the image away from the prompt: give more than 1, or 1 for no guidance"
        )
    if w <= 1:
        off = "off" if scale is None else f"off at {scale:g}"
        _refuse_negative(negative, f"guidance is {off}: give a scale above {least}")
        return Guidance()
    return Guidance(w, negative or "")


def _refuse_negative(negative: str | None, reason: str) -> None:
    if negative:
        raise ValueError(f"the negative prompt would have no effect: {reason}, or leave the negative prompt out")


def combine_guidance(positive: Tensor, negative: Tensor, scale: float) -> Tensor:
    """Return the guided prediction: `scale` times the way from the negative prediction to the positive one."""
    return negative + scale * (positive - negative)


def apply_guidance(
    denoiser: DenoiserPass[Text], guidance: Guidance, positive: Text, negative: Text | None
) -> Callable[[Tensor, float], Tensor]:
    """Return the denoiser with its texts and guidance applied: (latents, t) -> prediction, in one pass or two.

    Args:
        denoiser: Denoiser to run.
        guidance: Guidance of the request.
        positive: Encoded prompt.
        negative: Encoded negative prompt; None exactly if `guidance` has none.
    """
    if negative is None:
        assert guidance.negative is None, "guidance with a second pass needs the encoded negative prompt"
        return lambda x, t: denoiser(x, t, positive)
    assert guidance.negative is not None, "there is a negative prompt but no pass that reads it"
    return lambda x, t: combine_guidance(denoiser(x, t, positive), denoiser(x, t, negative), guidance.scale)


def apply_guidance_batched(
    denoiser: DenoiserPass[Text], guidance: Guidance, both: Text
) -> Callable[[Tensor, float], Tensor]:
    """Return the denoiser with guidance whose two passes share one call: the batch contains the latents twice.

    `both` has the encoded texts of such a call: the positive text of each image, then the negative ones.
    """
    assert guidance.negative is not None, "guidance is off, so there is no second pass"

    def paired(x: Tensor, t: float) -> Tensor:
        positive, negative = denoiser(torch.cat((x, x)), t, both).chunk(2)
        return combine_guidance(positive, negative, guidance.scale)

    return paired
