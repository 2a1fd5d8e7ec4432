"""Noise: an image is the same in whatever batch, and the one that the reference draws."""

import pytest
import torch
from diffusers.utils.torch_utils import randn_tensor

from ridgeline.media.diffusion.noise import MAX_IMAGES, MAX_SEED, Noise

SHAPE = (4, 1, 5, 3)


def test_each_image_has_a_seed() -> None:
    """Seed + i for image i, at the first draw and at those that samplers ask for later."""
    together = Noise(41, 3, SHAPE)
    alone = [Noise(41 + image, 1, SHAPE) for image in range(3)]
    for _ in range(3):
        drawn = together()
        assert drawn.shape == (3, *SHAPE)
        assert torch.equal(drawn, torch.cat([noise() for noise in alone]))


def test_it_is_the_references() -> None:
    """With a generator for each image."""
    noise, generators = Noise(7, 2, SHAPE), [torch.Generator().manual_seed(7 + image) for image in range(2)]
    for _ in range(2):
        assert torch.equal(noise(), randn_tensor((2, *SHAPE), generator=generators, dtype=torch.float32))


def test_draws_differ() -> None:
    """From image to image, draw to draw, seed to seed."""
    noise = Noise(0, 2, SHAPE)
    (a, b), (c, d), (e, _) = noise(), noise(), Noise(2, 2, SHAPE)()
    drawn = [a, b, c, d, e]
    assert not any(torch.equal(x, y) for i, x in enumerate(drawn) for y in drawn[:i])


def test_it_is_normal() -> None:
    sample = Noise(5, 2, (200_000,))()
    assert sample.mean(1).abs().max() < 0.01
    assert (sample.std(1) - 1).abs().max() < 0.01


@pytest.mark.parametrize("images", [0, -1, MAX_IMAGES + 1, 10**4])
def test_numbers_of_images_that_cannot_be(images: int) -> None:
    with pytest.raises(ValueError, match=f"^the number of images or videos is {images}; give 1 to {MAX_IMAGES}$"):
        Noise(0, images, SHAPE)


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 10**30])
def test_seeds_that_cannot_be(seed: int) -> None:
    with pytest.raises(ValueError, match=rf"^seed is {seed}; it must be an integer from 0 to \d+$"):
        Noise(seed, 1, SHAPE)


def test_the_last_seed() -> None:
    """The most images of the largest seed have one each."""
    assert Noise(MAX_SEED, MAX_IMAGES, (1,))().unique().numel() == MAX_IMAGES
