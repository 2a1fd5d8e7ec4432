"""Images, and prompts that ask for them: what is learned from."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from zoo.digits.data import Digits, moved
from zoo.digits.measures import Bounds
from zoo.digits.prompts import TRAITS, caption


def picked(digits: Digits, rows: int, generator: torch.Generator) -> tuple[Digits, Random]:
    """So many of them, half of them moved, and what draws the words of their prompts."""
    places = torch.randint(len(digits), (rows,), generator=generator)
    images, labels = digits.images[places], digits.labels[places]
    images[::2] = moved(images[::2], generator)
    return Digits(images, labels), Random(int(torch.randint(2**62, (), generator=generator)))


def pairs(
    digits: Digits, bounds: Bounds, rows: int, generator: torch.Generator, empty: float = 0.0
) -> tuple[Tensor, list[str]]:
    """So many images [rows, 1, 32, 32], half of them moved, and a prompt for each. empty: share of prompts that are
    left empty."""
    own, random = picked(digits, rows, generator)
    prompts = [
        "" if random.random() < empty else caption(random, int(label), [TRAITS[i] for i in has.nonzero()[:, 0]])
        for label, has in zip(own.labels, bounds.traits(own), strict=True)
    ]
    return own.images, prompts
