"""The device that a model runs on, the CPU or a GPU that torch sees, and the memory available there."""

import torch

from ridgeline.backends import backend_of, priced_backend
from ridgeline.core.ops.backend import Backend

MEMORY_SHARE = 0.9
"""The default share of a GPU's memory for weights, a step and the KV cache together, as in vLLM."""


def device_named(name: str) -> torch.device:
    """Return the device of a name: `cpu`, `cuda`, `cuda:N`, or `auto` for a GPU if there is one.

    Raises:
        ValueError: If the name is unknown, or torch does not see the device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, number = name.partition(":")
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if (kind != "cuda" and name != "auto") or (number and not number.isdecimal()):
        raise ValueError(f"--device is {name!r}: give cpu, cuda, cuda:N for GPU N, or auto")
    if not count:
        raise ValueError(
            f"--device is {name}, but torch finds no CUDA device: leave --device out to run on the CPU, or install "
            "torch with CUDA support"
        )
    index = int(number or 0)
    if index >= count:
        raise ValueError(
            f"--device is {name}, but torch finds {count} CUDA device{'s' if count > 1 else ''}, numbered from "
            "cuda:0: give a lower number"
        )
    return torch.device("cuda", index)


def memory_backend(place: torch.device) -> Backend:
    """Return the backend for which an engine reserves memory: the one that executes models on the device.

    On a GPU it is the GPU backend even if PyTorch computes: its libraries and copies take memory, too.
    """
    return backend_of(place) if place.type == "cpu" else priced_backend("gpu")


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; do nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def available_gpu_memory(device: torch.device, share: float | None) -> float:
    """Return how many bytes of a GPU a model may take.

    Memory that other processes use counts against the share, as in vLLM.

    Args:
        device: The GPU.
        share: The share of its memory that everything on it may take; by default MEMORY_SHARE.
    """
    free, total = torch.cuda.mem_get_info(device)
    return max(0.0, free - (1 - (share or MEMORY_SHARE)) * total)
