"""Latents to pixels, picture by picture: whole, or in tiles where memory says so. A clip comes in parts; where its
autoencoder is a picture's, a part is a frame.

Shapes: B images, C channels of latents, H, W lines and columns; of clips T frames of latents before these.
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
"""Latents on a side of a tile, the first where there is memory for it."""
SPARE = 0.5
"""Of the free memory that activations may take: what kernels need within themselves is not predicted."""
PREVIEW = 64
"""Latents on a side of a preview, at most: 2.5 TFLOP for Z-Image and FLUX.1, a twentieth of a pass at 1024 x 1024."""


def tiles_of(size: int) -> Tiling:
    """Tiles of so many latents on a side, a quarter of them shared. Raises ValueError for fewer than 1."""
    return Tiling(size, size // 4)


def choose_tiling(autoencoder: AutoencoderKL, latents: PixelGrid, free: float) -> Tiling | None:
    """How latents of a picture are decoded within so many bytes of free memory: whole (None) if they can be, as tiles
    change the result; else in the largest of TILES. Raises ValueError where none can.
    """
    budget = SPARE * free
    if autoencoder.decode_bytes(latents) <= budget:
        return None
    for tiling in map(tiles_of, TILES):
        if autoencoder.decode_bytes(latents, tiling) <= budget:
            return tiling
    least = autoencoder.decode_bytes(latents, tiling) / SPARE
    raise ValueError(
        f"decoding in tiles of {tiling.size} latents wants {say_gib(gib(least))} free; {say_gib(gib(free))} is: "
        "close something, or ask for a smaller size"
    )


@torch.inference_mode()
def decode(autoencoder: AutoencoderKL | VideoAutoencoder, latents_BCHW: Tensor, tiling: Tiling | None = None) -> Tensor:
    """Latents [B, C, H, W] -> pixels fp32 [B, channels, lines, columns] about -1 to 1, one picture after the other; of
    clips [B, channels, frames, lines, columns]. Raises ValueError as `decode_parts`.
    """
    whole = []
    for latents in latents_BCHW:
        parts = list(decode_parts(autoencoder, latents, tiling))
        whole.append(torch.cat(parts, 1) if latents.dim() == 4 else parts[0])
    return torch.stack(whole)


def decode_parts(
    autoencoder: AutoencoderKL | VideoAutoencoder, latents_CHW: Tensor, tiling: Tiling | None = None
) -> Iterator[Tensor]:
    """One picture or clip in the parts that it comes in: a picture's pixels at once, as `decode` without B; a clip's
    [channels, frames, lines, columns] for each frame of latents. Other latents may be decoded between two parts.

    Raises ValueError for latents that are no numbers: what the denoiser gave was beyond its number format.
    """
    if not torch.isfinite(latents_CHW).all():
        raise ValueError("the latents are not finite: the denoiser left the range of its number format; try fp32")
    if not isinstance(autoencoder, VideoAutoencoder):
        autoencoder.backend.share_threads()
    moves = latents_CHW.dim() == 4
    assert tiling is None or not moves, "clips are decoded frame by frame"
    if isinstance(autoencoder, VideoAutoencoder):
        for chunk in autoencoder.chunks(latents_CHW[None]):
            yield chunk[0]
        return
    device = next(autoencoder.parameters()).device
    for frame_CHW in latents_CHW.unbind(1) if moves else (latents_CHW,):
        pixels = autoencoder.decode(frame_CHW[None].to(device), tiling)[0].float().cpu()
        yield pixels[:, None] if moves else pixels


def preview(autoencoder: AutoencoderKL, latents_BCHW: Tensor) -> Tensor:
    """As `decode`, of latents averaged to PREVIEW on a side at most: what a picture will be, for little."""
    factor = -(-max(latents_BCHW.shape[2:]) // PREVIEW)
    return decode(autoencoder, functional.avg_pool2d(latents_BCHW, factor) if factor > 1 else latents_BCHW)
