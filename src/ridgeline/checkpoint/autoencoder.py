"""An autoencoder of pictures with its weights: the `vae` of a pipeline, or the one that is a part of Janus."""

from collections.abc import Callable
from typing import TypeVar

import torch

from ridgeline.checkpoint.fill import Progress, bind_here, fill, memory_beside
from ridgeline.checkpoint.folder import open_checkpoint
from ridgeline.checkpoint.source import Source, as_source
from ridgeline.models.common.family import Family
from ridgeline.models.common.fields import Fields, ModelRefused
from ridgeline.models.common.image_autoencoder import ImageAutoencoder
from ridgeline.models.common.storage import Storage
from ridgeline.models.families import autoencoder_kl, vq_autoencoder
from ridgeline.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.models.families.vq_autoencoder import VQAutoencoder

_DTYPES = (torch.float32, torch.bfloat16)


def load_autoencoder(
    model: Source | str, dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> AutoencoderKL:
    """Build the autoencoder of a folder and fill it with its weights, memory-mapped where they need no conversion.

    dtype: fp32 or bf16; as they are stored where none is given, and fp32 for fp16, whose range activations of some
    releases pass. Raises ModelRefused for anything that cannot become one, in one line, and ValueError for another
    dtype.
    """
    return _load(model, autoencoder_kl.build, autoencoder_kl.FAMILY, dtype, progress)


def load_vq_autoencoder(model: Source | str, dtype: torch.dtype | None = None) -> VQAutoencoder:
    """As `load_autoencoder`, the one whose latents are tokens: of a folder of Janus, whose other parts are left out, or
    of one that holds it alone."""
    return _load(model, vq_autoencoder.build, vq_autoencoder.FAMILY, dtype)


_Built = TypeVar("_Built", bound=ImageAutoencoder)


def _load(
    model: Source | str,
    build: Callable[[Fields, Storage], _Built],
    family: Family,
    dtype: torch.dtype | None,
    progress: Progress | None = None,
) -> _Built:
    if dtype not in (None, *_DTYPES):
        raise ValueError(f"an autoencoder does not run in {dtype}; give torch.float32 or torch.bfloat16")
    source = as_source(model)
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a config without weights; give a checkpoint folder")
    checkpoint = open_checkpoint(source.folder)
    if dtype is None:
        dtype = checkpoint.dtype if checkpoint.dtype in _DTYPES else torch.float32
    built = build(source.config, Storage(dtype))
    memory_beside(source, {"weights": sum(op.stored_bytes() for _, op in built.weighted_ops())})
    fill(built, checkpoint, family, progress)
    bind_here(built)
    return built
