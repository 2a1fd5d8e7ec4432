"""The peak of activation memory: the bytes of all tensors that are alive at once while a model runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.op import Op


class ActivationTracker:
    """The callback of a run on meta that adds up the bytes of all live op inputs and results, and keeps the peak.

    It counts an op's inputs and results while the op runs. It does not see what an op allocates internally, such as the
    padded copy in `Downsample`, which is smaller than what the neighbouring residual block holds.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __call__(self, _: str, __: Op, inputs: tuple[Any, ...], output: Any) -> None:
        """Add the inputs and result of an op's call to the live bytes, drop freed tensors, and update the peak."""
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
    """Return the peak bytes of activations while `run` processes a tensor of this shape, which its caller keeps alive.

    Args:
        network: The model, which runs on meta at full size, so that no memory is needed.
        shape: The shape of the input tensor.
        run: The function that calls the model with the tensor.
        dtype: The dtype of the input tensor.
    """
    alive = ActivationTracker()
    with network.on_meta(alive):
        given = torch.empty(shape, dtype=dtype)
        run(given)
    return alive.peak
