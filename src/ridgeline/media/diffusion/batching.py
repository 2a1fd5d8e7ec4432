"""Batching: which of a request's pictures and passes the denoiser is asked for in one call.

A pass reads every weight, and multiplies it with every row. With few rows the reading is what takes time, and more rows
in the call cost nothing: pictures are drawn side by side, both passes of guidance in one call. From some hundreds of
rows on (the ridge of the roofline) a call takes as long as its rows, and a larger one only holds more memory: pictures
are drawn one after the other, so that the first is there early, in two passes a step.
"""

from collections.abc import Callable
from dataclasses import dataclass

RIDGE_ROWS = 300
"""Rows from which on a product takes longer than reading its matrix: peak / bandwidth x bytes of a weight / 2. In bf16
295 on an H100, about 300 on a B200, 156 on an A100, 419 on an L40S (their data sheets)."""

MARGIN = 0.02
"""By what share a step may take longer in a smaller batch, which holds less memory at once."""

Seconds = Callable[[int], float]
"""What a call of the denoiser takes, in any unit, by the number of its pictures, each with its text; a picture in both
passes of guidance counts as two."""


def ridge_seconds(rows: int) -> float:
    """What a call over so many rows takes at the roofs, in units of a row above the ridge."""
    return float(max(rows, RIDGE_ROWS))


@dataclass(frozen=True, slots=True)
class Batching:
    """pictures: drawn side by side. paired: whether both passes of guidance go in one call."""

    pictures: int
    paired: bool

    def calls(self, passes: int) -> int:
        """Calls of the denoiser in a step that asks for so many passes of each picture."""
        return 1 if self.paired else passes


def batching_of(images: int, passes: int, seconds: Seconds) -> Batching:
    """The batching in which a step for so many images, of so many passes each, takes the least time; of several that
    take as long within MARGIN, the one that holds the fewest pictures at once.
    """

    def step(batching: Batching) -> float:
        full, left = divmod(images, batching.pictures)
        groups = [batching.pictures] * full + [left] * bool(left)
        return sum(seconds(passes * group) if batching.paired else passes * seconds(group) for group in groups)

    sizes = sorted({images, *(2**power for power in range(images.bit_length()))})
    choices = [Batching(size, paired) for paired in (False, True)[:passes] for size in sizes]
    took = {choice: step(choice) for choice in choices}
    good = [choice for choice in choices if took[choice] <= (1 + MARGIN) * min(took.values())]
    return min(good, key=lambda choice: (choice.pictures * (passes if choice.paired else 1), choice.pictures))
