"""The ASGI application of a server of image and video pipelines, which rejects text requests."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.server.app import IMAGES, TEXT_ROUTES, VIDEOS, ModelCards, application, json_response, model_routes
from ridgeline.server.errors import invalid
from ridgeline.server.event_loop import offload_if_long
from ridgeline.server.http.body import read_object
from ridgeline.server.http.disconnect import run_unless_disconnected
from ridgeline.server.http.event_stream import EventStreamResponse, StreamOutbox
from ridgeline.server.images.image_service import ImageService
from ridgeline.server.images.pipeline_names import PipelineNames
from ridgeline.server.images.video_job_store import VideoJobStore
from ridgeline.server.images.video_routes import VideoApi
from ridgeline.server.routes.diffusion_fields import plan_of
from ridgeline.server.routes.image_generation import PROGRESS_BYTES, ImageFields, ImageGeneration, check_fields
from ridgeline.server.routes.request_fields import read_fields
from ridgeline.server.server_settings import ServerSettings


def no_text_message(pipelines: Collection[Pipeline]) -> str:
    """Return the end of an error message for text requests to these pipelines, which names the right routes."""
    images, videos = (any(each.layout.is_video == is_video for each in pipelines) for is_video in (False, True))
    if images and videos:
        return f"generates images and videos, not text: use {IMAGES} for images or {VIDEOS} for videos"
    what, route = ("generates videos", VIDEOS) if videos else ("generates images", IMAGES)
    return f"{what}, not text: use {route}"


def build_image_app(
    service: ImageService,
    jobs: VideoJobStore,
    settings: ServerSettings,
    names: PipelineNames,
    *,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the ASGI application of a server of image and video pipelines.

    Args:
        service: The service that runs requests.
        jobs: The video jobs of that service.
        settings: The limits of the server.
        names: The names of the pipelines.
        routes: Further routes, such as metrics.
    """
    api = ImageApi(service, settings, names)
    return application(
        (
            *image_routes(api, VideoApi(service, jobs, settings, names)),
            *(Route(path, api.refuse_text, methods=["POST"]) for path in TEXT_ROUTES),
            *model_routes(api.cards),
            *routes,
        )
    )


def image_routes(api: "ImageApi", videos: VideoApi) -> Sequence[BaseRoute]:
    """Return the routes of image and video generation."""
    return [Route(IMAGES, api.generate, methods=["POST"]), *videos.routes()]


class ImageApi:
    """The HTTP handlers of image generation."""

    def __init__(self, service: ImageService, settings: ServerSettings, names: PipelineNames) -> None:
        self._service, self._names = service, names
        # Unknown fields are errors, because an image does not show that a field was ignored.
        self._settings = replace(settings, strict=True)

    async def generate(self, request: Request) -> Response | EventStreamResponse:
        """Handle POST /v1/images/generations: generate images, as one response or as a stream of events."""
        fields, _ = read_fields(await read_object(request, self._settings), ImageFields, self._settings)
        own = self._names.find(fields.model)
        pipeline = self._service.engine.pipelines[own]
        if pipeline.layout.is_video:
            raise invalid(f"the model generates videos, not images: use {VIDEOS}", "model", code="unsupported_model")
        image_request = check_fields(fields)
        plan = await offload_if_long(len(image_request.prompt), lambda: plan_of(image_request, pipeline))
        generation = ImageGeneration(fields, plan, pipeline, own, self._names.response_name(own))
        headers = {"x-request-id": generation.id}
        if not fields.stream:
            await run_unless_disconnected(
                request.receive, self._service.run(generation.live, generation.order, generation.take)
            )
            return json_response(generation.body(), headers)

        async def produce(outbox: StreamOutbox) -> None:
            await self._service.run(generation.live, generation.order, generation.events(outbox))

        unread = self._settings.send_buffer_bytes + (1 + fields.partial_images) * generation.file_bytes
        unread += fields.progress * (2 + plan.steps) * 2 * PROGRESS_BYTES
        return EventStreamResponse(produce, unread, headers)

    async def refuse_text(self, request: Request) -> Response:
        """Reject a request to a route of language models, because this server has none."""
        message = no_text_message(self._service.engine.pipelines.values())
        raise invalid(f"the model {message}", "model", code="unsupported_model")

    def cards(self) -> ModelCards:
        """Return the /v1/models entries of the pipelines, by name."""
        return {name: self._card(name) for name in self._names.own}

    def _card(self, name: str) -> dict[str, object]:
        own = self._names.own[name]
        pipeline = self._service.engine.pipelines[own]
        is_video = pipeline.layout.is_video
        return {
            "id": name,
            "object": "model",
            "created": self._names.created,
            "owned_by": "ridgeline",
            "root": self._names.response_name(own),
            "parent": None,
            "routes": (VIDEOS if is_video else IMAGES,),
            "sizes": [str(size) for size in pipeline.layout.sizes],
            "num_inference_steps": pipeline.kind.steps,
            "guidance_scale": pipeline.kind.guidance,
            **({"num_frames": pipeline.kind.frames, "max_frames": pipeline.layout.max_frames} if is_video else {}),
            "max_prompt_tokens": pipeline.encoder.most_tokens,
            "dtype": str(pipeline.denoiser.storage.dtype).removeprefix("torch."),
            "limits": self._settings.public_limits(),
        }
