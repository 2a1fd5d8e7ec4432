"""Clips of a handwritten digit, drawn smaller, that moves from the middle to one of four sides.

Each clip begins in the same place, so that where its ink is tells which way it goes, even through noise in which no
frame can be told from the next: positions of a denoiser like Wan's are relative alone.

Shapes: B images or clips, F frames, S side of a picture.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from zoo.digits.data import SIDE

FRAMES = 9
SCALE = 0.75  # of a digit, so that it stays in the picture
SPEED = 1  # pixel a frame: in the last it is at the side
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""Rows and columns that it moves on by."""


def smaller(images: Tensor) -> Tensor:
    """Images of SCALE, with paper around them."""
    side = round(SCALE * SIDE)
    small = functional.interpolate(images, (side, side), mode="bicubic", antialias=True).clamp(-1, 1)
    return functional.pad(small, ((SIDE - side) // 2,) * 4, value=-1.0)


def clip(image: Tensor, direction: str) -> Tensor:
    """The frames of a digit's image [1, S, S], which is the first of them [F, 1, S, S]."""
    (down, across), margin, side = DIRECTIONS[direction], SPEED * (FRAMES - 1), image.shape[-1]
    wide = functional.pad(image, (margin,) * 4, value=-1.0)
    starts = [(margin - n * down, margin - n * across) for n in range(0, margin + 1, SPEED)]
    return torch.stack([wide[:, row : row + side, column : column + side] for row, column in starts])


def clips(images: Tensor, directions: list[str]) -> Tensor:
    """One of each of these images [B, 1, S, S], made smaller first [B, F, 1, S, S]."""
    return torch.stack([clip(image, way) for image, way in zip(smaller(images), directions, strict=True)])
