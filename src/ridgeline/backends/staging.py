"""Numbers that the host knows, brought to the device where a model runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def staged(numbers: Sequence[Any] | NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers as a tensor on a device. To a card they go through pinned memory, in the order of what else it is asked:
    nobody waits, and the memory is used again only when they are there (torch's caching host allocator sees to it).
    """
    own = torch.from_numpy(np.ascontiguousarray(numbers)) if isinstance(numbers, np.ndarray) else None
    tensor = torch.tensor(numbers, dtype=dtype) if own is None else own.to(dtype or own.dtype)
    if device.type == "cuda" and tensor.numel() and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class PinnedBuffer:
    """Numbers on a device that the host tells again and again, from the same pinned memory: nothing is taken for it,
    and nothing is copied twice.
    """

    def __init__(self, numbers: Tensor) -> None:
        """numbers: where they go, for good."""
        self._numbers = numbers
        self._on_card = numbers.device.type == "cuda" and torch.cuda.is_available()
        self._host = torch.zeros(numbers.shape, dtype=numbers.dtype, pin_memory=self._on_card)
        self._sent = torch.cuda.Event() if self._on_card else None  # type: ignore[no-untyped-call]

    def begin(self) -> NDArray[Any]:
        """The numbers as they were told last, to be changed: once those are there, as nearly always they are."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._host.numpy()

    def send(self) -> None:
        """Tell them, in the order of what else the device is asked."""
        self._numbers.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
