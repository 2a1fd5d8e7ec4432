"""Features: what an encoder reads that takes no token ids, such as log-mel frames of sound."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EncoderFeatures:
    """So many numbers for each position of an encoder. Plain data, which crosses processes as it is.

    data: fp32 in this machine's order, position after position. width: numbers a position. inputs: how many inputs of
    equal length they are, none of which sees another. `len` is positions.
    """

    data: bytes
    width: int
    inputs: int = 1

    def __post_init__(self) -> None:
        if self.width < 1 or len(self.data) % (4 * self.width):
            raise ValueError(f"{len(self.data)} bytes of features are no positions of {self.width} fp32 numbers")
        if self.inputs < 1 or len(self) % self.inputs:
            raise ValueError(f"{len(self)} positions of features do not divide into {self.inputs} inputs")

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> Self:
        """Of numbers [positions, width]."""
        assert values.ndim == 2
        return cls(np.ascontiguousarray(values, np.float32).tobytes(), values.shape[1])

    @property
    def each(self) -> int:
        """Positions of an input."""
        return len(self) // self.inputs

    def part(self, start: int, stop: int) -> "EncoderFeatures":
        """The inputs from `start` to `stop`."""
        nbytes = 4 * self.width * self.each
        return EncoderFeatures(self.data[start * nbytes : stop * nbytes], self.width, stop - start)

    def __len__(self) -> int:
        return len(self.data) // (4 * self.width)

    @property
    def values(self) -> NDArray[np.float32]:
        """The numbers [positions, width], which are not to be changed."""
        return np.frombuffer(self.data, np.float32).reshape(-1, self.width)

    @property
    def digest(self) -> bytes:
        """What stands for them where prefixes are compared."""
        return hashlib.blake2b(self.data, digest_size=32).digest()

    def told(self) -> dict[str, Any]:
        """What a plan in JSON says of them."""
        several = {"inputs": self.inputs} if self.inputs > 1 else {}
        return {"positions": len(self), "width": self.width, "digest": self.digest.hex(), **several}


@dataclass(frozen=True, slots=True)
class PlacedImages:
    """Images of a prompt: what a tower reads of them, and the positions at which its rows stand, in their order."""

    features: EncoderFeatures
    places: tuple[int, ...]

    def of_step(self, start: int, tokens: Sequence[int]) -> tuple[Sequence[int], EncoderFeatures] | None:
        """What a step that runs these tokens from a position on needs: the tokens, with the number of a row in each
        place of one (-1 the first), and the images that have those rows; None where it has no such place.
        """
        first, last = (bisect_left(self.places, position) for position in (start, start + len(tokens)))
        if first == last:
            return None
        each = self.features.each
        begin = first // each
        placed = list(tokens)
        for row in range(first, last):
            placed[self.places[row] - start] = begin * each - row - 1
        return placed, self.features.part(begin, -(-last // each))


EncoderInput = Sequence[int] | EncoderFeatures
"""What an encoder reads: token ids, or features."""
