"""Decoding of latents to pixels, image by image: whole, or in tiles if memory is short.

A video is decoded in parts; with an image autoencoder, a part is a frame.

Shapes: B images, C channels of latents, H, W rows and columns; for videos T latent frames before these.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder
from ridgeline.util.document.humanize import gib, say_gib

TILES = (64, 32, 16)
"""The sizes of decode tiles in latents per side, in the order in which they are tried."""
SPARE = 0.5
"""The fraction of the free memory that a decode's activations may use; the workspace of kernels is not predicted."""
PREVIEW = 64
"""The maximum latents per side of a preview.

Decoding them takes 2.5 TFLOP for Z-Image and FLUX.1. At 1024 x 1024 that is about a twentieth of a pass of Z-Image and
a thirtieth of one of FLUX.1.
"""


def tiles_of(size: int) -> Tiling:
    """Return a tiling for decoding latents, with `size` latents per tile side, a quarter of which overlap.

    Raises:
        ValueError: If `size` is below 1.
    """
    return Tiling(size, size // 4)


def choose_tiling(autoencoder: AutoencoderKL, latents: PixelGrid, free: float) -> Tiling | None:
    """Return the tiling with which the latents of an image can be decoded in `free` bytes of memory.

    It is None (no tiles) if the memory is sufficient, because tiles change the result; otherwise the largest of TILES
    that fits.

    Raises:
        ValueError: If no tiling fits.
    """
    budget = SPARE * free
    if autoencoder.decode_bytes(latents) <= budget:
        return None
    for tiling in map(tiles_of, TILES):
        if autoencoder.decode_bytes(latents, tiling) <= budget:
            return tiling
    least = autoencoder.decode_bytes(latents, tiling) / SPARE
    raise ValueError(
        f"decoding in tiles of {tiling.size} latents needs {say_gib(gib(least))} of free memory, but "
        f"{say_gib(gib(free))} is free: close other programs, or request a smaller size"
    )


@torch.inference_mode()
def decode(autoencoder: AutoencoderKL | VideoAutoencoder, latents_BCHW: Tensor, tiling: Tiling | None = None) -> Tensor:
    """Return the pixels of latents [B, C, H, W]: fp32 [B, channels, rows, columns] from about -1 to 1.

    For videos they are [B, channels, frames, rows, columns]. Images are decoded one after the other.

    Raises:
        ValueError: If the latents are not finite, or if they do not fit a video autoencoder.
    """
    whole = []
    for latents in latents_BCHW:
        parts = list(decode_parts(autoencoder, latents, tiling))
        whole.append(torch.cat(parts, 1) if latents.dim() == 4 else parts[0])
    return torch.stack(whole)


def decode_parts(
    autoencoder: AutoencoderKL | VideoAutoencoder, latents_CHW: Tensor, tiling: Tiling | None = None
) -> Iterator[Tensor]:
    """Yield the decoded pixels of one image or video in parts; other latents may be decoded between two parts.

    An image is one part [channels, rows, columns]. A video has one part per latent frame, [channels, frames, rows,
    columns].

    Raises:
        ValueError: If the latents are not finite, because the denoiser's output exceeded its dtype, or if they do not
            fit a video autoencoder.
    """
    if not torch.isfinite(latents_CHW).all():
        raise ValueError(
            "the latents are not finite: the denoiser's values exceeded the range of its dtype; use --dtype fp32"
        )
    if not isinstance(autoencoder, VideoAutoencoder):
        autoencoder.backend.share_threads()
    moves = latents_CHW.dim() == 4
    assert tiling is None or not moves, "videos are decoded frame by frame"
    if isinstance(autoencoder, VideoAutoencoder):
        for chunk in autoencoder.chunks(latents_CHW[None]):
            yield chunk[0]
        return
    device = next(autoencoder.parameters()).device
    for frame_CHW in latents_CHW.unbind(1) if moves else (latents_CHW,):
        pixels = autoencoder.decode(frame_CHW[None].to(device), tiling)[0].float().cpu()
        yield pixels[:, None] if moves else pixels


def preview(autoencoder: AutoencoderKL, latents_BCHW: Tensor) -> Tensor:
    """Return a cheap preview of images: the decoded pixels of latents averaged to at most PREVIEW per side."""
    factor = -(-max(latents_BCHW.shape[2:]) // PREVIEW)
    return decode(autoencoder, functional.avg_pool2d(latents_BCHW, factor) if factor > 1 else latents_BCHW)
