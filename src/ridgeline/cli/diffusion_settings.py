"""How a command draws: what its options say of files, tiles, previews and processes, not of the picture itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ridgeline.cli.image_files import IMAGE_MEDIUM, Medium
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.number_formats import BF16, FP32
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.engine.placement import device_named
from ridgeline.media.diffusion.decoding import choose_tiling, tiles_of
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder
from ridgeline.util.host import available_memory, total_memory

AUTO, OFF = "auto", "off"
_DTYPES = (FP32, BF16)


def denoiser_dtype(name: str | None) -> torch.dtype | None:
    """Return the dtype that `image --dtype` names; None for that of the stored weights. Raises ValueError."""
    if name is None or name == AUTO:
        return None
    found = next((known for known in _DTYPES if known.is_called(name)), None)
    if found is None:
        raise ValueError(f"--dtype is {name!r}; give {', '.join(known.name for known in _DTYPES)} or {AUTO}")
    return found.dtype


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """How pictures or clips are drawn, decoded, shown and written.

    Args:
        output: the file; None for one named by model and seed.
        force: whether files that are there are written over.
        tile: auto, off, or latents on a side of a tile, of pictures.
        keep_latents: whether latents stay when they are decoded.
        preview: steps from one preview to the next; 0 for none.
        cfg_parallel: whether two processes share the passes of guided steps.
        compiled: whether torch compiles the denoiser's blocks first.
        as_json: whether the result is said as JSON, in place of the names of files.
        medium: pictures or clips.
        device: where they are drawn, as `placement.device_named` has it.

    Raises ValueError for settings that cannot be, or not together.
    """

    output: Path | None
    force: bool
    tile: str
    keep_latents: bool
    preview: int
    cfg_parallel: bool
    compiled: bool
    as_json: bool
    medium: Medium = IMAGE_MEDIUM
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.place.type != "cpu" and (self.compiled or self.cfg_parallel):
            one = "--compile" if self.compiled else "--cfg-parallel"
            raise ValueError(f"{one} is for the processor; leave it out, or --device")
        if self.compiled and self.cfg_parallel:
            raise ValueError("--compile is for one process; leave it out, or --cfg-parallel")
        if self.preview < 0:
            raise ValueError(f"--preview is {self.preview}; give the steps between two, 1 or more")
        if self.tile not in (AUTO, OFF) and not (self.tile.isdecimal() and 1 <= int(self.tile) <= 1 << 16):
            raise ValueError(f"--tile is {self.tile!r}; give auto, off, or latents on a side, as 64")

    @property
    def place(self) -> torch.device:
        """Where pictures are drawn. Raises ValueError."""
        return device_named(self.device)

    def tiling(self, autoencoder: AutoencoderKL | VideoAutoencoder, latents: Sequence[int]) -> Tiling | None:
        """How latents of this shape are decoded: None for whole, as a clip's are, frame by frame. Raises ValueError
        where there is no memory for any way.
        """
        if self.tile == OFF:
            return None
        assert isinstance(autoencoder, AutoencoderKL), "clips are not decoded in tiles"
        grid = PixelGrid(1, *latents[-2:])
        return choose_tiling(autoencoder, grid, _free(self.place)) if self.tile == AUTO else tiles_of(int(self.tile))


def _free(place: torch.device) -> float:
    if place.type == "cuda":
        return float(torch.cuda.mem_get_info(place)[0])
    try:
        return available_memory()
    except ValueError:  # this system does not say what is free, but what it has
        return total_memory()
