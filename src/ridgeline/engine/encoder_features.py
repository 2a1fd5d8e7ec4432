"""The input of encoders that read features instead of token ids, such as log-mel frames or patches of images."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EncoderFeatures:
    """The features of an encoder's positions, as plain data that crosses processes.

    Its length is the number of positions.
    """

    data: bytes
    """The features as fp32 in this machine's byte order, position after position."""
    width: int
    """The number of features of one encoder position."""
    inputs: int = 1
    """The number of inputs of equal length that the positions belong to; none attends to another."""

    def __post_init__(self) -> None:
        if self.width < 1 or len(self.data) % (4 * self.width):
            raise ValueError(
                f"{len(self.data)} bytes of features are not a whole number of positions of {self.width} fp32 numbers"
            )
        if self.inputs < 1 or len(self) % self.inputs:
            raise ValueError(f"{len(self)} positions of features cannot be divided equally among {self.inputs} inputs")

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> Self:
        """Make encoder features from an array [positions, width]."""
        assert values.ndim == 2
        return cls(np.ascontiguousarray(values, np.float32).tobytes(), values.shape[1])

    @property
    def positions_per_input(self) -> int:
        """The number of positions of one encoder input."""
        return len(self) // self.inputs

    def part(self, start: int, stop: int) -> "EncoderFeatures":
        """Return the features of the encoder inputs from `start` to `stop`."""
        nbytes = 4 * self.width * self.positions_per_input
        return EncoderFeatures(self.data[start * nbytes : stop * nbytes], self.width, stop - start)

    def __len__(self) -> int:
        return len(self.data) // (4 * self.width)

    @property
    def values(self) -> NDArray[np.float32]:
        """The features as a read-only array [positions, width]."""
        return np.frombuffer(self.data, np.float32).reshape(-1, self.width)

    @property
    def digest(self) -> bytes:
        """The digest of the features, which stands for them in prefix caching."""
        return hashlib.blake2b(self.data, digest_size=32).digest()

    def summary(self) -> dict[str, Any]:
        """Return a summary of the features for the JSON form of a plan: their number, width and digest."""
        several = {"inputs": self.inputs} if self.inputs > 1 else {}
        return {"positions": len(self), "width": self.width, "digest": self.digest.hex(), **several}


@dataclass(frozen=True, slots=True)
class PlacedImages:
    """The images of a prompt, and the positions of the prompt at which the rows of their encoder output go."""

    features: EncoderFeatures
    """The patches that the image encoder reads."""
    places: tuple[int, ...]
    """The prompt positions of the image rows, in increasing order."""

    def step_input(self, start: int, tokens: Sequence[int]) -> tuple[Sequence[int], EncoderFeatures] | None:
        """Return the image input of a step that runs these tokens from a position on.

        Returns:
            The tokens, with the number of a row at each image position (-1 the first), and the images that have those
            rows; None if the step runs no image position.
        """
        first, last = (bisect_left(self.places, position) for position in (start, start + len(tokens)))
        if first == last:
            return None
        each = self.features.positions_per_input
        begin = first // each
        placed = list(tokens)
        for row in range(first, last):
            placed[self.places[row] - start] = begin * each - row - 1
        return placed, self.features.part(begin, -(-last // each))


EncoderInput = Sequence[int] | EncoderFeatures
"""The input of an encoder: token ids, or features."""
