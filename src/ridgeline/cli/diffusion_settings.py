"""The output settings of a diffusion command: files, tiling, previews and processes, but not the image itself."""

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
    """Return the dtype that `image --dtype` names, or None for that of the stored weights.

    Raises:
        ValueError: If the name is not supported.
    """
    if name is None or name == AUTO:
        return None
    found = next((known for known in _DTYPES if known.is_called(name)), None)
    if found is None:
        raise ValueError(f"--dtype is {name!r}; give {', '.join(known.name for known in _DTYPES)} or {AUTO}")
    return found.dtype


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """The settings for running a pipeline, decoding its latents and writing its output.

    Raises:
        ValueError: If a setting is invalid or cannot be combined with another one.
    """

    output: Path | None
    """The output file; None for a name made of model and seed."""
    force: bool
    """Whether to overwrite existing files."""
    tile: str
    """The size of decoding tiles in latents, "auto" or "off". It applies to images only."""
    keep_latents: bool
    """Whether to keep latents after they are decoded."""
    preview: int
    """The number of steps between previews; 0 for none."""
    cfg_parallel: bool
    """Whether two processes share the passes of guided steps."""
    compiled: bool
    """Whether torch compiles the denoiser's blocks first."""
    as_json: bool
    """Whether to print the result as JSON instead of file names."""
    medium: Medium = IMAGE_MEDIUM
    device: str = "cpu"
    """The device that runs the pipeline, as `placement.device_named` accepts it."""

    def __post_init__(self) -> None:
        if self.place.type != "cpu" and (self.compiled or self.cfg_parallel):
            one = "--compile" if self.compiled else "--cfg-parallel"
            raise ValueError(f"{one} works only on the CPU; leave out {one} or --device")
        if self.compiled and self.cfg_parallel:
            raise ValueError("--compile works only in one process; leave out --compile or --cfg-parallel")
        if self.preview < 0:
            raise ValueError(f"--preview is {self.preview}; give the number of steps between two previews, 1 or more")
        if self.tile not in (AUTO, OFF) and not (self.tile.isdecimal() and 1 <= int(self.tile) <= 1 << 16):
            raise ValueError(f"--tile is {self.tile!r}; give auto, off, or a number of latents per side, like 64")

    @property
    def place(self) -> torch.device:
        """The torch device that runs the pipeline.

        Raises:
            ValueError: If it does not exist.
        """
        return device_named(self.device)

    def tiling(self, autoencoder: AutoencoderKL | VideoAutoencoder, latents: Sequence[int]) -> Tiling | None:
        """Return the tiles in which to decode latents of this shape, or None to decode images or frames whole.

        Raises:
            ValueError: If the memory suffices neither for whole images nor for tiles.
        """
        if self.tile == OFF:
            return None
        assert isinstance(autoencoder, AutoencoderKL), "videos are not decoded in tiles"
        grid = PixelGrid(1, *latents[-2:])
        return choose_tiling(autoencoder, grid, _free(self.place)) if self.tile == AUTO else tiles_of(int(self.tile))


def _free(place: torch.device) -> float:
    if place.type == "cuda":
        return float(torch.cuda.mem_get_info(place)[0])
    try:
        return available_memory()
    except ValueError:  # the system does not report available memory
        return total_memory()
