"""What can be told of a written digit by its pixels alone: how thick its stroke is, and how far it leans.

Shapes: B images, S side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.digits.data import Digits
from zoo.digits.prompts import TRAITS

_SHARE = 0.25  # of a digit's images that have a trait


def thickness(images: Tensor) -> Tensor:
    """Width of the stroke in pixels [B], of images [B, 1, S, S]: its area over half the length of its outline, which is
    the sum of the gradient's length."""
    ink = (images[:, 0] + 1) / 2
    down, across = ink[:, 1:, :-1] - ink[:, :-1, :-1], ink[:, :-1, 1:] - ink[:, :-1, :-1]
    outline = (down.square() + across.square()).sqrt().sum((1, 2))
    return 2 * ink.sum((1, 2)) / outline.clamp(min=1e-6)


def slant(images: Tensor) -> Tensor:
    """How far the writing leans to the right, in pixels a pixel of height [B], of images [B, 1, S, S]: the covariance
    of its ink's columns and rows over the variance of rows."""
    ink = (images[:, 0] + 1) / 2
    ink = ink / ink.sum((1, 2), keepdim=True).clamp(min=1e-6)
    place = torch.arange(ink.shape[-1], dtype=ink.dtype)
    rows, columns = ink.sum(2), ink.sum(1)
    y = place - (rows * place).sum(1, keepdim=True)
    x = place - (columns * place).sum(1, keepdim=True)
    covariance = torch.einsum("bij,bi,bj->b", ink, y, x)
    return -covariance / (rows * y.square()).sum(1).clamp(min=1e-6)


@dataclass(frozen=True)
class Bounds:
    """Where the outer quarters of each digit's images begin: thickness and slant, low and high [10] each."""

    thin: Tensor
    thick: Tensor
    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, digits: Digits) -> Bounds:
        """As measured on these."""
        edges = torch.tensor([_SHARE, 1 - _SHARE])
        widths, slants = thickness(digits.images), slant(digits.images)
        each = [digits.labels == digit for digit in range(10)]
        thin, thick = torch.stack([widths[own].quantile(edges) for own in each]).unbind(1)
        left, right = torch.stack([slants[own].quantile(edges) for own in each]).unbind(1)
        return cls(thin, thick, left, right)

    def traits(self, digits: Digits) -> Tensor:
        """Which of TRAITS each image has, for a digit of its kind; bool [B, 4]."""
        widths, slants, own = thickness(digits.images), slant(digits.images), digits.labels
        has = {
            "thin": widths < self.thin[own],
            "thick": widths > self.thick[own],
            "left": slants < self.left[own],
            "right": slants > self.right[own],
        }
        return torch.stack([has[trait] for trait in TRAITS], 1)
