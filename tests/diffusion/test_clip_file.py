"""Files of clips: frames, their pace and what they were drawn from, read back by Pillow and PyAV."""

import builtins
import json
import math
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ridgeline.media.diffusion.image_file import to_bytes
from ridgeline.media.diffusion.video_file import check_fps, encode_frames, video_format_of, write_video

PARAMETERS = {"prompt": "a naïve seven — 七", "seed": 7, "size": "32x16", "fps": 12.5}


def clip(frames: int = 6) -> Tensor:
    """Smooth frames [3, F, 16, 32], each another: what codecs are made for."""
    lines, columns = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 32), indexing="ij")
    each = [torch.stack([lines * f, columns * (1 - f), columns * f]) for f in torch.linspace(0, 1, frames)]
    return torch.stack(each, 1) * 2 - 1


def chunks(frames: Tensor) -> Iterator[Tensor]:
    """As a VAE gives them: one frame, then several."""
    yield frames[:, :1]
    yield from frames[:, 1:].split(4, 1)


def file(frames: Iterator[Tensor], format_: str, fps: float, parameters: Mapping[str, Any]) -> BytesIO:
    out = BytesIO()
    write_video(out, frames, format_, fps, parameters)
    out.seek(0)
    return out


def bytes_of(frames: Tensor) -> "np.ndarray[Any, Any]":
    return np.stack([to_bytes(frame).numpy() for frame in frames.unbind(1)]).astype(int)


def test_mp4() -> None:
    """Every frame at its time, in colours near enough, with the parameters as its comment."""
    frames = clip()
    with av.open(file(chunks(frames), "MP4", 12.5, PARAMETERS)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 32, 16)
        assert float(stream.average_rate or 0) == 12.5
        assert json.loads(container.metadata["comment"]) == PARAMETERS
        decoded = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)
    assert decoded.shape == (6, 16, 32, 3)
    assert np.abs(decoded - bytes_of(frames)).mean() < 5
    assert np.abs(decoded - bytes_of(frames.flip(1))).mean() > 50


@pytest.mark.parametrize(("format_", "tolerance"), [("GIF", 2), ("WEBP", 3)])
def test_gif_and_webp(format_: str, tolerance: int) -> None:
    """The same through Pillow; a GIF counts in hundredths of a second."""
    frames = clip()
    with Image.open(file(chunks(frames), format_, 12.5, PARAMETERS)) as image:
        assert (image.format, image.n_frames, image.size) == (format_, 6, (32, 16))  # type: ignore[attr-defined]
        decoded, durations = [], []
        for number in range(6):
            image.seek(number)
            decoded.append(np.asarray(image.convert("RGB")).astype(int))
            durations.append(image.info["duration"])
        assert durations == [80] * 6
        assert image.info["loop"] == 0
        kept = image.info["comment"] if format_ == "GIF" else image.getexif()[0x010E]
        assert json.loads(kept) == PARAMETERS
    assert np.abs(np.stack(decoded) - bytes_of(frames)).mean() < tolerance


def test_a_folder_of_frames() -> None:
    """Each to the bit, with its number."""
    frames = clip()
    files = list(encode_frames(chunks(frames), PARAMETERS))
    for number, (file, pixels) in enumerate(zip(files, bytes_of(frames), strict=True), 1):
        with Image.open(BytesIO(file)) as image:
            assert np.array_equal(np.asarray(image), pixels)
            assert json.loads(image.text["parameters"]) == {**PARAMETERS, "frame": number}  # type: ignore[attr-defined]


def test_grey_and_odd_sizes() -> None:
    """Grey frames are written too; MP4 drops a last odd line and column, as its colours are of 2 x 2 pixels."""
    frames = clip()[:1, :3, :15, :31]
    with av.open(file(chunks(frames), "MP4", 8, {})) as container:
        assert (container.streams.video[0].width, container.streams.video[0].height) == (30, 14)
    with Image.open(file(chunks(frames), "GIF", 8, {})) as image:
        assert image.size == (31, 15)


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """By suffix; MP4 alone needs PyAV."""
    assert [video_format_of(Path(name)) for name in ("a.MP4", "a.gif", "a.webp", "a")] == ["MP4", "GIF", "WEBP", ""]
    with pytest.raises(
        ValueError, match=r"a\.avi: videos are written as \.mp4, \.gif, \.webp, or as a folder of png files"
    ):
        video_format_of(Path("a.avi"))
    found = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ImportError("No module named 'av'")
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert video_format_of(Path("a.gif")) == "GIF"
    with pytest.raises(ValueError, match=r"writing mp4 needs the package av: pip install 'ridgeline\[images\]'"):
        video_format_of(Path("a.mp4"))


@pytest.mark.parametrize("fps", [0, -1, math.nan, math.inf, 1e9])
def test_frames_a_second_that_cannot_be(fps: float) -> None:
    with pytest.raises(ValueError, match="give frames per second above 0 and at most 240"):
        check_fps(fps)
