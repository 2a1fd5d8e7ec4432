"""Guidance: what it computes, how many passes it takes, and what could not act."""

import math

import pytest
import torch
from torch import Tensor

from ridgeline.media.diffusion.guidance import Convention, Guidance, apply_guidance, combine_guidance, make_guidance

TEXTBOOK, ADDED, EMBEDDED, NONE = Convention


def test_what_the_texts_say() -> None:
    """50 steps with guidance are 100 passes; 8 steps save 84 %, 4 steps 92 %, with guidance and without."""
    assert make_guidance(TEXTBOOK, 5.0, None).passes(50) == 100
    for guidance in (make_guidance(TEXTBOOK, 5.0, None), make_guidance(NONE, None, None)):
        assert 1 - guidance.passes(8) / guidance.passes(50) == pytest.approx(0.84)
        assert 1 - guidance.passes(4) / guidance.passes(50) == pytest.approx(0.92)
    # A few-step model that needs no guidance either: Z-Image-Turbo beside Z-Image.
    assert 1 - make_guidance(NONE, None, None).passes(8) / make_guidance(ADDED, 4.0, None).passes(50) == pytest.approx(
        0.92
    )


@pytest.mark.parametrize(
    ("convention", "scale", "negative", "expected"),
    [
        (TEXTBOOK, None, None, Guidance()),
        (TEXTBOOK, 1.0, None, Guidance()),
        (TEXTBOOK, 0.0, None, Guidance()),
        (TEXTBOOK, 1.5, None, Guidance(1.5, "")),
        (TEXTBOOK, 7.5, "blurred", Guidance(7.5, "blurred")),
        (ADDED, 0.0, None, Guidance()),
        (ADDED, 0.5, None, Guidance(1.5, "")),
        (ADDED, 4.0, "blurred", Guidance(5.0, "blurred")),
        (EMBEDDED, 3.5, None, Guidance(embedded=3.5)),
        (EMBEDDED, 0.5, "", Guidance(embedded=0.5)),
        (NONE, None, None, Guidance()),
        (NONE, 0.0, "", Guidance()),
        (NONE, 1.0, None, Guidance()),
    ],
)
def test_what_a_request_asks_for(
    convention: Convention, scale: float | None, negative: str | None, expected: Guidance
) -> None:
    """Scales of all conventions become the textbook's; a second pass only where it counts."""
    guidance = make_guidance(convention, scale, negative)
    assert guidance == expected
    assert guidance.passes(20) == (20 if expected.negative is None else 40)


@pytest.mark.parametrize(
    ("convention", "scale"),
    [(TEXTBOOK, None), (TEXTBOOK, 1.0), (TEXTBOOK, 0.0), (ADDED, None), (ADDED, 0.0), (EMBEDDED, 3.5), (NONE, None)],
)
def test_a_negative_prompt_that_cannot_act(convention: Convention, scale: float | None) -> None:
    """Is refused with the reason, not ignored."""
    with pytest.raises(
        ValueError, match=r"^the negative prompt would have no effect: .*or leave the negative prompt out$"
    ):
        make_guidance(convention, scale, "blurred")


@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -1.0, 100.5, 1e300])
def test_scales_that_are_none(convention: Convention, scale: float) -> None:
    with pytest.raises(ValueError, match=r"^guidance is .*; it must be a number from 0 to 100$"):
        make_guidance(convention, scale, None)


@pytest.mark.parametrize(
    ("convention", "scale", "says"),
    [
        (
            TEXTBOOK,
            0.5,
            "guidance 0.5 would move the image away from the prompt: give more than 1, or 1 for no guidance",
        ),
        (NONE, 3.5, "guidance is 3.5, but this model was distilled to need none: leave guidance out"),
        (EMBEDDED, None, "this model takes the guidance scale as an input: give a guidance scale"),
    ],
)
def test_scales_without_a_meaning(convention: Convention, scale: float | None, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        make_guidance(convention, scale, None)


def test_both_conventions_are_one_formula() -> None:
    """Z-Image's positive + s (positive - negative) with s = w - 1; w = 1 is the prompt alone."""
    positive, negative = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).unbind()
    for s in (0.25, 1.0, 4.0):
        w = make_guidance(ADDED, s, None).scale
        assert torch.allclose(combine_guidance(positive, negative, w), positive + s * (positive - negative), rtol=1e-12)
    assert torch.equal(combine_guidance(positive, torch.zeros(50), 3.0), 3 * positive)
    assert torch.allclose(combine_guidance(positive, negative, 1.0), positive, rtol=1e-12)


def test_the_denoiser_is_asked_as_often_as_said() -> None:
    """With the right text each time, at the same place and time."""
    asked: list[tuple[str, float]] = []

    def denoiser(x: Tensor, t: float, text: str) -> Tensor:
        asked.append((text, t))
        return x * (2.0 if text == "a cat" else 3.0)

    x = torch.ones(4)
    for guidance, negative in ((make_guidance(TEXTBOOK, 4.0, "dog"), "dog"), (make_guidance(NONE, None, None), None)):
        asked.clear()
        predicted = apply_guidance(denoiser, guidance, "a cat", negative)(x, 0.25)
        assert len(asked) == guidance.passes(1)
        assert asked == [("a cat", 0.25), ("dog", 0.25)][: len(asked)]
        assert torch.equal(predicted, x * (3.0 + 4.0 * (2.0 - 3.0) if negative else 2.0))


def test_texts_and_passes_agree() -> None:
    """A second text without a second pass is our own mistake, and so is a pass without a text."""
    with pytest.raises(AssertionError):
        apply_guidance(lambda x, t, text: x, Guidance(), "a cat", "dog")
    with pytest.raises(AssertionError):
        apply_guidance(lambda x, t, text: x, Guidance(2.0, ""), "a cat", None)
    with pytest.raises(AssertionError):
        Guidance(1.0, "dog")
