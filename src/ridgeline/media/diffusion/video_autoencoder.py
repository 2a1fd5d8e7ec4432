"""The VAE of videos, AutoencoderKLWan, which diffusers computes (the extra `images`).

Its causal convolutions over time have nothing in common with the ops of this package. Latents are those of the
denoiser: this module alone applies the mean and the standard deviation of each channel, which the config states.

Shapes: B videos, C channels of latents, T latent frames, H, W rows and columns of latents.
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

VIDEO_AUTOENCODER = "AutoencoderKLWan"
PIP = "pip install 'ridgeline[images]'"


@dataclass(frozen=True, slots=True)
class VideoLatentShape:
    """The properties of latents that a video VAE's config states."""

    spatial: int
    """The pixels per latent along each side."""
    temporal: int
    """The frames per latent frame, except that the first latent frame has only the first frame."""
    mean: tuple[float, ...]
    """The mean of each latent channel."""
    std: tuple[float, ...]
    """The standard deviation of each latent channel."""

    @property
    def latents(self) -> int:
        """The number of channels of a latent."""
        return len(self.mean)

    def frames(self, latents: int) -> int:
        """Return the number of frames of a video with `latents` latent frames."""
        return 1 + self.temporal * (latents - 1)


class VideoAutoencoder:
    """The decoder of an AutoencoderKLWan, of Wan 2.1 or 2.2."""

    def __init__(self, theirs: Any, shape: VideoLatentShape, config: Fields) -> None:
        """Wrap diffusers' video VAE.

        Args:
            theirs: Model of diffusers with its weights.
            shape: Properties of its latents.
            config: Its config.json.
        """
        self.theirs, self.shape, self.config = theirs, shape, config

    @property
    def factor(self) -> int:
        """The pixels per latent along each side."""
        return self.shape.spatial

    @property
    def channels(self) -> int:
        """The number of channels of a latent."""
        return self.shape.latents

    def parameters(self) -> Iterator[Tensor]:
        """Return an iterator over the VAE's weights."""
        found: Iterator[Tensor] = self.theirs.parameters()
        return found

    @torch.inference_mode()
    def decode(self, latents_BCTHW: Tensor, tiling: Tiling | None = None) -> Tensor:
        """Return the pixels of a denoiser's latents: fp32 [B, 3, frames, rows, columns] from -1 to 1.

        Args:
            latents_BCTHW: Latents [B, C, T, H, W].
            tiling: Always None, because `chunks` limits the memory.

        Raises:
            ValueError: If the latents belong to another model.
        """
        assert tiling is None, "videos are decoded frame by frame"
        return torch.cat(list(self.chunks(latents_BCTHW)), dim=2)

    @torch.inference_mode()
    def chunks(self, latents_BCTHW: Tensor) -> Iterator[Tensor]:
        """Yield the pixels of latents in parts [B, 3, frames, rows, columns].

        The first part is the first frame, each further part the frames of one latent frame. So the memory does not grow
        with the length of the video.

        Raises:
            ValueError: If the latents belong to another model.
        """
        if latents_BCTHW.dim() != 5 or latents_BCTHW.shape[1] != self.shape.latents or not latents_BCTHW.numel():
            raise ValueError(
                f"latents have the shape {list(latents_BCTHW.shape)}, but must be [videos, {self.shape.latents}, "
                "frames, rows, columns]"
            )
        theirs = self.theirs
        wide = latents_BCTHW.to(theirs.device, theirs.dtype)
        mean, std = (wide.new_tensor(each).view(1, -1, 1, 1, 1) for each in (self.shape.mean, self.shape.std))
        theirs.clear_cache()
        # The convolutions' cache of earlier frames. Each video has its own, because two decodes may alternate.
        kept = list(theirs._feat_map)
        for number, frame in enumerate(theirs.post_quant_conv(wide * std + mean).split(1, dim=2)):
            pixels = theirs.decoder(frame, feat_cache=kept, feat_idx=[0], first_chunk=number == 0)
            yield self._unpacked(pixels).float().clamp(-1, 1).cpu()

    def _unpacked(self, pixels: Tensor) -> Tensor:
        """Return decoded pixels whose channels are unpacked into squares of pixels, as Wan 2.2 requires."""
        side = self.theirs.config.patch_size
        if not side or side == 1:
            return pixels
        videos, channels, frames, height, width = pixels.shape
        cut = pixels.view(videos, channels // side**2, side, side, frames, height, width)
        return cut.permute(0, 1, 4, 5, 3, 6, 2).reshape(videos, -1, frames, height * side, width * side)


def load_video_autoencoder(model: ModelSource | str, dtype: torch.dtype = torch.float32) -> VideoAutoencoder:
    """Load the video VAE of a folder with its weights in `dtype`, fp32 or bf16.

    Raises:
        ModelRefused: If it is another class, the config does not state how latents are normalised, a file is missing or
            broken, or diffusers is not installed. The message is one line.
    """
    source = as_source(model)
    shape = shape_of(source.config)
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a built-in config without weights; give a checkpoint folder")
    theirs = _class(source.name)
    for path in source.folder.glob("*.safetensors"):
        refuse_pointer(path)  # diffusers would report a Git LFS pointer as a broken file
    try:
        filled = theirs.from_pretrained(
            str(source.folder), torch_dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        message = " ".join(str(error).split())
        raise ModelRefused(f"{source.folder}: diffusers cannot load it ({message[:200]}); fetch it again") from None
    return VideoAutoencoder(filled.eval().requires_grad_(False), shape, source.config)


def shape_of(fields: Fields) -> VideoLatentShape:
    """Return the properties of latents that a video VAE's config states.

    Raises:
        ModelRefused: If the class is not supported or a value is invalid.
    """
    if fields.architecture != VIDEO_AUTOENCODER:
        called = fields.architecture or "(none)"
        raise fields.refuse(f"architecture {called} is not a supported video VAE; supported is {VIDEO_AUTOENCODER}")
    channels = fields.count("z_dim", 16)
    mean, std = (_numbers(fields, name, channels) for name in ("latents_mean", "latents_std"))
    if min(std) <= 0:
        raise fields.refuse("latents_std has a number that is not above 0")
    return VideoLatentShape(
        fields.count("scale_factor_spatial", 8), fields.count("scale_factor_temporal", 4), mean, std
    )


def _numbers(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    values = fields.value(name)
    if not isinstance(values, list) or len(values) != count:
        raise fields.refuse(f"{name} must be {count} numbers, one per channel")
    if not all(isinstance(each, int | float) and abs(each) < float("inf") for each in values):
        raise fields.refuse(f"{name} has a value that is not a finite number")
    return tuple(map(float, values))


def _class(name: str) -> Any:
    """Import and return diffusers' AutoencoderKLWan; the import is local because it takes seconds.

    Raises:
        ModelRefused: If diffusers is not installed.
    """
    logger = logging.getLogger("diffusers")
    try:
        from diffusers import AutoencoderKLWan
    except ImportError as error:
        raise ModelRefused(f"the VAE of {name} needs diffusers: {PIP} ({error})") from None
    logger.setLevel(logging.ERROR)  # it warns about arguments that have no effect
    return AutoencoderKLWan
