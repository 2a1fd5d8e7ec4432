"""Clips of a handwritten digit, drawn smaller, that moves to one of four sides.

It moves as many pixels a frame as a latent is wide, so that the latents of a frame are all but those of the one before,
shifted by one.

Shapes: B images or clips, F frames, S side of a picture.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from zoo.digits.data import SIDE

FRAMES = 9
SCALE = 0.75  # of a digit, so that it stays in the picture
SPEED = 2  # pixels a frame
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""Rows and columns that it moves on by."""


def smaller(images: Tensor) -> Tensor:
    """Images of SCALE, with paper around them."""
    side = round(SCALE * SIDE)
    small = functional.interpolate(images, (side, side), mode="bicubic", antialias=True).clamp(-1, 1)
    return functional.pad(small, ((SIDE - side) // 2,) * 4, value=-1.0)


def clip(image: Tensor, direction: str) -> Tensor:
    """The frames of a digit's image [1, S, S], which is in the middle at half of the way [F, 1, S, S]."""
    (down, across), middle = DIRECTIONS[direction], FRAMES // 2
    margin, side = SPEED * middle, image.shape[-1]
    wide = functional.pad(image, (margin,) * 4, value=-1.0)
    starts = [(margin - n * down, margin - n * across) for n in range(-margin, margin + 1, SPEED)]
    return torch.stack([wide[:, row : row + side, column : column + side] for row, column in starts])


def clips(images: Tensor, directions: list[str]) -> Tensor:
    """One of each of these images [B, 1, S, S], made smaller first [B, F, 1, S, S]."""
    return torch.stack([clip(image, way) for image, way in zip(smaller(images), directions, strict=True)])
