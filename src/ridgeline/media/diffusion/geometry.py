"""Geometry: the numbers of pixels, latents and tokens of an image or a video.

A VAE makes one latent from a square of pixels, and from several frames of a video; a denoiser makes one token from a
patch of latents. At 1024 x 1024, with 8 x 8 pixels per latent and patches of 2 x 2, that is 128 x 128 latents and 4,096
tokens. The denoiser itself defines which tokens it adds and their positions.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override


class Size(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    @override
    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Return the size that a text like 1024x768 states, width first.

        Raises:
            ValueError: If the text is anything else.
        """
        match = re.fullmatch(r"([1-9]\d{0,4})[x×]([1-9]\d{0,4})", text.strip().lower(), re.ASCII)
        if match is None:
            raise ValueError(f"size {text[:40]!r}: write width x height in pixels, like 1024x768")
        return cls(int(match[1]), int(match[2]))


RATIOS = ((1, 1), (4, 3), (3, 2), (16, 9), (3, 4), (2, 3), (9, 16))
GRAIN = 32  # pixels: a multiple of the pixels per token side in all these models


def sizes_of_sides(sides: Iterable[int]) -> tuple[Size, ...]:
    """Return image sizes of about side * side pixels, for each side in seven aspect ratios.

    The ratios are RATIOS; widths and heights are multiples of GRAIN.
    """

    def near(pixels: float) -> int:
        return round(pixels / GRAIN) * GRAIN

    return tuple(
        Size(near(side * math.sqrt(w / h)), near(side * math.sqrt(h / w))) for side in sides for w, h in RATIOS
    )


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """The mapping of a model from pixels to latents and tokens, and the image sizes that it supports."""

    channels: int
    """The number of channels of a latent."""
    sizes: tuple[Size, ...]
    """The image sizes that a request may have, the default first."""
    spatial: int = 8
    """The pixels per latent along each side."""
    temporal: int = 1
    """The frames per latent, except that the first latent has only a video's first frame."""
    patch: tuple[int, int, int] = (1, 2, 2)
    """The latents that become one token of the denoiser, as numbers of frames, rows and columns."""
    max_frames: int = 1
    """The maximum number of frames of a video; 1 for image models."""

    @property
    def is_video(self) -> bool:
        """Whether the model makes videos, so that latents have a frame axis."""
        return self.max_frames > 1

    def __post_init__(self) -> None:
        _, rows, columns = self.patch
        wrong = [
            size for size in self.sizes if size.height % (self.spatial * rows) or size.width % (self.spatial * columns)
        ]
        assert not wrong, f"sizes that are not a multiple of the patch size: {wrong}"

    def geometry(self, size: Size, frames: int = 1) -> "Geometry":
        """Return the shapes of an image of this size, or of a video with this number of frames.

        Raises:
            ValueError: If the model does not support the size or the number of frames.
        """
        self.check_size(size)
        if not 1 <= frames <= self.max_frames:
            most = f"1 to {self.max_frames:,} frames" if self.is_video else "only images"
            raise ValueError(f"this model cannot make {frames} frames: it makes {most}")
        if (frames - 1) % self.temporal:
            below = frames - (frames - 1) % self.temporal
            raise ValueError(
                f"this model cannot make {frames} frames: the number must be {self.temporal}k + 1, like {below} or "
                f"{below + self.temporal}"
            )
        return Geometry(self, size, frames)

    def check_size(self, size: Size) -> None:
        """Raise ValueError if the model does not support a size."""
        if size not in self.sizes:
            raise ValueError(f"this model cannot make size {size}; give one of {', '.join(map(str, self.sizes))}")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shapes of one image or video: pixels, latents and tokens."""

    layout: PipelineLayout
    size: Size
    frames: int

    @property
    def latents(self) -> tuple[int, ...]:
        """The shape of one image's latents (channels, rows, columns) or a video's (channels, frames, rows, columns)."""
        frames, rows, columns = self._counts
        return (self.layout.channels, *((frames,) if self.layout.is_video else ()), rows, columns)

    @property
    def parts(self) -> int:
        """The number of parts in which the VAE decodes: 1 for an image, one per latent frame for a video."""
        return self._counts[0]

    @property
    def _counts(self) -> tuple[int, int, int]:
        """The numbers of latents along frames, rows and columns."""
        layout = self.layout
        frames = 1 + (self.frames - 1) // layout.temporal
        return frames, self.size.height // layout.spatial, self.size.width // layout.spatial

    @property
    def grid(self) -> tuple[int, int, int]:
        """The numbers of tokens along frames, rows and columns."""
        frames, rows, columns = (count // patch for count, patch in zip(self._counts, self.layout.patch, strict=True))
        return frames, rows, columns

    @property
    def tokens(self) -> int:
        """The number of tokens of an image or video: the patches of its latents."""
        return math.prod(self.grid)

    @property
    def pixel_bytes(self) -> int:
        """The bytes of the RGB pixels of all frames, one byte per colour."""
        return 3 * self.frames * self.size.width * self.size.height


# -- released models --------------------------------------------------------------------------------------------------

_WAN_480P = (Size(832, 480), Size(480, 832))
_WAN_720P = (Size(1280, 720), Size(720, 1280))
_WAN_FRAMES = 4 * 1023 + 1  # its rotary table has 1,024 positions per axis

LAYOUTS = {
    "z-image": PipelineLayout(16, sizes_of_sides((1024, 512, 2048))),
    "flux.1": PipelineLayout(16, sizes_of_sides((1024, 512, 2048))),
    # The VAE's 32 channels are packed 2 x 2 first, so the denoiser sees 128.
    "flux.2": PipelineLayout(128, sizes_of_sides((1024, 512, 2048)), spatial=16, patch=(1, 1, 1)),
    "pixart-1024": PipelineLayout(4, sizes_of_sides((1024,))),
    "wan-480p": PipelineLayout(16, _WAN_480P, temporal=4, max_frames=_WAN_FRAMES),
    "wan-720p": PipelineLayout(16, (*_WAN_480P, *_WAN_720P), temporal=4, max_frames=_WAN_FRAMES),
    # 720 rows would be 22.5 patches of 32 x 32 pixels, so the model makes 704.
    "wan2.2-5b": PipelineLayout(
        48, (Size(1280, 704), Size(704, 1280), *_WAN_480P), spatial=16, temporal=4, max_frames=_WAN_FRAMES
    ),
}
"""The pixel, latent and token layouts of released diffusion models, with their image sizes.

The keys are families or, if the releases of a family support different sizes, groups of its releases.
"""
