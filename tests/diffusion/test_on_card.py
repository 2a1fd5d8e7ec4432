"""Pictures that are drawn on a card are those of the processor, but for rounding."""

import torch

from ridgeline.diffusion.loading import load_pipeline
from ridgeline.diffusion.request import Request
from support.cards import needs_card


@needs_card
def test_pictures_of_a_card_are_the_processors() -> None:
    request = Request("a handwritten three", steps=4, seed=3)
    here = load_pipeline("digits-fast", threads=1).draw(request)
    there = load_pipeline("digits-fast", threads=1, device=torch.device("cuda")).draw(request)
    assert there.device.type == "cpu"
    difference = (there - here).abs()  # of -1 to 1, by a denoiser in bf16
    assert difference.max() < 0.15
    assert difference.mean() < 0.005
