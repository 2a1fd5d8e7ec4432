"""The application: its routes, and what becomes of an error."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.server.chat import ChatAnswer, ChatChunks, chat_generation
from ridgeline.server.completions import CompletionAnswer, CompletionChunks, completion_generation
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.fields import ChatFields, CompletionFields, read_fields
from ridgeline.server.generation import ClientGone, Generation, gather, unless_gone
from ridgeline.server.model import ServedModel, served_model
from ridgeline.server.service import Service
from ridgeline.server.settings import ServerSettings
from ridgeline.server.sse import EventStream
from ridgeline.version import __version__

IGNORED = "x-ridgeline-ignored-fields"
"""The header that names the fields of a request that nobody knows."""


def build_app(
    service: Service,
    settings: ServerSettings,
    *,
    routes: Sequence[BaseRoute] = (),
    middleware: Sequence[Middleware] = (),
) -> Starlette:
    """The server's application around a service. routes, middleware: of the other parts of the server."""
    model = served_model(service.llm, settings)
    api = Api(service, model, settings)
    return Starlette(
        routes=(
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/completions", api.complete, methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/v1/models/{name:path}", api.one_model),
            Route("/version", version),
            *routes,
        ),
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientGone: _gone,
            Exception: _unforeseen,
        },
    )


async def version(request: Request) -> Response:
    """Which version this is."""
    return answer({"version": __version__})


class Api:
    """The handlers of OpenAI's routes."""

    def __init__(self, service: Service, model: ServedModel, settings: ServerSettings) -> None:
        self._service, self._model, self._settings = service, model, settings

    async def chat(self, request: Request) -> Response | EventStream:
        """/v1/chat/completions"""
        body = await _object(request)
        fields, ignored = read_fields(body, ChatFields, self._settings)
        generation = await chat_generation(fields, self._model, self._settings)
        headers, reply = _headers(generation, ignored), ChatAnswer(fields, self._model)
        if not fields.stream:
            gathered = await unless_gone(request.receive, gather(self._service, generation))
            return answer(reply.body(generation, gathered), headers)
        return EventStream(
            lambda outbox: ChatChunks(generation, reply, outbox).produce(self._service),
            self._settings.send_buffer_bytes,
            headers,
        )

    async def complete(self, request: Request) -> Response | EventStream:
        """/v1/completions"""
        body = await _object(request)
        fields, ignored = read_fields(body, CompletionFields, self._settings)
        generation = await completion_generation(fields, self._model, self._settings)
        headers, reply = _headers(generation, ignored), CompletionAnswer(fields, self._model)
        if not fields.stream:
            gathered = await unless_gone(request.receive, gather(self._service, generation))
            return answer(reply.body(generation, gathered), headers)
        return EventStream(
            lambda outbox: CompletionChunks(generation, reply, outbox).produce(self._service),
            self._settings.send_buffer_bytes,
            headers,
        )

    async def models(self, request: Request) -> Response:
        """/v1/models: the names, and what the model can do"""
        return answer({"object": "list", "data": [self._card(name) for name in self._model.names]})

    async def one_model(self, request: Request) -> Response:
        """/v1/models/NAME"""
        name = request.path_params["name"]
        self._model.check_name(name)
        return answer(self._card(name))

    def _card(self, name: str) -> dict[str, object]:
        model = self._model
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "ridgeline",
            "root": model.name,
            "max_model_len": model.context,
            "limits": self._settings.public_limits(),
        }


async def _object(request: Request) -> object:
    try:
        return msgspec.json.decode(await request.body())
    except msgspec.MsgspecError:
        raise invalid("the body is not valid JSON") from None


def answer(value: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """A response in JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _headers(generation: Generation, ignored: Sequence[str]) -> dict[str, str]:
    headers = {"x-request-id": generation.id}
    return headers | ({IGNORED: ignored_names(ignored)} if ignored else {})


def ignored_names(names: Sequence[str]) -> str:
    """The names in a header: at most 16 of them, each short, and printable whatever was sent."""
    return ",".join(
        "".join(c if (c.isalnum() and c.isascii()) or c in "_-." else "?" for c in n[:64]) for n in names[:16]
    )


async def _api_error(request: Request, error: Any) -> Response:
    assert isinstance(error, ApiError)
    retry = {} if error.retry is None else {"x-should-retry": str(error.retry).lower()}
    return answer(error.body(), {**error.headers, **retry}, error.status)


async def _http_error(request: Request, error: Any) -> Response:
    """What the router has to say: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    said = {404: "there is no such route", 405: "this route does not have that method"}
    message = said.get(error.status_code, "the request cannot be answered")
    return await _api_error(request, ApiError(error.status_code, message, headers=error.headers))


async def _gone(request: Request, error: Any) -> Response:
    """Nobody reads it; the status is for the log (nginx's for a client that has closed the connection)."""
    return Response(status_code=499)


async def _unforeseen(request: Request, error: Any) -> Response:
    """A bug of ours: a fixed text, and no second run of what may fail again."""
    error = ApiError(500, "the server failed on this request", kind="server_error", code="internal", retry=False)
    return await _api_error(request, error)
