"""Clips as files: frames in MP4, GIF or WebP, or a folder of PNG, with what they were drawn from inside.

MP4 is H.264 (extra `images`) at a quality that eyes do not tell from the frames; its parameters are in the comment. GIF
has 256 colours a frame and times in hundredths of a second; its parameters are in the comment. WebP keeps EXIF, and
each PNG of a folder has all that a picture's has, and its number.

Shapes: C channels, F frames, H, W lines and columns.
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
"""By the suffix of a file's name; a name without one is a folder of PNG."""
FPS = 16.0
"""Where nobody says it."""
MAX_FPS = 240.0
_CRF = "18"  # of x264, whose documentation calls it visually lossless or nearly so
_WEBP_QUALITY = 90


def video_format_of(path: Path) -> str:
    """The format of a clip by its name, "" for a folder of frames. Raises ValueError for a suffix of another, and where
    what writes it is not installed.
    """
    suffix = path.suffix.lower()
    if suffix and suffix not in FORMATS:
        raise ValueError(f"{path}: clips are written as {', '.join(FORMATS)}, or as a folder of png; give one of these")
    format_ = FORMATS.get(suffix, "")
    check_format(format_)
    return format_


def check_format(format_: str) -> None:
    """Raises ValueError for a format whose writer is not installed."""
    if format_ == "MP4":
        _av()


def default_video_format() -> str:
    """MP4 where what writes it is installed, else WebP, which has all colours."""
    try:
        _av()
    except ValueError:
        return "WEBP"
    return "MP4"


def check_fps(fps: float) -> None:
    """Raises ValueError for frames a second that cannot be."""
    if not (math.isfinite(fps) and 0 < fps <= MAX_FPS):
        raise ValueError(f"{fps:g} frames a second: give a number above 0, {MAX_FPS:g} at most")


def write_video(
    out: IO[bytes], chunks_CFHW: Iterable[Tensor], format_: str, fps: float, parameters: Mapping[str, Any]
) -> None:
    """Write a clip's file. out: where it can be sought in. chunks_CFHW: its frames in order, any number in each part,
    pixels from -1 to 1. MP4 is written as they come; of the others all frames are held, 3 bytes a pixel. format_: one
    of FORMATS. parameters: what it was drawn from.
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
    """The PNG of each frame; chunks as `write_video` has them."""
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
                # 4:2:0 has a colour for every 2 x 2 pixels.
                stream.width, stream.height = (side - side % 2 for side in image.size)
            for packet in stream.encode(av.VideoFrame.from_image(image.crop((0, 0, stream.width, stream.height)))):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _av() -> Any:
    """PyAV. Imported here: only MP4 needs it. Raises ValueError where it is not installed."""
    try:
        import av
    except ImportError as error:
        raise ValueError(f"writing mp4 needs av: {PIP} ({error}); gif, webp and a folder of png do not") from None
    return av
