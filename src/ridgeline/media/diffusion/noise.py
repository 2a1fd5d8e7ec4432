"""Noise from seeds. Every image has its own generator, so the batch does not change its noise."""

from collections.abc import Sequence

import torch
from torch import Tensor

_PROCESSOR = torch.device("cpu")
MAX_IMAGES = 100
MAX_SEED = 2**63 - 1 - MAX_IMAGES


class Noise:
    """A source of standard normal noise for the images of one request: fp32 [images, *shape] per call.

    Image i uses its own generator with seed + i, so image k of a request with seed s equals image 0 of a request with
    seed s + k. The noise is generated on the CPU, so that it is the same for every device.
    """

    def __init__(self, seed: int, images: int, shape: Sequence[int], device: torch.device = _PROCESSOR) -> None:
        """Create a seeded noise generator for each image of a request.

        Args:
            seed: Seed of the first image.
            images: Number of images.
            shape: Shape of one image's latents.
            device: Device to which the noise is copied.

        Raises:
            ValueError: If the seed or the number of images is out of range.
        """
        check_draws(seed, images)
        self._generators = [torch.Generator().manual_seed(seed + image) for image in range(images)]
        self._shape, self._device = tuple(shape), device

    def __call__(self) -> Tensor:
        """Return the next noise of every image of a request.

        Sampling begins with the first draw; samplers that add noise use the others.
        """
        drawn = torch.stack([torch.randn(self._shape, generator=generator) for generator in self._generators])
        return drawn.to(self._device)


def check_draws(seed: int, images: int) -> None:
    """Raise ValueError if the seed or the number of images is out of range."""
    check_images(images)
    check_seed(seed)


def check_images(images: int) -> None:
    """Raise ValueError if a request cannot have this number of images."""
    if not 1 <= images <= MAX_IMAGES:
        raise ValueError(f"the number of images or videos is {images}; give 1 to {MAX_IMAGES}")


def check_seed(seed: int) -> None:
    """Raise ValueError if a seed is out of range."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed is {seed}; it must be an integer from 0 to {MAX_SEED}")
