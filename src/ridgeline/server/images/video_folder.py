"""The files of generated videos: written in threads of their own, in a folder that the server deletes when it ends."""

import errno
import logging
import queue
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from ridgeline.media.diffusion.video_file import write_video
from ridgeline.server.errors import ApiError

WAITING = 2
"""The most parts of a video that may wait to be written; with more, the decoder blocks."""

logger = logging.getLogger(__name__)


class VideoFolder:
    """A temporary folder, which is created for the first file."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None

    def path(self, name: str) -> Path:
        """Return the path of a video file in the folder."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="ridgeline-clips-", ignore_cleanup_errors=True)
        return Path(self._folder.name) / name

    def close(self) -> None:
        """Delete the folder of video files with its contents."""
        if self._folder is not None:
            self._folder.cleanup()


class _Abandoned(Exception):
    """The exception that stops the writing of an abandoned file."""


class VideoWriter:
    """A writer of one video file in its own thread, so that no other thread has to encode the video."""

    def __init__(self, path: Path, format_: str, fps: float, parameters: Mapping[str, Any]) -> None:
        """Prepare a writer with the arguments of `write_video`, without starting its thread."""
        self.path, self._format, self._fps, self._parameters = path, format_, fps, parameters
        self._parts: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(WAITING)
        self._written: Future[int] = Future()
        self._thread: threading.Thread | None = None
        self._abandoned = False

    def add(self, part_CFHW: Tensor, _: int = 0) -> None:
        """Queue the next decoded part of the video; block while `WAITING` parts are queued."""
        if self._abandoned:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ridgeline clip", daemon=True)
            self._thread.start()
        self._room.acquire()
        self._parts.put(part_CFHW)

    def finish(self) -> "Future[int]":
        """End the video, and return a future with the file size in bytes, or with the ApiError that prevented it."""
        self._parts.put(None)
        return self._written

    def abandon(self) -> None:
        """Stop writing, delete the partial file, and unblock a caller of `add`."""
        self._abandoned = True
        self._parts.put(None)
        self._room.release()
        self.path.unlink(missing_ok=True)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with self.path.open("xb") as file:
                write_video(file, self._taken(), self._format, self._fps, self._parameters)
            self._written.set_result(self.path.stat().st_size)
        except Exception as error:
            self.path.unlink(missing_ok=True)
            self._written.set_exception(write_failure(error))
            if not isinstance(error, _Abandoned):
                with suppress(_Abandoned):
                    for _ in self._taken():  # drain the queue, so that the decoder does not block
                        pass

    def _taken(self) -> Iterator[Tensor]:
        while (part := self._parts.get()) is not None:
            self._room.release()
            yield part
        if self._abandoned:
            raise _Abandoned


def write_failure(error: Exception) -> ApiError:
    """Return the error for a video file that could not be written."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = "the server's disk has no room for the video file"
        return ApiError(503, message, code="storage_full")
    if not isinstance(error, _Abandoned):
        logger.error("cannot write a video file: %s", type(error).__name__, exc_info=error)
    return ApiError(500, "the video file could not be written", code="failed", retry=False)
