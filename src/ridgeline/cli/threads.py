"""How many threads torch computes with."""

import os

import torch

# Below this the weights stay in a core's caches, and handing work to a second thread costs more than it saves.
SMALL_MODEL_BYTES = 32 << 20


def set_threads(threads: int | None, weight_bytes: int) -> int:
    """Use `threads`, or by default one for a small model and all cores for others; returns how many."""
    if threads is not None and threads < 1:
        raise ValueError(f"--threads is {threads}; it must be at least 1")
    if threads is None:
        threads = 1 if weight_bytes < SMALL_MODEL_BYTES else len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads
