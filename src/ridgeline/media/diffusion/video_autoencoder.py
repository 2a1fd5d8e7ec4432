"""The VAE of clips, AutoencoderKLWan. diffusers computes it (the extra `images`): its causal convolutions over time
have nothing in common with the ops here.

Latents are as a denoiser has them: the mean and the standard deviation of each channel, which the config states, are
applied here and nowhere else.

Shapes: B clips, C channels of latents, T frames of latents, H, W lines and columns of them.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.core.checkpoint.source import ModelSource, as_source
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.util.untrusted import refuse_pointer

ARCHITECTURE = "AutoencoderKLWan"
PIP = "pip install 'ridgeline[images]'"


@dataclass(frozen=True, slots=True)
class VideoLatentShape:
    """What a config says of latents. spatial: pixels on a side of a latent. temporal: frames in a latent, but for the
    first latent, which is the first frame alone. mean, std: of each channel.
    """

    spatial: int
    temporal: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def latents(self) -> int:
        """Channels of latents."""
        return len(self.mean)

    def frames(self, latents: int) -> int:
        """Frames of a clip that has so many of latents."""
        return 1 + self.temporal * (latents - 1)


class VideoAutoencoder:
    """The decoder of an AutoencoderKLWan, of Wan 2.1 or 2.2."""

    def __init__(self, theirs: Any, shape: VideoLatentShape, config: Fields) -> None:
        """theirs: diffusers' model with its weights. config: its config.json."""
        self.theirs, self.shape, self.config = theirs, shape, config

    @property
    def factor(self) -> int:
        """Pixels on a side of a latent."""
        return self.shape.spatial

    @property
    def channels(self) -> int:
        """Channels of a latent."""
        return self.shape.latents

    def parameters(self) -> Iterator[Tensor]:
        """Its weights."""
        found: Iterator[Tensor] = self.theirs.parameters()
        return found

    @torch.inference_mode()
    def decode(self, latents_BCTHW: Tensor, tiling: Tiling | None = None) -> Tensor:
        """latents_BCTHW [B, C, T, H, W] as a denoiser has them -> pixels fp32 [B, 3, frames, lines, columns] from -1 to
        1. tiling: always None, because `chunks` bounds the memory. Raises ValueError for latents of another model.
        """
        assert tiling is None, "clips are decoded frame by frame"
        return torch.cat(list(self.chunks(latents_BCTHW)), dim=2)

    @torch.inference_mode()
    def chunks(self, latents_BCTHW: Tensor) -> Iterator[Tensor]:
        """As `decode`, in parts [B, 3, frames, lines, columns]: the first frame, then the frames of one latent after
        the other, so that memory does not grow with the clip. Raises ValueError as `decode`.
        """
        if latents_BCTHW.dim() != 5 or latents_BCTHW.shape[1] != self.shape.latents or not latents_BCTHW.numel():
            raise ValueError(
                f"latents are {list(latents_BCTHW.shape)}; they are to be [clips, {self.shape.latents}, frames, "
                "lines, columns]"
            )
        theirs = self.theirs
        wide = latents_BCTHW.to(theirs.device, theirs.dtype)
        mean, std = (wide.new_tensor(each).view(1, -1, 1, 1, 1) for each in (self.shape.mean, self.shape.std))
        theirs.clear_cache()
        # What convolutions keep of earlier frames. Of this clip alone: another may be decoded between two parts.
        kept = list(theirs._feat_map)
        for number, frame in enumerate(theirs.post_quant_conv(wide * std + mean).split(1, dim=2)):
            pixels = theirs.decoder(frame, feat_cache=kept, feat_idx=[0], first_chunk=number == 0)
            yield self._unpacked(pixels).float().clamp(-1, 1).cpu()

    def _unpacked(self, pixels: Tensor) -> Tensor:
        """Wan 2.2 decodes a square of pixels into channels: they are put back into their places."""
        side = self.theirs.config.patch_size
        if not side or side == 1:
            return pixels
        clips, channels, frames, height, width = pixels.shape
        cut = pixels.view(clips, channels // side**2, side, side, frames, height, width)
        return cut.permute(0, 1, 4, 5, 3, 6, 2).reshape(clips, -1, frames, height * side, width * side)


def load_video_autoencoder(model: ModelSource | str, dtype: torch.dtype = torch.float32) -> VideoAutoencoder:
    """The VAE of a folder, its weights in fp32 or bf16. Raises ModelRefused in one line: another class, a config that
    does not say how latents are normalised, a file that is missing or broken, no diffusers.
    """
    source = as_source(model)
    shape = shape_of(source.config)
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a catalogue config without weights; give a checkpoint folder")
    theirs = _class(source.name)
    for path in source.folder.glob("*.safetensors"):
        refuse_pointer(path)  # diffusers would call it broken
    try:
        filled = theirs.from_pretrained(
            str(source.folder), torch_dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        said = " ".join(str(error).split())
        raise ModelRefused(f"{source.folder}: diffusers cannot load it ({said[:200]}); fetch it again") from None
    return VideoAutoencoder(filled.eval().requires_grad_(False), shape, source.config)


def shape_of(fields: Fields) -> VideoLatentShape:
    """What a config says of latents. Raises ModelRefused."""
    if fields.architecture != ARCHITECTURE:
        called = fields.architecture or "(none)"
        raise fields.refuse(f"architecture {called} is no VAE of clips that is built; {ARCHITECTURE} is")
    channels = fields.count("z_dim", 16)
    mean, std = (_numbers(fields, name, channels) for name in ("latents_mean", "latents_std"))
    if min(std) <= 0:
        raise fields.refuse("latents_std holds a number that is not above 0")
    return VideoLatentShape(
        fields.count("scale_factor_spatial", 8), fields.count("scale_factor_temporal", 4), mean, std
    )


def _numbers(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    values = fields.value(name)
    if not isinstance(values, list) or len(values) != count:
        raise fields.refuse(f"{name} is not {count} numbers, one a channel")
    if not all(isinstance(each, int | float) and abs(each) < float("inf") for each in values):
        raise fields.refuse(f"{name} holds what is no finite number")
    return tuple(map(float, values))


def _class(name: str) -> Any:
    """Diffusers' class. Imported here: it takes seconds. Raises ModelRefused where it is not installed."""
    logger = logging.getLogger("diffusers")
    try:
        from diffusers import AutoencoderKLWan
    except ImportError as error:
        raise ModelRefused(f"the VAE of {name} needs diffusers: {PIP} ({error})") from None
    logger.setLevel(logging.ERROR)  # it warns of arguments that it does not need
    return AutoencoderKLWan
