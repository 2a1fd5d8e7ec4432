"""Noise: what a seed draws. Every image has a generator of its own, so that no batch changes it."""

from collections.abc import Sequence

import torch
from torch import Tensor

_PROCESSOR = torch.device("cpu")
MAX_IMAGES = 100
MAX_SEED = 2**63 - 1 - MAX_IMAGES


class Noise:
    """Standard normal noise for the images of one request, fp32 [images, *shape] at each call.

    Image i draws from a generator of its own, seeded with seed + i: image k of a request with seed s is image 0 of a
    request with seed s + k. It is drawn on the CPU, so that it is the same for every device.
    """

    def __init__(self, seed: int, images: int, shape: Sequence[int], device: torch.device = _PROCESSOR) -> None:
        """shape: of one image's latents. device: where it goes. Raises ValueError as `check_draws`."""
        check_draws(seed, images)
        self._generators = [torch.Generator().manual_seed(seed + image) for image in range(images)]
        self._shape, self._device = tuple(shape), device

    def __call__(self) -> Tensor:
        """The next draw of every image: the first is what sampling begins with, the others are for samplers that add
        noise.
        """
        drawn = torch.stack([torch.randn(self._shape, generator=generator) for generator in self._generators])
        return drawn.to(self._device)


def check_draws(seed: int, images: int) -> None:
    """Raises ValueError for a seed or a number of images that cannot be."""
    check_images(images)
    check_seed(seed)


def check_images(images: int) -> None:
    """Raises ValueError for a number of images that a request cannot have."""
    if not 1 <= images <= MAX_IMAGES:
        raise ValueError(f"{images} pictures or clips: a request draws 1 to {MAX_IMAGES}")


def check_seed(seed: int) -> None:
    """Raises ValueError for a seed that cannot be."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed}: it must be an integer from 0 to {MAX_SEED}")
