"""Geometry: how many pixels, latents and tokens a picture or a clip has.

A VAE makes one latent of a square of pixels, and of several frames of a clip; a denoiser makes one token of a patch of
latents. At 1024 x 1024 with 8 x 8 pixels a latent and patches of 2 x 2 that is 128 x 128 latents and 4,096 tokens. What
tokens a denoiser adds to them, and where each stands, is the denoiser's own.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override


class Size(NamedTuple):
    """Of a picture, in pixels."""

    width: int
    height: int

    @override
    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @classmethod
    def parse(cls, text: str) -> "Size":
        """A size as people write it, 1024x768: the width first. Raises ValueError for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,4})[x×]([1-9]\d{0,4})", text.strip().lower(), re.ASCII)
        if match is None:
            raise ValueError(f"size {text[:40]!r}: it must be width x height in pixels, as 1024x768")
        return cls(int(match[1]), int(match[2]))


RATIOS = ((1, 1), (4, 3), (3, 2), (16, 9), (3, 4), (2, 3), (9, 16))
GRAIN = 32  # pixels: a multiple of what any of these VAEs and patches take together


def menu(sides: Iterable[int]) -> tuple[Size, ...]:
    """Sizes of about side * side pixels each, in every one of RATIOS, in multiples of GRAIN."""

    def near(pixels: float) -> int:
        return round(pixels / GRAIN) * GRAIN

    return tuple(
        Size(near(side * math.sqrt(w / h)), near(side * math.sqrt(h / w))) for side in sides for w, h in RATIOS
    )


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """How a model lays out pictures: what its VAE and its patches make of pixels, and what sizes it takes.

    Args:
        channels: of a latent.
        sizes: what may be asked for, the usual one first.
        spatial: pixels on a side of a latent.
        temporal: frames in a latent, but for the first, which is a clip's first frame alone.
        patch: latents that become one token: frames, rows, columns.
        most_frames: of a clip; 1 for models of pictures.
    """

    channels: int
    sizes: tuple[Size, ...]
    spatial: int = 8
    temporal: int = 1
    patch: tuple[int, int, int] = (1, 2, 2)
    most_frames: int = 1

    @property
    def clips(self) -> bool:
        """Whether latents have frames."""
        return self.most_frames > 1

    def __post_init__(self) -> None:
        _, rows, columns = self.patch
        wrong = [
            size for size in self.sizes if size.height % (self.spatial * rows) or size.width % (self.spatial * columns)
        ]
        assert not wrong, f"sizes that patches do not cover: {wrong}"

    def geometry(self, size: Size, frames: int = 1) -> "Geometry":
        """What a picture of this size, or a clip of so many frames of it, comes to.

        Raises ValueError for a size that is not on the menu, and for frames that the VAE cannot make.
        """
        self.check_size(size)
        if not 1 <= frames <= self.most_frames:
            most = f"1 to {self.most_frames:,} frames" if self.clips else "pictures alone"
            raise ValueError(f"{frames} frames: this model makes {most}")
        if (frames - 1) % self.temporal:
            below = frames - (frames - 1) % self.temporal
            raise ValueError(
                f"{frames} frames: {self.temporal}k + 1 can be made, as {below} or {below + self.temporal}"
            )
        return Geometry(self, size, frames)

    def check_size(self, size: Size) -> None:
        """Raises ValueError for a size that is not on the menu."""
        if size not in self.sizes:
            raise ValueError(f"size {size} is not one of this model's: {', '.join(map(str, self.sizes))}")


@dataclass(frozen=True, slots=True)
class Geometry:
    """One request's shapes."""

    layout: PipelineLayout
    size: Size
    frames: int

    @property
    def latents(self) -> tuple[int, ...]:
        """The shape of one picture's latents, channels, rows, columns; of a clip's, channels, frames, rows, columns."""
        frames, rows, columns = self._counts
        return (self.layout.channels, *((frames,) if self.layout.clips else ()), rows, columns)

    @property
    def parts(self) -> int:
        """In how many parts a decode comes: a picture in one, a clip in one for each of its frames of latents."""
        return self._counts[0]

    @property
    def _counts(self) -> tuple[int, int, int]:
        """Latents along frames, rows and columns."""
        layout = self.layout
        frames = 1 + (self.frames - 1) // layout.temporal
        return frames, self.size.height // layout.spatial, self.size.width // layout.spatial

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens along frames, rows and columns."""
        frames, rows, columns = (count // patch for count, patch in zip(self._counts, self.layout.patch, strict=True))
        return frames, rows, columns

    @property
    def tokens(self) -> int:
        """Patches of the latents."""
        return math.prod(self.grid)

    @property
    def pixel_bytes(self) -> int:
        """Bytes of the pixels of all frames: red, green and blue, a byte each."""
        return 3 * self.frames * self.size.width * self.size.height


# -- released models --------------------------------------------------------------------------------------------------

_WAN_480P = (Size(832, 480), Size(480, 832))
_WAN_720P = (Size(1280, 720), Size(720, 1280))
_WAN_FRAMES = 4 * 1023 + 1  # its rotary table has 1,024 places an axis

LAYOUTS = {
    "z-image": PipelineLayout(16, menu((1024, 512, 2048))),
    "flux.1": PipelineLayout(16, menu((1024, 512, 2048))),
    # Its VAE's 32 channels are packed 2 x 2 before anything else sees them.
    "flux.2": PipelineLayout(128, menu((1024, 512, 2048)), spatial=16, patch=(1, 1, 1)),
    "pixart-1024": PipelineLayout(4, menu((1024,))),
    "wan-480p": PipelineLayout(16, _WAN_480P, temporal=4, most_frames=_WAN_FRAMES),
    "wan-720p": PipelineLayout(16, (*_WAN_480P, *_WAN_720P), temporal=4, most_frames=_WAN_FRAMES),
    # 22.5 patches of 32 x 32 pixels would cover 720 rows, so it makes 704.
    "wan2.2-5b": PipelineLayout(
        48, (Size(1280, 704), Size(704, 1280), *_WAN_480P), spatial=16, temporal=4, most_frames=_WAN_FRAMES
    ),
}
"""By family and, where its releases take different sizes, by release."""
