"""Batching: the images and guidance passes of a request that share one call of the denoiser.

A pass reads every weight and multiplies it with every row. With few rows, reading the weights takes the time and more
rows per call cost nothing: several images share a call, and so do both guidance passes. From some hundreds of rows on
(the ridge of the roofline) the time of a call grows with its rows, and a larger batch only holds more memory: images
are generated one after the other, so that the first one is ready early, with two calls per step.
"""

from collections.abc import Callable
from dataclasses import dataclass

RIDGE_ROWS = 300
"""The number of rows above which a matrix product takes longer than reading its weights.

It is peak FLOP/s / bandwidth x bytes per weight / 2. In bf16 it is 295 on an H100, about 300 on a B200, 156 on an A100
and 419 on an L40S (their data sheets).
"""

MARGIN = 0.02
"""The fraction by which a step may take longer with a smaller batch, which holds less memory at a time."""

Seconds = Callable[[int], float]
"""The time of a denoiser call in any unit, as a function of the number of its images, each with its text.

An image in both guidance passes counts as two.
"""


def ridge_seconds(rows: int) -> float:
    """Return the roofline time of a denoiser call with `rows` rows, in units of one row above the ridge."""
    return float(max(rows, RIDGE_ROWS))


@dataclass(frozen=True, slots=True)
class Batching:
    """The number of images per denoiser call, and whether the call contains both guidance passes."""

    images: int
    """The number of images that one denoiser call computes; the last group of a request may have fewer."""
    paired: bool
    """Whether one denoiser call runs both guidance passes."""

    def calls(self, passes: int) -> int:
        """Return the number of denoiser calls per step if each image needs `passes` passes."""
        return 1 if self.paired else passes


def choose_batching(images: int, passes: int, seconds: Seconds) -> Batching:
    """Return the batching with which a denoising step of `images` images, each with `passes` passes, is fastest.

    Among those within MARGIN of the least time it chooses the one with the fewest images in a call.
    """

    def step(batching: Batching) -> float:
        full, left = divmod(images, batching.images)
        groups = [batching.images] * full + [left] * bool(left)
        return sum(seconds(passes * group) if batching.paired else passes * seconds(group) for group in groups)

    sizes = sorted({images, *(2**power for power in range(images.bit_length()))})
    choices = [Batching(size, paired) for paired in (False, True)[:passes] for size in sizes]
    took = {choice: step(choice) for choice in choices}
    good = [choice for choice in choices if took[choice] <= (1 + MARGIN) * min(took.values())]
    return min(good, key=lambda choice: (choice.images * (passes if choice.paired else 1), choice.images))
