"""Files of clips that are written beside what decodes them: bounded, given up and failing, nobody waits for ever."""

import json
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgeline.media.diffusion.video_file import write_video
from ridgeline.server.errors import ApiError
from ridgeline.server.images import video_folder
from ridgeline.server.images.video_folder import WAITING, VideoFolder, VideoWriter
from server.wire import eventually

PARTS = [torch.rand(3, 1, 16, 16) * 2 - 1 for _ in range(WAITING + 3)]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert eventually(lambda: not any(thread.name == "ridgeline clip" for thread in threading.enumerate()))


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What the encoder waits for before each part but the first."""
    go = threading.Event()

    def slow(out: Any, chunks: Any, *more: Any) -> None:
        def waited() -> Iterator[Any]:
            for chunk in chunks:
                yield chunk
                assert go.wait(30)

        write_video(out, waited(), *more)

    monkeypatch.setattr(video_folder, "write_video", slow)
    return go


def adding(writer: VideoWriter) -> threading.Thread:
    """A thread that adds all parts, as what draws does."""
    thread = threading.Thread(target=lambda: [writer.add(part) for part in PARTS])
    thread.start()
    return thread


@pytest.mark.parametrize("format_", ["GIF", "WEBP"])
def test_a_file_is_what_its_parts_make(tmp_path: Path, format_: str) -> None:
    writer, out = VideoWriter(tmp_path / "a", format_, 8.0, {"prompt": "a cat"}), BytesIO()
    for part in PARTS:
        writer.add(part)
    write_video(out, PARTS, format_, 8.0, {"prompt": "a cat"})
    assert writer.finish().result(30) == len(out.getvalue())
    assert (tmp_path / "a").read_bytes() == out.getvalue()


def test_an_mp4_file_has_the_frames_of_its_parts(tmp_path: Path) -> None:
    """Compare no bytes: valgrind sees libx264 branch on uninitialised values, so two encodings may differ."""
    av = pytest.importorskip("av")
    writer = VideoWriter(tmp_path / "a.mp4", "MP4", 8.0, {"prompt": "a cat"})
    for part in PARTS:
        writer.add(part)
    assert writer.finish().result(30) == (tmp_path / "a.mp4").stat().st_size
    with av.open(tmp_path / "a.mp4") as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert json.loads(container.metadata["comment"]) == {"prompt": "a cat"}
    assert len(frames) == len(PARTS)
    for frame, part in zip(frames, PARTS, strict=True):
        others = [(torch.from_numpy(frame) - to_rgb(other)).square().mean() for other in PARTS if other is not part]
        assert (torch.from_numpy(frame) - to_rgb(part)).square().mean() < min(others) / 2


def to_rgb(part_CFHW: torch.Tensor) -> torch.Tensor:
    return (part_CFHW[:, 0].permute(1, 2, 0) + 1) * 127.5


def test_what_decodes_waits_for_an_encoder_that_is_slower(tmp_path: Path, go: threading.Event) -> None:
    """Else a clip would be held whole."""
    writer = VideoWriter(tmp_path / "a.gif", "GIF", 8.0, {})
    thread = adding(writer)
    assert eventually(lambda: writer._parts.qsize() == WAITING)
    thread.join(0.05)
    assert thread.is_alive()
    go.set()
    thread.join(30)
    assert writer.finish().result(30) > 0


def test_a_file_that_is_given_up_keeps_nobody(tmp_path: Path, go: threading.Event) -> None:
    """Neither what waits to add a part, nor what comes later; nothing of the file is left."""
    writer = VideoWriter(tmp_path / "a.gif", "GIF", 8.0, {})
    thread = adding(writer)
    assert eventually(lambda: writer._parts.qsize() == WAITING)
    writer.abandon()
    thread.join(30)
    assert not thread.is_alive()
    writer.add(PARTS[0])
    go.set()
    assert eventually(lambda: not list(tmp_path.iterdir()))


def test_a_file_that_was_never_begun_is_given_up(tmp_path: Path) -> None:
    VideoWriter(tmp_path / "a.gif", "GIF", 8.0, {}).abandon()
    assert not list(tmp_path.iterdir())


def test_an_encoder_that_fails_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(out: Any, chunks: Any, *more: Any) -> None:
        next(chunks)
        raise KeyError("of a secret")

    monkeypatch.setattr(video_folder, "write_video", failing)
    writer = VideoWriter(tmp_path / "a.gif", "GIF", 8.0, {})
    adding(writer).join(30)
    with pytest.raises(ApiError, match="could not be written"):
        writer.finish().result(30)
    assert not list(tmp_path.iterdir())


def test_the_folder_is_made_when_it_is_wanted_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = VideoFolder()
    assert not list(tmp_path.iterdir())
    path = folder.path("a.gif")
    path.write_bytes(b"x")
    assert path.parent.stat().st_mode & 0o077 == 0, "nobody else on this machine may look"
    folder.close()
    assert not list(tmp_path.iterdir())
