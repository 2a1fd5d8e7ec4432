"""The application of a server of pictures: its routes, and what it says to who asks for anything else."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.host import out_of_memory
from ridgeline.server.api.drawing import plan_of
from ridgeline.server.api.fields import read_fields
from ridgeline.server.api.images import ImageFields, ImageGeneration, check_fields
from ridgeline.server.api.model import beside, none_of_these
from ridgeline.server.app import IMAGES, TEXT_ROUTES, Cards, answer, application, model_routes
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.body import read_object
from ridgeline.server.http.disconnect import unless_gone
from ridgeline.server.http.sse import EventStream, Outbox, SlowReader
from ridgeline.server.pictures.drawer import Told
from ridgeline.server.pictures.service import PictureService
from ridgeline.server.settings import ServerSettings

WRITES_NO_TEXT = f"draws pictures and writes no text; ask {IMAGES}"
"""What is said of a pipeline that is asked for some."""

logger = logging.getLogger(__name__)


def build_picture_app(
    service: PictureService, settings: ServerSettings, names: "Names", *, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The application around a service. routes: of the other parts of the server."""
    api = PictureApi(service, settings, names)
    return application(
        (
            *picture_routes(api),
            *(Route(path, _writes_no_text, methods=["POST"]) for path in TEXT_ROUTES),
            *model_routes(api.cards),
            *routes,
        )
    )


def picture_routes(api: "PictureApi") -> Sequence[BaseRoute]:
    """What is posted to a pipeline."""
    return [Route(IMAGES, api.generate, methods=["POST"])]


@dataclass(frozen=True, slots=True)
class Names:
    """What requests may call the pipelines. own: by each name the pipeline's own. created: when they were put up, in
    Unix seconds. others: of models that draw nothing, what is said to who asks them to."""

    own: Mapping[str, str]
    created: int = field(default_factory=lambda: int(time.time()))
    others: Mapping[str, str] = field(default_factory=dict)

    def find(self, asked: str) -> str:
        """The pipeline's own name. Raises ApiError: 404 for a name that nothing has, 400 for that of a model of another
        sort, and for none among several."""
        if asked in self.own:
            return self.own[asked]
        if not asked and len(set(self.own.values())) == 1:
            return next(iter(self.own.values()))
        if not asked:
            said = f"model: this server has {', '.join(self.own)}; say which"
            raise invalid(said, "model", code="missing_field")
        raise none_of_these(asked, self.own, self.others)

    def said(self, own: str) -> str:
        """What answers call a pipeline: its first name."""
        return next(name for name, each in self.own.items() if each == own)


class PictureApi:
    """The handlers."""

    def __init__(self, service: PictureService, settings: ServerSettings, names: Names) -> None:
        self._service, self._names = service, names
        # A picture that lacks what was asked for looks like one with it.
        self._settings = replace(settings, strict=True)

    async def generate(self, request: Request) -> Response | EventStream:
        """/v1/images/generations"""
        fields, _ = read_fields(await read_object(request, self._settings), ImageFields, self._settings)
        own = self._names.find(fields.model)
        drawing, pipeline = check_fields(fields), self._service.drawer.pipelines[own]
        plan = await beside(len(drawing.prompt), lambda: plan_of(drawing, pipeline))
        generation = ImageGeneration(fields, plan, pipeline, own, self._names.said(own))
        headers = {"x-request-id": generation.id}
        if not fields.stream:
            await unless_gone(request.receive, self._draw(generation, generation.take))
            return answer(generation.body(), headers)

        async def produce(outbox: Outbox) -> None:
            await self._draw(generation, generation.events(outbox))

        unread = self._settings.send_buffer_bytes + (1 + fields.partial_images) * generation.file_bytes
        return EventStream(produce, unread, headers)

    async def _draw(self, generation: ImageGeneration, take: Callable[[Told], None]) -> None:
        """Have the service draw. Raises ApiError."""
        live = generation.live
        try:
            await self._service.run(live, generation.order, take)
        except (ApiError, SlowReader):
            raise
        except ValueError as error:
            if live.phase == "queue":
                raise invalid(str(error), "size", code="too_large") from None
            raise _failed(generation, error) from None
        except Exception as error:
            raise _failed(generation, error) from None

    def cards(self) -> Cards:
        """The names of the pipelines, and what each draws."""
        return {name: self._card(name) for name in self._names.own}

    def _card(self, name: str) -> dict[str, object]:
        own = self._names.own[name]
        pipeline = self._service.drawer.pipelines[own]
        return {
            "id": name,
            "object": "model",
            "created": self._names.created,
            "owned_by": "ridgeline",
            "root": self._names.said(own),
            "parent": None,
            "sizes": [str(size) for size in pipeline.layout.sizes],
            "num_inference_steps": pipeline.kind.steps,
            "guidance_scale": pipeline.kind.guidance,
            "max_prompt_tokens": pipeline.encoder.most_tokens,
            "dtype": str(pipeline.denoiser.storage.dtype).removeprefix("torch."),
            "limits": self._settings.public_limits(),
        }


async def _writes_no_text(request: Request) -> Response:
    raise invalid(f"the model {WRITES_NO_TEXT}", "model", code="unsupported_model")


def _failed(generation: ImageGeneration, error: Exception) -> ApiError:
    """What is said of a request that failed while it was drawn: the client is not told an exception's words."""
    logger.error("request %s failed: %s", generation.id, type(error).__name__, exc_info=error)
    if out_of_memory(error) is not None:
        return ApiError(503, "there was no memory for this request", kind="server_error", code="out_of_memory")
    return ApiError(500, "the model failed on this request", kind="server_error", code="failed", retry=False)
