"""Autoencoders of diffusers with random weights, in folders as it writes them; what a run of a model holds; and the
assertions that all autoencoders of images are put to."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL as Theirs
from diffusers import AutoencoderKLFlux2 as PackedTheirs
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.models.families.vq_autoencoder import VQAutoencoder
from ridgeline.core.ops.pixel_grid import PixelGrid
from support.audit import Run, audited, check_bytes, check_products


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
        self.sizes: list[int] = []  # of all that was alive then

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, out)):
            if isinstance(value, Tensor) and (storage := value.untyped_storage())._cdata not in self._weights:
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._held = {key: held for key, held in self._held.items() if not held[0].expired()}
        sizes = sorted(nbytes for _, nbytes in self._held.values())
        if sum(sizes) > self.peak:
            self.peak, self.sizes = sum(sizes), sizes
        return out


def check_ops(
    ours: AutoencoderKL | VQAutoencoder, latents: PixelGrid, given: Tensor, *, between: Sequence[str] = ()
) -> None:
    """Assert that every op computes what it states while what is given, latents of this size, is decoded, and while
    pixels are encoded to so many. between: functions of aten that are to be called between ops of a decode."""
    with audited(ours) as audit, torch.inference_mode():
        ours.decode(given)
    for name in between:
        del audit.calls[""][name]
    runs = [Run(ours, audit, ours.decode_work(latents), [], {})]
    finest = latents.finer(ours.factor)
    with audited(ours) as audit, torch.inference_mode():
        pixels = torch.rand(finest.images, ours.inputs, finest.height, finest.width)
        ours.encode(pixels.to(memory_format=torch.channels_last))
    runs.append(Run(ours, audit, ours.encode_work(latents), [], {}))
    for run in runs:
        assert sum(run.audit.flops.values()) > 0
        check_products(run)
        check_bytes(run)


def check_memory(ours: AutoencoderKL | VQAutoencoder, runs: Sequence[tuple[int, Callable[[], object]]]) -> None:
    """Assert that each run holds as many bytes as stated, within 1 %; the weights of tiles are not counted."""
    for stated, run in runs:
        with torch.inference_mode(), Held(ours) as held:
            run()
        told = f"{stated} bytes are stated; {held.peak} were held, in tensors of {held.sizes}"
        assert stated == pytest.approx(held.peak, rel=0.01, abs=1024), told
