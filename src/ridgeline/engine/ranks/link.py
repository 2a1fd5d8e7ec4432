"""What joins the ranks, measured by all of them before the first step: seconds of an all-reduce by its size."""

import time

import torch
from torch import distributed

from ridgeline.roofline.link import Curve, Link

SIZES = tuple(1 << power for power in range(10, 23, 2))
"""Bytes of a message: a row of a small model to a prompt of a large one."""
ROUNDS = 15


def time_all_reduces(sizes: tuple[int, ...], rounds: int) -> list[float]:
    """Median seconds of an all-reduce of so many bytes each; every rank of the group is to call it."""
    found = []
    for size in sizes:
        message, seconds = torch.zeros(size // 4), []
        for _ in range(rounds):
            start = time.perf_counter()
            distributed.all_reduce(message)
            seconds.append(time.perf_counter() - start)
        found.append(sorted(seconds)[rounds // 2])
    return found


def link_of(ranks: int, sizes: tuple[int, ...], seconds: list[float]) -> Link:
    """The link that was measured so. Its bandwidth is the best of any size."""
    rising = [max(seconds[: place + 1]) for place in range(len(seconds))]
    moved = [2 * (ranks - 1) / ranks * size for size in sizes]
    bandwidth = max(nbytes / each for nbytes, each in zip(moved, rising, strict=True))
    return Link("gloo", bandwidth, {"gloo": {ranks: Curve(tuple(map(float, sizes)), tuple(rising))}})
