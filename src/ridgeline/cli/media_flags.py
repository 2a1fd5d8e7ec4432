"""The options of `ridgeline image` and `ridgeline video`, each declared once, as the field that holds its value."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ridgeline.cli import options
from ridgeline.cli.flags import option, panel
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.number_formats import BF16, FP32
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.engine.placement import device_named
from ridgeline.media.diffusion.decoding import choose_tiling, tiles_of
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder
from ridgeline.media.diffusion.video_file import FPS
from ridgeline.util.host import available_memory, total_memory

AUTO, OFF = "auto", "off"
_DTYPES = (FP32, BF16)

_request = panel("Request")


@dataclass(frozen=True, slots=True)
class MediaRequestFlags:
    """The options for the images or videos of a prompt. Each is the field of DiffusionRequest with the same name."""

    negative: str | None = _request("A description of what to avoid; it works only with guidance.", metavar="TEXT")
    frames: int | None = _request(
        {
            "video": "The number of frames; by default the model's usual number. Wan's releases make 4k + 1 frames, 81 "
            "by default."
        }
    )
    size: str | None = _request(
        "WIDTHxHEIGHT in pixels, one of the model's sizes; its default size if left out.", metavar="WxH"
    )
    steps: int | None = _request(
        "The number of denoising steps; by default what the model's folder or its pipeline says."
    )
    guidance: float | None = _request(
        "The guidance scale: how strongly the prompt is followed, on the scale of the model's pipeline. With guidance "
        "each step is two passes."
    )
    second_guidance: float | None = _request({"video": options.SECOND_GUIDANCE})
    step_cache: float | None = _request(
        "Skip all blocks but the first of a pass if the first block's output has changed by less than this share "
        "since the last full pass, like 0.1. Changes the result; off by default.",
        metavar="THRESHOLD",
    )
    seed: int | None = _request(
        "The random seed of the first image or video; number i uses seed + i. By default a random one, which is "
        "printed."
    )
    images: int = _request("The number of images or videos.", "-n", "--n", default=1)


@dataclass(frozen=True, slots=True)
class MediaRunFlags:
    """The options for running a model, decoding its latents and writing its images or videos.

    Raises:
        ValueError: If an option is invalid or cannot be combined with another one.
    """

    fps: float = option(
        {
            "video": "The frames per second of the file; the model does not know them. Wan 2.1 and A14B were trained "
            "on 16, the 5B model on 24."
        },
        default=FPS,
    )
    output: Path | None = option(
        {
            "image": "The file: png, webp (lossless) or jpg; several images are numbered. By default MODEL-SEED.png in "
            "the current folder.",
            "video": "The file: mp4, gif or webp, or a name without a suffix for a folder of png files; several videos "
            "are numbered. By default MODEL-SEED.mp4 in the current folder.",
        },
        "-o",
        "--output",
        metavar="FILE",
    )
    force: bool = option("Overwrite existing files.", default=False)
    tile: str = option(
        {"image": "Decode in tiles of this many latents per side. auto: only if memory is too small; off: never."},
        default=AUTO,
        metavar="auto|off|N",
    )
    preview: int = option(
        {"image": "Every N steps, write a preview (at most 64 latents per side) to the image's file."},
        default=0,
        metavar="N",
    )
    keep_latents: bool = option(
        "Keep the latents next to the file. They are always saved before decoding, and otherwise deleted afterwards.",
        default=False,
    )
    latents: list[Path] | None = option(
        "Decode saved latents instead of generating; give several, or repeat the option. Loads the VAE only.",
        metavar="FILE",
    )
    cfg_parallel: bool = option(
        "Run one of the two passes of each guided step in a second process, with half of the threads each. The result "
        "is the same; the weights are loaded twice.",
        default=False,
    )
    compiled: bool = option(
        "Compile the denoiser's blocks with torch.compile first: takes a minute or more, needs a C++ compiler, and "
        "changes the last bits of the result.",
        "--compile",
        default=False,
    )
    dtype: str | None = option(
        "The dtype of the denoiser: fp32, bf16, or auto for the one it is stored in (the default).", metavar="NAME"
    )
    device: str = option(
        "The device to run on: cpu, cuda, cuda:N for GPU number N, or auto for a GPU if there is one.", default="cpu"
    )
    threads: options.Threads = None
    as_json: options.Json = False
    quiet: bool = option("Print nothing but errors on stderr.", default=False)

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
        """The torch device that runs the model.

        Raises:
            ValueError: If it does not exist.
        """
        return device_named(self.device)

    @property
    def denoiser_dtype(self) -> torch.dtype | None:
        """The dtype of the denoiser, or None for that of the stored weights.

        Raises:
            ValueError: If --dtype is not supported.
        """
        if self.dtype is None or self.dtype == AUTO:
            return None
        found = next((known for known in _DTYPES if known.is_called(self.dtype)), None)
        if found is None:
            raise ValueError(f"--dtype is {self.dtype!r}; give {', '.join(known.name for known in _DTYPES)} or {AUTO}")
        return found.dtype

    def tiling(self, autoencoder: AutoencoderKL | VideoAutoencoder, latents: Sequence[int]) -> Tiling | None:
        """Return the tiles in which to decode latents of this shape, or None to decode images or frames whole.

        Raises:
            ValueError: If the memory suffices neither for whole images nor for tiles.
        """
        if self.tile == OFF or isinstance(autoencoder, VideoAutoencoder):
            return None
        grid = PixelGrid(1, *latents[-2:])
        return choose_tiling(autoencoder, grid, _free(self.place)) if self.tile == AUTO else tiles_of(int(self.tile))


def _free(place: torch.device) -> float:
    if place.type == "cuda":
        return float(torch.cuda.mem_get_info(place)[0])
    try:
        return available_memory()
    except ValueError:  # the system does not report available memory
        return total_memory()
