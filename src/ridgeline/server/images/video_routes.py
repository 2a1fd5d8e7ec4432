"""The routes of /v1/videos: they create, poll, list, download and delete video jobs."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import dropwhile, islice

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from ridgeline.media.diffusion.video_file import default_video_format
from ridgeline.server.app import IMAGES, VIDEOS, json_response
from ridgeline.server.errors import invalid
from ridgeline.server.event_loop import offload_if_long
from ridgeline.server.http.auth import KEY
from ridgeline.server.http.body import read_object
from ridgeline.server.http.form import is_form, read_form
from ridgeline.server.images.image_service import ImageService
from ridgeline.server.images.pipeline_names import PipelineNames
from ridgeline.server.images.video_job_store import VideoJobStore
from ridgeline.server.routes.request_fields import read_fields
from ridgeline.server.routes.video_job import VideoFields, VideoJob, format_of, plan_video
from ridgeline.server.server_settings import ServerSettings

POLL_AFTER = "openai-poll-after-ms"
"""The header that tells OpenAI's client after how many milliseconds to poll again."""
_TYPES: Mapping[str, str] = {"MP4": "video/mp4", "WEBP": "image/webp", "GIF": "image/gif"}
_MOST_LISTED, _LISTED = 100, 20


class VideoApi:
    """The HTTP handlers of video jobs."""

    def __init__(
        self, service: ImageService, jobs: VideoJobStore, settings: ServerSettings, names: PipelineNames
    ) -> None:
        self._service, self._names, self._jobs = service, names, jobs
        # As for images: a video does not show that a field was ignored.
        self._settings = replace(settings, strict=True)
        self._usual = default_video_format()

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of video jobs."""
        one = VIDEOS + "/{video_id}"
        return (
            Route(VIDEOS, self.create, methods=["POST"]),
            Route(VIDEOS, self.listed),
            Route(one, self.retrieve),
            Route(one, self.delete, methods=["DELETE"]),
            Route(one + "/content", self.content),
        )

    async def create(self, request: Request) -> Response:
        """Handle POST /v1/videos: start a video job."""
        fields = await self._read(request)
        own = self._names.find(fields.model)
        pipeline = self._service.engine.pipelines[own]
        if not pipeline.layout.is_video:
            raise invalid(f"the model generates images, not videos: use {IMAGES}", "model", code="unsupported_model")
        plan = await offload_if_long(len(fields.prompt or ""), lambda: plan_video(fields, pipeline))
        format_ = format_of(fields, self._usual)
        job = VideoJob(fields, plan, pipeline, own, self._names.response_name(own), format_, request.scope.get(KEY))
        if job.live.nbytes > self._settings.image_bytes:
            raise invalid(
                f"output_format: {format_.lower()} keeps all frames in memory, which need {job.live.nbytes >> 20} "
                f"MiB, but the limit is {self._settings.image_bytes >> 20} MiB (--max-image-memory): request fewer "
                "frames, or mp4",
                "output_format",
            )
        self._jobs.start(job)
        return json_response(job.body(), {"x-request-id": job.id})

    async def listed(self, request: Request) -> Response:
        """Handle GET /v1/videos: list the client's video jobs, page by page."""
        query, owner = request.query_params, request.scope.get(KEY)
        order, limit = query.get("order", "desc"), query.get("limit", str(_LISTED))
        if order not in ("asc", "desc"):
            raise invalid("order: give asc or desc", "order")
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:4]) <= _MOST_LISTED):
            raise invalid(f"limit: give a number from 1 to {_MOST_LISTED}", "limit")
        jobs = list(self._jobs.of(owner))
        jobs = jobs if order == "asc" else jobs[::-1]
        if "after" in query:
            last = self._jobs.find(query["after"], owner)
            jobs = list(dropwhile(lambda job: job is not last, jobs))[1:]
        shown = list(islice(jobs, int(limit)))
        ends = (shown[0].id, shown[-1].id) if shown else (None, None)
        bodies = [job.body() for job in shown]
        more = {"first_id": ends[0], "last_id": ends[1], "has_more": len(shown) < len(jobs)}
        return json_response({"object": "list", "data": bodies, **more})

    async def retrieve(self, request: Request) -> Response:
        """Handle GET /v1/videos/ID: return the state of a video job."""
        job = self._requested_job(request)
        return json_response(job.body(), {POLL_AFTER: str(round(1000 * job.poll_after))})

    async def delete(self, request: Request) -> Response:
        """Handle DELETE /v1/videos/ID: cancel a video job and delete its file."""
        job = self._requested_job(request)
        self._jobs.delete(job)
        return json_response({"id": job.id, "object": "video.deleted", "deleted": True})

    async def content(self, request: Request) -> Response:
        """Handle GET /v1/videos/ID/content: return the file of a finished video."""
        job = self._requested_job(request)
        if request.query_params.get("variant", "video") != "video":
            raise invalid("variant: only the video itself is stored: give video", "variant", code="unsupported_field")
        if job.completed is None:
            why = "it is not finished; try again when its status is completed"
            if job.error is not None:
                why = "its generation failed"
            raise invalid(f"the video has no file: {why}", "video_id", code="video_not_ready")
        return FileResponse(self._jobs.path(job), media_type=_TYPES[job.format_], filename=job.id + job.suffix)

    def _requested_job(self, request: Request) -> VideoJob:
        return self._jobs.find(request.path_params["video_id"], request.scope.get(KEY))

    async def _read(self, request: Request) -> VideoFields:
        """Return the fields of a request body: a form, as OpenAI's client sends it, or JSON.

        Raises:
            ApiError: If the body is invalid.
        """
        if not is_form(request):
            fields, _ = read_fields(await read_object(request, self._settings), VideoFields, self._settings)
            return fields
        form = await read_form(request, self._settings.body_bytes, self._settings.body_bytes)
        try:
            fields, _ = read_fields(_texts(form), VideoFields, self._settings, text=True)
        finally:
            await form.close()
        return fields


def _texts(form: FormData) -> dict[str, str | UploadFile]:
    """Return the fields of a form; of several with the same name the last, as in JSON."""
    return dict(form.multi_items())
