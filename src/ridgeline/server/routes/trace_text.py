"""The route POST /page/trace: it records the computation of a text in the served model, op by op, for the web page.

The engine records it between two steps, so all other requests wait; the recording states for how long. A recording that
would take longer than `max_pause` is rejected.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.engine.async_llm import EngineDied, EngineRestarting
from ridgeline.learn.page.recorder import MOST_PAUSE, MOST_TOKENS, RecordingRequest
from ridgeline.server.errors import ApiError, internal, invalid
from ridgeline.server.http.auth import check_client
from ridgeline.server.http.body import read_object
from ridgeline.server.routes.generation import engine_died, engine_restarting
from ridgeline.server.routes.request_fields import read_fields
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service

ROUTE = "/page/trace"


def traceable(model: ServedModel) -> bool:
    """Return whether a model continues texts; a model with an encoder or with vector output does not."""
    return model.info.vectors is None and not model.reads_audio and not model.texts.start


class TraceFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a trace request: a raw text, and sampling values (None for the model's defaults)."""

    model: str = ""
    prompt: str = ""
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**53)] = 0
    max_pause: Annotated[float, Meta(gt=0, le=3600)] = MOST_PAUSE


class TraceApi:
    """The handler of the trace route, which records one text at a time."""

    def __init__(self, service: Service, model: ServedModel, settings: ServerSettings) -> None:
        self._service, self._model, self._settings = service, model, settings
        self._busy = False

    async def trace(self, request: Request) -> Response:
        """Return the recording of the model's computation for a text, op by op.

        Raises:
            ApiError: If the request is invalid or not permitted, or another recording is in progress.
        """
        check_client(request, self._settings, "request the trace of a text")
        fields, _ = read_fields(await read_object(request, self._settings), TraceFields, self._settings)
        question = msgspec.json.encode(await self._question(fields))
        if self._busy:
            raise ApiError(429, "the server is tracing another text: try again when that is done", code="busy")
        self._busy = True
        try:
            return Response(await self._answer(question), media_type="application/json")
        finally:
            self._busy = False

    async def _question(self, fields: TraceFields) -> RecordingRequest:
        self._model.check_name(fields.model)
        self._model.check_generates()
        if not fields.prompt:
            raise invalid("prompt: it is empty; give at least one character", "prompt", code="missing_field")
        ids = await self._model.encode(fields.prompt)
        if len(ids) > MOST_TOKENS:
            raise invalid(
                f"prompt: it has {len(ids)} tokens, but the limit of a trace is {MOST_TOKENS}: shorten it",
                "prompt",
                code="context_length_exceeded",
            )
        usual = self._model.defaults
        given = {
            name: getattr(usual, name) if (value := getattr(fields, name)) is None else value
            for name in ("temperature", "top_k", "top_p", "min_p")
        }
        return RecordingRequest(
            self._model.response_name(fields.model),
            fields.prompt,
            ids,
            **given,
            seed=fields.seed,
            max_pause=fields.max_pause,
        )

    async def _answer(self, question: bytes) -> bytes:
        try:
            return await self._service.llm.inspect(question)
        except EngineRestarting:
            raise engine_restarting() from None
        except EngineDied:
            raise engine_died() from None
        except ValueError as error:
            raise invalid(str(error)) from None
        except RuntimeError:
            raise internal() from None
