"""The files of drawn pictures: names, and what is written while they are drawn and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ridgeline.diffusion.picture import encode_picture, format_of
from ridgeline.diffusion.saved_latents import latents_path, save_latents
from ridgeline.files import check_new, check_writable, write_whole


def numbered(output: Path, count: int) -> list[Path]:
    """One name a picture: the name itself for one, NAME-1, NAME-2 and so on for several, as many digits in each."""
    if count == 1:
        return [output]
    width = len(str(count))
    return [output.with_name(f"{output.stem}-{number:0{width}}{output.suffix}") for number in range(1, count + 1)]


def check_files(pictures: Sequence[Path], *, force: bool) -> None:
    """As `check_pictures`, and the same of their latents."""
    check_pictures(pictures, force=force)
    for path in map(latents_path, pictures):
        _check(path, force=force)


def check_pictures(pictures: Sequence[Path], *, force: bool) -> None:
    """Refuse, before work is done, names of pictures that could not be written after it, or that are there already.
    Raises ValueError."""
    for path in pictures:
        format_of(path)
        _check(path, force=force)


def _check(path: Path, *, force: bool) -> None:
    if not force:
        check_new(path)
    check_writable(path)


@dataclass(frozen=True, slots=True)
class PictureFile:
    """One picture's file and, until it is decoded, its latents'."""

    path: Path
    parameters: Mapping[str, Any]

    @property
    def latents(self) -> Path:
        """Where its latents lie."""
        return latents_path(self.path)

    def save_latents(self, latents_CHW: Tensor, **more: Any) -> None:
        """Keep latents until there is a picture. more: what else is said of them."""
        save_latents(self.latents, latents_CHW, {**self.parameters, **more})

    def write(self, pixels_CHW: Tensor, **more: Any) -> None:
        """Write the picture. more: what else is said of it."""
        write_whole(self.path, encode_picture(pixels_CHW, format_of(self.path), {**self.parameters, **more}))
