"""The ASGI application of the server: its routes, and the conversion of exceptions into error responses."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.engine.params import SamplingParams
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary
from ridgeline.server.errors import ERROR_CODE, ApiError, error_response, internal, invalid
from ridgeline.server.http.auth import HEALTH
from ridgeline.server.http.body import read_object
from ridgeline.server.http.disconnect import GONE, ClientGone, run_unless_disconnected
from ridgeline.server.http.event_stream import EventStreamResponse, StreamOutbox
from ridgeline.server.http.exchanges import IGNORED, MAX_PATH
from ridgeline.server.http.page_routes import page_routes
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.chat_completions import ROUTE as CHAT
from ridgeline.server.routes.chat_completions import chat_generation
from ridgeline.server.routes.completions import ROUTE as COMPLETIONS
from ridgeline.server.routes.completions import completion_generation
from ridgeline.server.routes.generation import GenerationResult, gather
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.routes.logprobs import PromptScores
from ridgeline.server.routes.long_response import LongResponse
from ridgeline.server.routes.request_fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    TokenizeFields,
    read_fields,
)
from ridgeline.server.routes.responses import ROUTE as RESPONSES
from ridgeline.server.routes.responses import response_generation
from ridgeline.server.routes.responses_to_chat import ResponseFields
from ridgeline.server.routes.served_model import ServedModel, no_such_model, served_model
from ridgeline.server.routes.stream_chunks import Chunks
from ridgeline.server.routes.template_variables import ignored_variables
from ridgeline.server.routes.tokenization import detokenize, rendered, tokenize
from ridgeline.server.routes.trace_text import ROUTE as TRACE
from ridgeline.server.routes.trace_text import TraceApi, traceable
from ridgeline.server.routes.transcriptions import SpeechApi
from ridgeline.server.routes.vectors import (
    EMBEDDINGS,
    MAX_INPUTS,
    RERANK,
    EmbeddingFields,
    RerankFields,
    embeddings,
    rerank,
)
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.util.version import __version__

_ARRIVED = "ridgeline.arrived"
_NEAR = 0.75  # minimum similarity of a route that is suggested

_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def build_app(
    service: Service,
    settings: ServerSettings,
    grammars: GrammarCheck,
    *,
    speech: SpeechVocabulary | None = None,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the application of a server with one language model.

    Args:
        service: The service that runs requests.
        settings: The limits that requests have to meet.
        grammars: Checks structured outputs before the engine gets them; the caller closes it.
        speech: The token vocabulary of a speech model; None for any other model.
        routes: Further routes, such as metrics.
    """
    model = served_model(service.llm, settings)
    return application(
        (
            *text_routes(service, model, settings, grammars, speech),
            *(Route(path, generates_no_images, methods=["POST"]) for path in (IMAGES, VIDEOS)),
            *model_routes(lambda: text_cards(model, settings)),
            *routes,
        )
    )


def text_routes(
    service: Service,
    model: ServedModel,
    settings: ServerSettings,
    grammars: GrammarCheck,
    speech: SpeechVocabulary | None,
) -> Sequence[BaseRoute]:
    """Return the routes of a language model (`TEXT_ROUTES`), and the trace route for models that continue a text."""
    api, speech_api = Api(service, model, settings, grammars), SpeechApi(service, model, settings, speech)
    generating = (api.chat, api.render, api.complete, api.respond, speech_api.transcribe, speech_api.translate)
    handlers = (*generating, api.embed, api.rerank, api.tokenize, api.detokenize)
    routes = [Route(path, each, methods=["POST"]) for path, each in zip(TEXT_ROUTES, handlers, strict=True)]
    if traceable(model):
        routes.append(Route(TRACE, TraceApi(service, model, settings).trace, methods=["POST"]))
    return routes


ModelCards = Mapping[str, Mapping[str, object]]
"""The entries of /v1/models, by the names that a request may use."""


def model_routes(cards: Callable[[], ModelCards]) -> Sequence[BaseRoute]:
    """Return the routes /v1/models and /v1/models/NAME."""

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": list(cards().values())})

    async def one_model(request: Request) -> Response:
        found, name = cards(), request.path_params["name"]
        if name not in found:
            raise no_such_model(name, found)
        return json_response(found[name])

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", one_model)]


def text_cards(model: ServedModel, settings: ServerSettings) -> ModelCards:
    """Return the /v1/models entries of a language model and its adapters, with its routes, defaults and limits."""
    return {
        name: {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "ridgeline",
            "root": model.name,
            "parent": model.name if model.adapter(name) else None,
            "routes": text_routes_of(model),
            "sampling": _sampling(model.defaults),
            "max_model_len": model.info.context,
            "dtype": model.info.dtype,
            "limits": settings.public_limits(),
            **({"definition": model.info.definition} if model.info.definition else {}),
            **({"priced": settings.priced} if settings.priced else {}),
        }
        for name in model.all_names
    }


