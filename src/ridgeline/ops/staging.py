"""Numbers that the host knows, brought to the device where a model runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def staged(numbers: Sequence[Any] | NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers as a tensor on a device. To a card they go through pinned memory, in the order of what else it is asked:
    nobody waits, and the memory is used again only when they are there (torch's caching host allocator sees to it)."""
    own = torch.from_numpy(np.ascontiguousarray(numbers)) if isinstance(numbers, np.ndarray) else None
    tensor = torch.tensor(numbers, dtype=dtype) if own is None else own.to(dtype or own.dtype)
    if device.type == "cuda" and tensor.numel() and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
