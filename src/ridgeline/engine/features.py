"""Features: what an encoder reads that takes no token ids, such as log-mel frames of sound."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Features:
    """So many numbers for each position of an encoder. Plain data, which crosses processes as it is.

    data: fp32 in this machine's order, position after position. width: numbers a position. `len` is positions.
    """

    data: bytes
    width: int

    def __post_init__(self) -> None:
        if self.width < 1 or len(self.data) % (4 * self.width):
            raise ValueError(f"{len(self.data)} bytes of features are no positions of {self.width} fp32 numbers")

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> Self:
        """Of numbers [positions, width]."""
        assert values.ndim == 2
        return cls(np.ascontiguousarray(values, np.float32).tobytes(), values.shape[1])

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
        return {"positions": len(self), "width": self.width, "digest": self.digest.hex()}


EncoderInput = Sequence[int] | Features
"""What an encoder reads: token ids, or features."""