def text_routes_of(model: ServedModel) -> Sequence[str]:
    """Return the paths of the generation, embedding, rerank, audio and trace routes that a model supports."""
    if model.reads_audio:
        return TRANSCRIPTIONS, TRANSLATIONS
    if model.info.vectors is not None:
        return (RERANK if model.info.vectors.labels else EMBEDDINGS,)
    generating = (CHAT, COMPLETIONS, RESPONSES) if model.texts.templates is not None else (COMPLETIONS,)
    return (*generating, TRACE) if traceable(model) else generating


def _sampling(defaults: SamplingParams) -> Mapping[str, float]:
    """Return the default sampling values of the model, by the names of the request fields."""
    return {name: getattr(defaults, name) for name in ("temperature", "top_k", "top_p", "min_p")}


TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
"""The paths of the routes of a speech model."""

IMAGES = "/v1/images/generations"
"""The path of the route for image generation."""

VIDEOS = "/v1/videos"
"""The path of the route for video generation."""

GENERATES_NO_IMAGES = f"generates text only: use {CHAT}"
"""The end of the error message for an image or video request to a language model.

It applies to Janus models too, because only the command line generates images with them.
"""

TEXT_ROUTES = (
    CHAT,
    f"{CHAT}/render",
    COMPLETIONS,
    RESPONSES,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    EMBEDDINGS,
    RERANK,
    "/tokenize",
    "/detokenize",
)
"""The paths of the POST routes that every language model has; the trace route is not among them."""


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """Return an application with these routes and those of every server; its errors have OpenAI's form."""
    return Starlette(
        routes=(*routes, Route("/version", version), *page_routes()),
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientGone: _gone,
            Exception: _unforeseen,
        },
    )


async def generates_no_images(request: Request) -> Response:
    """Reject a request for images, because the server has only language models."""
    raise invalid(f"the model {GENERATES_NO_IMAGES}", "model", code="unsupported_model")


async def version(request: Request) -> Response:
    """Return the version of the server and the paths of its routes."""
    routes = [route.path_format for route in request.app.routes if isinstance(route, Route)]
    return json_response({"version": __version__, "routes": [*routes, *sorted(HEALTH)]})


class ResponseWriter(Protocol):
    """The interface of a writer of a route's response, either as one body or as a stream of chunks."""

    def scores(self, generation: Generation) -> list[PromptScores]:
        """Return an empty `PromptScores` for each prompt, which collects scores as the engine computes them."""

    async def body(self, generation: Generation, gathered: GenerationResult) -> dict[str, object]:
        """Return the complete body of a response that is not streamed."""

    def chunks(self, generation: Generation, outbox: StreamOutbox) -> Chunks:
        """Return the object that runs a generation and writes its chunks into an outbox."""


Prepare = Callable[
    [_Fields, ServedModel, ServerSettings, GrammarCheck, int], Awaitable[tuple[Generation, ResponseWriter]]
]
"""A function that turns a route's fields into a `Generation` and its response writer, or raises ApiError."""


