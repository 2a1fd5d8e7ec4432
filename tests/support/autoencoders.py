"""Autoencoders of diffusers with random weights, in folders as it writes them, and what a run of a model holds."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL as Theirs
from diffusers import AutoencoderKLFlux2 as PackedTheirs
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def config(channels: list[int], **other: Any) -> dict[str, Any]:
    """The keys of a small autoencoder: a block a width, one residual block in each, two groups."""
    return {
        "block_out_channels": channels,
        "down_block_types": ["DownEncoderBlock2D"] * len(channels),
        "up_block_types": ["UpDecoderBlock2D"] * len(channels),
        "norm_num_groups": 2,
        **other,
    }


def their_autoencoder(values: dict[str, Any], folder: Path, seed: int = 0) -> Theirs:
    """Diffusers' model of a config, every weight drawn so that it matters, also saved as a folder."""
    theirs = Theirs(**values).eval()
    _redraw(theirs, seed)
    theirs.save_pretrained(folder)
    return theirs


def their_packed_autoencoder(values: dict[str, Any], folder: Path, seed: int = 0) -> PackedTheirs:
    """The same of FLUX.2's, whose batch norm has counted something."""
    theirs = PackedTheirs(**values).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    theirs.bn.running_mean.normal_(0.0, 0.5, generator=generator)
    theirs.bn.running_var.uniform_(0.1, 4.0, generator=generator)
    _redraw(theirs, seed)
    theirs.save_pretrained(folder)
    return theirs


def _redraw(theirs: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(0.0, 0.18, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)


class Held(TorchDispatchMode):
    """Watches what aten gives while something runs: most bytes alive at once of tensors that it made."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, out)):
            if isinstance(value, Tensor) and (storage := value.untyped_storage())._cdata not in self._weights:
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._held = {key: held for key, held in self._held.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._held.values()))
        return out
