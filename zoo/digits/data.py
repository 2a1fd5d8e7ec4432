"""Handwritten digits: 10,000 of MNIST (LeCun, Cortes and Burges), 8,000 to train on and 2,000 that are held out.

Shapes: B images, S side of a picture.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

SIDE = 32  # pixels, of which a margin of two on each side is added here
HELD_OUT = 2000
_SPLIT = 20261123  # seed of the order in which they are divided
_IMAGES, _LABELS = 0x0803, 0x0801  # of unsigned bytes, in three dimensions and in one


@dataclass(frozen=True)
class Digits:
    """images: fp32 [B, 1, 32, 32], ink 1 on paper -1. labels: int64 [B], 0 to 9."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def read_idx(path: Path) -> Tensor:
    """The numbers of a gzipped IDX file of unsigned bytes. Raises ValueError for another file."""
    data = gzip.decompress(path.read_bytes())
    magic, count = struct.unpack(">II", data[:8])
    if magic not in (_IMAGES, _LABELS):
        raise ValueError(f"{path} begins with {magic:#x}: it is no IDX file of images or labels")
    shape = (count, *struct.unpack(">II", data[8:16])) if magic == _IMAGES else (count,)
    return torch.frombuffer(bytearray(data[4 + 4 * len(shape) :]), dtype=torch.uint8).view(shape)


def read_digits(folder: Path) -> tuple[Digits, Digits]:
    """Those to train on and those held out, always the same, from a folder with t10k-images-idx3-ubyte.gz and
    t10k-labels-idx1-ubyte.gz."""
    bytes_BSS = read_idx(folder / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz").long()
    margin = (SIDE - bytes_BSS.shape[-1]) // 2
    images = functional.pad(bytes_BSS[:, None].float() / 127.5 - 1, (margin,) * 4, value=-1.0)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT))
    held, taught = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(images[taught], labels[taught]), Digits(images[held], labels[held])


def moved(images: Tensor, generator: torch.Generator, turn: float = 8.0, scale: float = 0.08) -> Tensor:
    """Each image turned by up to `turn` degrees, scaled by up to a share of `scale`, shifted by up to a pixel and a
    half: others that the same hands could have written."""
    drawn = torch.rand(4, len(images), generator=generator) * 2 - 1
    angle, size, (x, y) = drawn[0] * torch.pi * turn / 180, 1 + scale * drawn[1], drawn[2:] * 3 / SIDE
    cosine, sine = angle.cos() / size, angle.sin() / size
    maps = torch.stack([torch.stack([cosine, -sine, x], -1), torch.stack([sine, cosine, y], -1)], 1)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    # Sampled about 0, so that what comes from outside is paper.
    return functional.grid_sample(images + 1, grid, mode="bicubic", align_corners=False).clamp(0, 2) - 1
