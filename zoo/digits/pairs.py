"""Images, and prompts that ask for them: what is learned from."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from zoo.digits.data import Digits, moved
from zoo.digits.measures import Bounds
from zoo.digits.prompts import TRAITS, caption


def pairs(
    digits: Digits, bounds: Bounds, rows: int, generator: torch.Generator, empty: float = 0.0
) -> tuple[Tensor, list[str]]:
    """So many images [rows, 1, 32, 32], half of them moved, and a prompt for each. empty: share of prompts that are
    left empty."""
    picked = torch.randint(len(digits), (rows,), generator=generator)
    images, labels = digits.images[picked], digits.labels[picked]
    images[::2] = moved(images[::2], generator)
    random = Random(int(torch.randint(2**62, (), generator=generator)))
    prompts = [
        "" if random.random() < empty else caption(random, int(label), [TRAITS[i] for i in has.nonzero()[:, 0]])
        for label, has in zip(labels, bounds.traits(Digits(images, labels)), strict=True)
    ]
    return images, prompts
