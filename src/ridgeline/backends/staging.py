"""Transfer of numbers from the host to the device on which a model runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def staged(numbers: Sequence[Any] | NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy numbers from the host to a device without waiting.

    Numbers for a GPU go through pinned memory, in stream order. The pinned memory is reused only after the copy has
    finished (PyTorch's caching host allocator guarantees it).
    """
    own = torch.from_numpy(np.ascontiguousarray(numbers)) if isinstance(numbers, np.ndarray) else None
    tensor = torch.tensor(numbers, dtype=dtype) if own is None else own.to(dtype or own.dtype)
    if device.type == "cuda" and tensor.numel() and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class PinnedBuffer:
    """A host buffer (pinned if its device is a GPU) for a device tensor that the host updates repeatedly.

    Updates need no allocation and no second copy.
    """

    def __init__(self, numbers: Tensor) -> None:
        """Create the buffer of a device tensor; every `send` copies to this tensor."""
        self._numbers = numbers
        self._is_cuda = numbers.device.type == "cuda" and torch.cuda.is_available()
        self._host = torch.zeros(numbers.shape, dtype=numbers.dtype, pin_memory=self._is_cuda)
        self._sent = torch.cuda.Event() if self._is_cuda else None  # type: ignore[no-untyped-call]

    def begin(self) -> NDArray[Any]:
        """Return the host buffer as a NumPy array with the numbers of the last `send`, for changes.

        If the last copy is still in progress, which is rare, wait for it.
        """
        if self._sent is not None:
            self._sent.synchronize()
        return self._host.numpy()

    def send(self) -> None:
        """Copy the host buffer to its device tensor, in stream order."""
        self._numbers.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
