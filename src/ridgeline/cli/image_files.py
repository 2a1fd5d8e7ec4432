"""The files of what is drawn: names, and what is written while it is drawn and after."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import override

from ridgeline.media.diffusion.image_file import encode_image, format_of
from ridgeline.media.diffusion.saved_latents import latents_path, save_latents
from ridgeline.media.diffusion.video_file import check_fps, encode_frames, video_format_of, write_video
from ridgeline.util.files import check_new, check_writable, whole_file, write_whole


@dataclass(frozen=True, slots=True)
class MediaFile(ABC):
    """One picture's or one clip's file and, until it is decoded, its latents'. parameters: what it is drawn from."""

    path: Path
    parameters: Mapping[str, Any]

    @property
    def latents(self) -> Path:
        """Where its latents lie."""
        return latents_path(self.path)

    def save_latents(self, latents: Tensor, **more: Any) -> None:
        """Keep latents until they are decoded. more: what else is said of them."""
        save_latents(self.latents, latents, {**self.parameters, **more})

    @abstractmethod
    def write(self, parts: Iterable[Tensor], **more: Any) -> None:
        """Write it. parts: its pixels, as `decode_parts` gives them. more: what else is said of it."""


class ImageFile(MediaFile):
    """One picture's."""

    @override
    def write(self, parts: Iterable[Tensor], **more: Any) -> None:
        """As MediaFile.write, of one part."""
        (pixels,) = parts
        write_whole(self.path, encode_image(pixels, format_of(self.path), {**self.parameters, **more}))


@dataclass(frozen=True, slots=True)
class VideoFile(MediaFile):
    """One clip's, of so many frames a second; a name without a suffix is a folder of its frames."""

    fps: float

    @override
    def write(self, parts: Iterable[Tensor], **more: Any) -> None:
        """As MediaFile.write, frame by frame as the parts come."""
        parameters, format_ = {**self.parameters, "fps": self.fps, **more}, video_format_of(self.path)
        if format_:
            with whole_file(self.path) as file:
                write_video(file, parts, format_, self.fps, parameters)
            return
        self.path.mkdir(exist_ok=True)
        for number, content in enumerate(encode_frames(parts, parameters), 1):
            write_whole(self.path / f"{number:05}.png", content)


@dataclass(frozen=True, slots=True)
class Medium:
    """What a command draws: pictures or clips.

    command: its name. noun: what one of them is called. suffix: of a file that nobody named. make: its file. check:
    refuses a name that none of them has.
    """

    command: str
    noun: str
    suffix: str
    make: Callable[[Path, Mapping[str, Any]], MediaFile]
    check: Callable[[Path], object]


IMAGE_MEDIUM = Medium("image", "picture", ".png", ImageFile, format_of)


def video_medium(fps: float) -> Medium:
    """Clips of so many frames a second. Raises ValueError for a number that cannot be."""
    check_fps(fps)
    return Medium("video", "clip", ".mp4", partial(VideoFile, fps=fps), video_format_of)


def numbered(output: Path, count: int) -> list[Path]:
    """One name each: the name itself for one, NAME-1, NAME-2 and so on for several, as many digits in each."""
    if count == 1:
        return [output]
    width = len(str(count))
    return [output.with_name(f"{output.stem}-{number:0{width}}{output.suffix}") for number in range(1, count + 1)]


def check_files(paths: Sequence[Path], medium: Medium, *, force: bool) -> None:
    """As `check_outputs`, and the same of their latents."""
    check_outputs(paths, medium, force=force)
    for path in map(latents_path, paths):
        _check(path, force=force)


def check_outputs(paths: Sequence[Path], medium: Medium, *, force: bool) -> None:
    """Refuse, before work is done, names that could not be written after it, or that are there already. Raises
    ValueError.
    """
    for path in paths:
        medium.check(path)
        _check(path, force=force)


def _check(path: Path, *, force: bool) -> None:
    if not force:
        check_new(path)
    check_writable(path)