class Api:
    """The HTTP handlers of the routes of a language model."""

    def __init__(self, service: Service, model: ServedModel, settings: ServerSettings, grammars: GrammarCheck) -> None:
        self._service, self._model, self._settings, self._grammars = service, model, settings, grammars

    async def chat(self, request: Request) -> Response | EventStreamResponse:
        """Handle POST /v1/chat/completions: generate the next message of a conversation."""
        return await self._generate(request, ChatFields, chat_generation)

    async def complete(self, request: Request) -> Response | EventStreamResponse:
        """Handle POST /v1/completions: continue prompts."""
        return await self._generate(request, CompletionFields, completion_generation)

    async def respond(self, request: Request) -> Response | EventStreamResponse:
        """Handle POST /v1/responses: generate the next message of a conversation, as response items."""
        return await self._generate(request, ResponseFields, response_generation)

    async def embed(self, request: Request) -> Response:
        """Handle POST /v1/embeddings: compute a vector for each text."""
        fields, headers = await self._read(request, EmbeddingFields)
        return json_response(
            await run_unless_disconnected(request.receive, embeddings(fields, self._model, self._service)), headers
        )

    async def rerank(self, request: Request) -> Response:
        """Handle POST /v1/rerank: sort documents by their relevance to a query."""
        fields, headers = await self._read(request, RerankFields)
        return json_response(
            await run_unless_disconnected(request.receive, rerank(fields, self._model, self._service)), headers
        )

    async def render(self, request: Request) -> Response:
        """Handle POST /v1/chat/completions/render: apply the chat template to a conversation."""
        fields, headers = await self._read(request, ChatFields)
        return json_response(await rendered(fields, self._model, self._settings), headers)

    async def tokenize(self, request: Request) -> Response:
        """Handle POST /tokenize: return the token ids of a prompt or a conversation."""
        fields, headers = await self._read(request, TokenizeFields)
        return json_response(await tokenize(fields, self._model, self._settings), headers)

    async def detokenize(self, request: Request) -> Response:
        """Handle POST /detokenize: return the text of token ids."""
        fields, headers = await self._read(request, DetokenizeFields)
        return json_response(await detokenize(fields, self._model), headers)

    async def _read(self, request: Request, kind: type[_Fields]) -> tuple[_Fields, dict[str, str]]:
        """Return the parsed fields of a request, and the response header that lists ignored fields.

        Raises:
            ApiError: If the body or a field is invalid.
        """
        request.scope[_ARRIVED] = time.perf_counter_ns()
        prompts = MAX_INPUTS if kind is EmbeddingFields else self._settings.prompts
        body = await read_object(request, self._settings, prompts * self._model.info.context)
        fields, ignored = read_fields(body, kind, self._settings)
        unread = ignored_variables(fields, self._model)
        if unread and self._settings.strict:
            raise invalid(
                f"{unread[0]}: the model's chat template does not read it: leave it out", unread[0].partition(".")[0]
            )
        ignored += unread
        return fields, {IGNORED: ignored_names(ignored)} if ignored else {}

    async def _generate(
        self, request: Request, kind: type[_Fields], prepare: Prepare[_Fields]
    ) -> Response | EventStreamResponse:
        """Run the generation of a request and return the complete response, or the stream that will write it.

        Raises:
            ApiError: If the request is invalid or fails before its response begins.
        """
        fields, headers = await self._read(request, kind)
        self._model.check_generates()
        arrived: int = request.scope[_ARRIVED]
        generation, reply = await prepare(fields, self._model, self._settings, self._grammars, arrived)
        headers["x-request-id"] = generation.id
        if not generation.stream:

            async def whole() -> dict[str, object]:
                scores = reply.scores(generation)
                return await reply.body(generation, await gather(self._service, generation, scores))

            return json_response(await run_unless_disconnected(request.receive, whole()), headers)

        async def produce(outbox: StreamOutbox) -> None:
            await reply.chunks(generation, outbox).produce(self._service)

        return EventStreamResponse(produce, self._settings.send_buffer_bytes, headers)


def json_response(value: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return LongResponse(msgspec.json.encode(value), status, headers)


def ignored_names(names: Sequence[str]) -> str:
    """Return field names as a header value: at most 16, each cut to 64 characters, with unsafe characters replaced."""
    return ",".join(
        "".join(c if (c.isalnum() and c.isascii()) or c in "_-." else "?" for c in n[:64]) for n in names[:16]
    )


async def _api_error(request: Request, error: Any) -> Response:
    assert isinstance(error, ApiError)
    request.scope[ERROR_CODE] = error.code
    return error_response(error)


async def _http_error(request: Request, error: Any) -> Response:
    """Return the error response for an HTTPException of Starlette, mostly the router's 404 and 405 errors."""
    assert isinstance(error, HTTPException)
    message, code = "the server cannot answer this request", "invalid_request"
    if error.status_code == 404:
        message, code = _no_route(request), "not_found"
    elif error.status_code == 405:
        allowed = sorted({*(error.headers or {}).get("Allow", "").split(", ")} - {"", "HEAD"})
        message = f"{_shown_path(request)} does not support {request.method}; use {' or '.join(allowed)}"
        code = "method_not_allowed"
    return await _api_error(request, ApiError(error.status_code, message, code=code, headers=error.headers))


def _no_route(request: Request) -> str:
    """Return the message for a route that does not exist, with the most similar one for the method if there is any."""
    path = request.url.path
    known = (route for route in request.app.routes if isinstance(route, Route))
    routes = [route.path for route in known if request.method in (route.methods or ())]
    with_version = f"/v1/{path.strip('/')}"
    near = [with_version] if with_version in routes else get_close_matches(path, routes, 1, _NEAR)
    instead = f"use {near[0]}" if near else "GET /version lists the routes"
    return f"there is no route {request.method} {_shown_path(request)}; {instead}"


def _shown_path(request: Request) -> str:
    """Return the path of a request as the client sent it, cut to `MAX_PATH` characters."""
    return quote(request.url.path)[:MAX_PATH]


async def _gone(request: Request, error: Any) -> Response:
    """Return a placeholder response for a client that has left; only the access log sees its status."""
    return Response(status_code=GONE)


async def _unforeseen(request: Request, error: Any) -> Response:
    """Return the 500 response for an unexpected exception; Starlette raises it again, and `Exchanges` logs it."""
    return await _api_error(request, internal())
