"""Videos as files: MP4, GIF or WebP, or a folder of PNG files, with the parameters of the video as metadata.

MP4 is H.264 (extra `images`) at a quality that looks identical to the frames; the comment contains the parameters. GIF
has 256 colours per frame and times in hundredths of a second; the comment contains the parameters. WebP stores them in
EXIF. Each PNG of a folder has all the metadata of an image, and its frame number.

Shapes: C channels, F frames, H, W rows and columns.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from ridgeline.media.diffusion.image_file import encode_image, pillow_options, to_image
from ridgeline.media.diffusion.video_autoencoder import PIP

FORMATS = {".mp4": "MP4", ".gif": "GIF", ".webp": "WEBP"}
"""The video formats by file suffix; a name without a suffix is a folder of PNG files."""
FPS = 16.0
"""The default number of frames per second."""
MAX_FPS = 240.0
_CRF = "18"  # x264's documentation calls it visually lossless or nearly so
_WEBP_QUALITY = 90


def video_format_of(path: Path) -> str:
    """Return the format of a video by its file name, "" for a folder of frames.

    Raises:
        ValueError: If the suffix is unknown, or the format is MP4 and PyAV is not installed.
    """
    suffix = path.suffix.lower()
    if suffix and suffix not in FORMATS:
        raise ValueError(
            f"{path}: videos are written as {', '.join(FORMATS)}, or as a folder of png files; give one of these"
        )
    format_ = FORMATS.get(suffix, "")
    check_format(format_)
    return format_


def check_format(format_: str) -> None:
    """Raise ValueError if a video format is MP4 and PyAV, the package that writes it, is not installed."""
    if format_ == "MP4":
        _av()


def default_video_format() -> str:
    """Return MP4 if the package that writes it is installed, else WebP, which has full colour."""
    try:
        _av()
    except ValueError:
        return "WEBP"
    return "MP4"


def check_fps(fps: float) -> None:
    """Raise ValueError if a number of frames per second is not finite, positive and at most MAX_FPS."""
    if not (math.isfinite(fps) and 0 < fps <= MAX_FPS):
        raise ValueError(f"the frame rate is {fps}; give frames per second above 0 and at most {MAX_FPS}")


def write_video(
    out: IO[bytes], chunks_CFHW: Iterable[Tensor], format_: str, fps: float, parameters: Mapping[str, Any]
) -> None:
    """Write the frames of a video to a file.

    MP4 is written as the frames arrive; the other formats hold all frames in memory, 3 bytes per pixel.

    Args:
        out: Seekable file.
        chunks_CFHW: Frames in order, any number in each part, with pixels from -1 to 1.
        format_: One of the values of FORMATS.
        fps: Frames per second.
        parameters: Parameters of the video for its metadata.

    Raises:
        ValueError: If `fps` is out of range, the frames have neither 1 nor 3 channels, or MP4 is requested without PyAV
            installed.
    """
    check_fps(fps)
    frames = (frame for chunk in chunks_CFHW for frame in chunk.unbind(1))
    if format_ == "MP4":
        _write_mp4(out, frames, fps, parameters)
        return
    first, *others = (to_image(frame) for frame in frames)
    duration = max(1, round(1000 / fps))
    if format_ == "GIF":
        options: dict[str, Any] = {"comment": json.dumps(parameters).encode(), "optimize": False, "disposal": 1}
    else:
        options = {**pillow_options("WEBP", parameters), "lossless": False, "quality": _WEBP_QUALITY}
    first.save(out, format_, save_all=True, append_images=others, duration=duration, loop=0, **options)


def encode_frames(chunks_CFHW: Iterable[Tensor], parameters: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield each frame of a video as a PNG file; for the chunks see `write_video`."""
    frames = (frame for chunk in chunks_CFHW for frame in chunk.unbind(1))
    for number, frame in enumerate(frames, 1):
        yield encode_image(frame, "PNG", {**parameters, "frame": number})


def _write_mp4(out: IO[bytes], frames_CHW: Iterator[Tensor], fps: float, parameters: Mapping[str, Any]) -> None:
    av = _av()
    with av.open(out, "w", format="mp4", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata["comment"] = json.dumps(parameters)
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.pix_fmt, stream.options = "yuv420p", {"crf": _CRF}
        for number, frame in enumerate(frames_CHW):
            image = to_image(frame).convert("RGB")
            if number == 0:
                # 4:2:0 subsampling stores one colour for every 2 x 2 pixels, so both sides must be even.
                stream.width, stream.height = (side - side % 2 for side in image.size)
            for packet in stream.encode(av.VideoFrame.from_image(image.crop((0, 0, stream.width, stream.height)))):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _av() -> Any:
    """Import and return PyAV; the import is local because only MP4 needs it.

    Raises:
        ValueError: If PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ValueError(
            f"writing mp4 needs the package av: {PIP} ({error}); gif, webp and a folder of png files do not need it"
        ) from None
    return av
