"""Activations that are alive at once: what a run of a network holds beside its weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.op import Op


class ActivationTracker:
    """Told of each call of a run on meta, what its results take until nobody holds them any more, and the most of it.

    An op's inputs are there while it runs, and so are its results. What an op needs within itself is not seen: a copy
    with a line and a column of zeros in `Downsample`, which is less than what a residual block beside it holds.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __call__(self, _: str, __: Op, inputs: tuple[Any, ...], output: Any) -> None:
        for value in (*inputs, *(output if isinstance(output, tuple) else (output,))):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                held = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._held[storage._cdata] = held, storage.nbytes()
        self._held = {
            key: (held, nbytes)
            for key, (held, nbytes) in self._held.items()
            if not held.expired()  # type: ignore[no-untyped-call]
        }
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._held.values()))


def peak_bytes(
    network: PricedModule, shape: tuple[int, ...], run: Callable[[Tensor], object], dtype: torch.dtype = torch.float32
) -> int:
    """Most bytes of activations that are alive at once while `run` is called with a tensor of this shape, which its
    caller holds. It calls the network on meta, at true sizes.
    """
    alive = ActivationTracker()
    with network.outlined(alive):
        given = torch.empty(shape, dtype=dtype)
        run(given)
    return alive.peak
