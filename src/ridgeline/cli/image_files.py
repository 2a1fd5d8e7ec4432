"""The output files of images and videos, and of their latents."""

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
    """The output file of one image or video and, until it is decoded, the file of its latents."""

    path: Path
    parameters: Mapping[str, Any]
    """The generation parameters, which are stored as metadata."""

    @property
    def latents(self) -> Path:
        """The path of the file that holds the latents until they are decoded."""
        return latents_path(self.path)

    def save_latents(self, latents: Tensor, **more: Any) -> None:
        """Save the latents of an image or video until they are decoded, with `more` metadata."""
        save_latents(self.latents, latents, {**self.parameters, **more})

    @abstractmethod
    def write(self, parts: Iterable[Tensor], **more: Any) -> None:
        """Write the image or video to its file.

        Args:
            parts: The pixels, as `decode_parts` yields them.
            more: Further metadata.
        """


class ImageFile(MediaFile):
    """The output file of one image."""

    @override
    def write(self, parts: Iterable[Tensor], **more: Any) -> None:
        """Write the image, which has a single part; see `MediaFile.write`."""
        (pixels,) = parts
        write_whole(self.path, encode_image(pixels, format_of(self.path), {**self.parameters, **more}))


@dataclass(frozen=True, slots=True)
class VideoFile(MediaFile):
    """The output file of one video, or a folder of its frames if the name has no suffix."""

    fps: float
    """The frames per second of the video."""

    @override
    def write(self, parts: Iterable[Tensor], **more: Any) -> None:
        """Write the video frame by frame as its parts arrive; see `MediaFile.write`."""
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
    """The kind of output of a command: images or videos."""

    command: str
    """The name of the command that generates this medium."""
    suffix: str
    """The suffix of the default name of an output file."""
    make: Callable[[Path, Mapping[str, Any]], MediaFile]
    """A function that creates the output file object for a path and generation parameters."""
    check: Callable[[Path], object]
    """A function that raises ValueError for an unsupported file name."""


IMAGE_MEDIUM = Medium("image", ".png", ImageFile, format_of)


def video_medium(fps: float) -> Medium:
    """Return the medium for videos of `fps` frames per second.

    Raises:
        ValueError: If `fps` is out of range.
    """
    check_fps(fps)
    return Medium("video", ".mp4", partial(VideoFile, fps=fps), video_format_of)


def numbered(output: Path, count: int) -> list[Path]:
    """Return `count` file names: the given one, or NAME-1, NAME-2 and so on with equally many digits."""
    if count == 1:
        return [output]
    width = len(str(count))
    return [output.with_name(f"{output.stem}-{number:0{width}}{output.suffix}") for number in range(1, count + 1)]


def check_media_outputs(paths: Sequence[Path], medium: Medium, *, force: bool, latents: bool = False) -> None:
    """Raise ValueError, before any work is done, if an output could not be written or exists without `force`.

    Args:
        paths: The output files.
        medium: The medium of the output files.
        force: Whether existing files may be overwritten.
        latents: Whether the files of their latents are written too.
    """
    for path in paths:
        medium.check(path)
    for path in [*paths, *(map(latents_path, paths) if latents else ())]:
        if not force:
            check_new(path)
        check_writable(path)
