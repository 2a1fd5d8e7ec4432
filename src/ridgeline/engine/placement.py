"""Where a model runs: on the processor, or on a card that torch sees; and what memory there is for it."""

import torch

from ridgeline.backends import backend_of, priced_backend
from ridgeline.core.ops.backend import Backend

MEMORY_SHARE = 0.9
"""Of a card's memory that weights, a step, and keys and values take together, where no share is stated: as in vLLM."""


def device_named(name: str) -> torch.device:
    """The device of `cpu`, `cuda`, `cuda:N` or `auto`, which is a card where there is one. Raises ValueError."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, number = name.partition(":")
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if (kind != "cuda" and name != "auto") or (number and not number.isdecimal()):
        raise ValueError(f"--device is {name!r}; give cpu, cuda, cuda:N for card N, or auto")
    if not count:
        raise ValueError(
            f"--device is {name}, but torch sees no CUDA device here; leave it out for the processor, or install torch "
            "for CUDA"
        )
    index = int(number or 0)
    if index >= count:
        raise ValueError(
            f"--device is {name}, but torch sees {count} CUDA device{'s' if count > 1 else ''}, from cuda:0"
        )
    return torch.device("cuda", index)


def memory_backend(place: torch.device) -> Backend:
    """Return the backend whose memory an engine leaves room for: the one that executes models there. On a GPU it is the
    one for GPUs even if PyTorch computes: its libraries and copies take memory too.
    """
    return backend_of(place) if place.type == "cpu" else priced_backend("gpu")


def synchronize(device: torch.device) -> None:
    """Wait until a card has done what it was asked; the processor has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def available_gpu_memory(device: torch.device, share: float | None) -> float:
    """Bytes that a model may take of a card where all that is on it may take a share (MEMORY_SHARE by default): what
    others have taken counts, as in vLLM.
    """
    free, total = torch.cuda.mem_get_info(device)
    return max(0.0, free - (1 - (share or MEMORY_SHARE)) * total)
