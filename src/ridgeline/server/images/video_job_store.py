"""The video jobs of a server: each runs without a waiting client, and its file is stored for a limited time."""

import asyncio
import logging
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.images.image_service import ImageService
from ridgeline.server.images.video_folder import VideoFolder, VideoWriter, write_failure
from ridgeline.server.routes.video_job import VideoJob
from ridgeline.server.server_settings import ServerSettings

KEPT = 1000
"""The most finished video jobs that the server remembers, and the most ids of deleted ones."""

_MADE_ROOM = "the video was deleted to make room for newer ones: request it again"

logger = logging.getLogger(__name__)


class VideoJobStore:
    """The video jobs of one server, used on its event loop only."""

    def __init__(self, service: ImageService, settings: ServerSettings) -> None:
        self._service = service
        self._most, self._lifetime = settings.video_storage_bytes, settings.video_lifetime_seconds
        self._folder = VideoFolder()
        self._jobs: dict[str, VideoJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._gone: dict[str, str] = {}  # error text by id of a deleted job

    def start(self, job: VideoJob) -> None:
        """Start the generation of a video in the background.

        Raises:
            ApiError: If the request is not admitted, or the folder for its file cannot be created.
        """
        try:
            writer = VideoWriter(self.path(job), job.format_, job.fields.fps, job.parameters())
        except OSError as error:
            raise write_failure(error) from None
        self._service.admit(job.live)
        self._jobs[job.id] = job
        self._tasks[job.id] = asyncio.create_task(self._run(job, writer))

    def of(self, owner: bytes | None) -> Iterator[VideoJob]:
        """Return the video jobs of an owner in the order of their creation."""
        return (job for job in self._jobs.values() if job.owner == owner)

    def find(self, id: str, owner: bytes | None) -> VideoJob:
        """Return the video job with an id, if it belongs to the owner.

        Raises:
            ApiError: If the job has expired or made room for newer ones (410), or does not exist (404).
        """
        job = self._jobs.get(id)
        if job is not None and job.owner == owner:
            return job
        if id in self._gone:
            raise ApiError(410, self._gone[id], param="video_id", code="video_expired", retry=False)
        raise ApiError(404, "no such video; it may have been deleted", param="video_id", code="video_not_found")

    def path(self, job: VideoJob) -> Path:
        """Return the path of a job's file, which may not exist yet."""
        return self._folder.path(job.id + job.suffix)

    def delete(self, job: VideoJob, message: str | None = None) -> None:
        """Delete a video job and its file, and remember the error text `message` for later requests for it.

        A running job ends before its next work unit. Without a text, later requests get a 404 error.
        """
        self._jobs.pop(job.id, None)
        if (timer := self._timers.pop(job.id, None)) is not None:
            timer.cancel()
        if (task := self._tasks.get(job.id)) is not None:
            task.cancel()
        if job.completed is not None:
            self.path(job).unlink(missing_ok=True)
        if message is not None:
            self._gone[job.id] = message
            while len(self._gone) > KEPT:
                del self._gone[next(iter(self._gone))]

    async def aclose(self) -> None:
        """Cancel the running video jobs, and delete all files."""
        tasks = list(self._tasks.values())
        if tasks:
            logger.info("shutting down; videos that will not be finished: %d", len(tasks))
        for job in list(self._jobs.values()):
            self.delete(job)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._folder.close()

    # -- one job's life ------------------------------------------------------------------------------------------------

    async def _run(self, job: VideoJob, writer: VideoWriter) -> None:
        try:
            await self._service.run_admitted(job.live, job.order(writer.add), job.take)
            # Shielded: if this task is cancelled, the writer's thread must still be able to set its future.
            job.nbytes = await asyncio.shield(asyncio.wrap_future(writer.finish()))
            self._make_room(job)
            job.completed = int(time.time())
        except ApiError as error:
            job.error = error
        finally:
            del self._tasks[job.id]
            if job.completed is None:
                writer.abandon()
        self._keep(job)

    def _keep(self, job: VideoJob) -> None:
        """Store a finished video job until its lifetime ends, or until newer jobs need its place."""
        job.expires = int(time.time() + self._lifetime)
        message = f"the video has expired, because files are deleted after {self._lifetime:g} s: request it again"
        loop = asyncio.get_running_loop()
        self._timers[job.id] = loop.call_later(self._lifetime, partial(self.delete, job, message))
        while len(self._timers) > KEPT:
            self.delete(self._jobs[next(iter(self._timers))], _MADE_ROOM)

    def _make_room(self, job: VideoJob) -> None:
        """Delete the oldest video files until a new one fits into the storage limit.

        Raises:
            ApiError: If the new file alone exceeds the storage limit.
        """
        if job.nbytes > self._most:
            message = (
                f"the file has {job.nbytes} bytes, but the limit for all videos is {self._most} bytes "
                "(--max-video-storage): request fewer frames"
            )
            raise invalid(message, "num_frames", code="too_large")
        files = [each for each in map(self._jobs.__getitem__, self._timers) if each.completed is not None]
        held = sum(each.nbytes for each in files) + job.nbytes
        for each in files:
            if held <= self._most:
                return
            held -= each.nbytes
            self.delete(each, _MADE_ROOM)
