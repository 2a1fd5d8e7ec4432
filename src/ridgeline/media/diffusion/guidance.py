"""Guidance: how strongly a picture follows its prompt, and how often the denoiser is asked for it.

Classifier-free guidance (arXiv:2207.12598) asks the denoiser twice a step, with the prompt and with another one, empty
or negative, and goes past the first away from the second:

    velocity = negative + w * (positive - negative)

w = 1 is the prompt alone, and one pass is saved; below 1 it would be a step towards the negative prompt. n steps with
guidance are 2n passes. Some models were distilled to need no second pass: they have w as an input (embedded), or none.
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
Pass = Callable[[Tensor, float, Text], Tensor]
"""A denoiser: (latents, t, text) -> prediction; t from 1 (noise) to 0 (data)."""


class Convention(Enum):
    """How a model's pipeline states the scale of its guidance."""

    TEXTBOOK = "w, which acts above 1"
    ADDED = "s = w - 1, which acts above 0 (Z-Image)"
    EMBEDDED = "an input of the denoiser, in one pass (FLUX.1-dev)"
    NONE = "none: distilled without it (FLUX.1-schnell)"


@dataclass(frozen=True, slots=True)
class Guidance:
    """What a request's guidance asks for.

    Args:
        scale: the textbook's w; 1 where there is no second pass.
        negative: the text of the second pass; None where there is none.
        embedded: what the denoiser is given as its guidance input; None where it has none.
    """

    scale: float = 1.0
    negative: str | None = None
    embedded: float | None = None

    def __post_init__(self) -> None:
        assert (self.scale > 1) == (self.negative is not None), "a second pass is asked for if it counts"

    def passes(self, steps: int) -> int:
        """How often the denoiser is asked in so many steps; of the text encoder's texts there are passes(1)."""
        return steps if self.negative is None else 2 * steps


def guidance_of(convention: Convention, scale: float | None, negative: str | None) -> Guidance:
    """The guidance that a request asks for.

    Args:
        convention: the model's.
        scale: in the model's convention; None for none.
        negative: the negative prompt; None where the request has none, and guidance takes the empty text.

    Raises:
        ValueError: a scale that is no number, out of bounds or without a meaning to the model; a negative prompt that
            could not act.
    """
    if scale is not None and not (math.isfinite(scale) and 0 <= scale <= MAX_SCALE):
        raise ValueError(f"guidance {scale}: it must be a number from 0 to {MAX_SCALE:g}")
    if convention is Convention.EMBEDDED:
        _refuse_negative(negative, "this model takes guidance as an input, in one pass; choose one that does not")
        if scale is None:
            raise ValueError("this model takes guidance as an input: give it a scale")
        return Guidance(embedded=scale)
    if convention is Convention.NONE:
        _refuse_negative(negative, "this model was distilled to need no guidance; choose one that was not")
        if scale not in (None, 0, 1):
            raise ValueError(f"guidance {scale:g}: this model was distilled to need none; leave it out")
        return Guidance()
    least = 1 if convention is Convention.TEXTBOOK else 0  # where it begins to act
    w = 1.0 if scale is None else scale + 1 - least
    if 0 < w < 1:
        raise ValueError(f"guidance {scale:g} would lead away from the prompt: give more than 1, or 1 for none")
    if w <= 1:
        off = "off" if scale is None else f"off at {scale:g}"
        _refuse_negative(negative, f"guidance is {off}; give a scale above {least}")
        return Guidance()
    return Guidance(w, negative or "")


def _refuse_negative(negative: str | None, reason: str) -> None:
    if negative:
        raise ValueError(f"the negative prompt could not act and would be ignored: {reason}, or no negative prompt")


def guided(positive: Tensor, negative: Tensor, scale: float) -> Tensor:
    """Both predictions of a step in one: from the negative one through the positive one, `scale` times as far."""
    return negative + scale * (positive - negative)


def guide(
    denoiser: Pass[Text], guidance: Guidance, positive: Text, negative: Text | None
) -> Callable[[Tensor, float], Tensor]:
    """The denoiser with its texts and its guidance: (latents, t) -> prediction, in one pass or in two.

    positive, negative: the encoded texts; negative is None just where `guidance` has none.
    """
    if negative is None:
        assert guidance.negative is None, "guidance with a second pass needs its text"
        return lambda x, t: denoiser(x, t, positive)
    assert guidance.negative is not None, "a text that no pass would read"
    return lambda x, t: guided(denoiser(x, t, positive), denoiser(x, t, negative), guidance.scale)


def guide_paired(denoiser: Pass[Text], guidance: Guidance, both: Text) -> Callable[[Tensor, float], Tensor]:
    """As `guide` with a second pass, both in one call of the denoiser, which is shown the latents twice.

    both: the encoded texts of such a call: the positive one of each picture, then the negative ones.
    """
    assert guidance.negative is not None, "one pass is no pair"

    def paired(x: Tensor, t: float) -> Tensor:
        positive, negative = denoiser(torch.cat((x, x)), t, both).chunk(2)
        return guided(positive, negative, guidance.scale)

    return paired
