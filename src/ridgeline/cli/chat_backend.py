"""The backends of a chat: a model in this process, or a server with an OpenAI-compatible API."""

import http.client
import json
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.request import FinishReason
from ridgeline.insight.bench.sse_parser import EventStreamParser

Messages = Sequence[Mapping[str, str]]
_SECONDS = 600.0  # timeout for a silent server
_MAX_BODY, _PIECE = 1 << 20, 1 << 16  # bytes of a non-streamed response, and per read of a stream


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of a response, with the counts that are known so far."""

    text: str = ""
    reasoning: str = ""
    tokens: int | None = None
    """The number of tokens of the response so far; None if unknown."""
    cached: int | None = None
    """The prompt tokens that were found in the KV cache; None if unknown."""
    finish: str | None = None
    """The reason that the response ended; None before the end."""


class Unreachable(Exception):
    """The error that no server responds at an address, or that it is gone."""


class ChatBackend(Protocol):
    """The interface of a model or server that responds to chat messages."""

    name: str
    raises: bool
    """Whether KeyboardInterrupt may interrupt a response at any point."""

    def answer(self, messages: Messages) -> Generator[ChatDelta, None, None]:
        """Yield a response piece by piece; closing the generator ends it.

        Raises:
            Unreachable: If the server does not respond or closes the connection.
            ValueError: If there is no response. The message has one line.
        """


class LocalChatBackend:
    """A chat backend that runs a model in this process. An interrupt takes effect between two steps."""

    raises = False

    def __init__(self, name: str, llm: LLM, params: SamplingParams) -> None:
        """Wrap a loaded model.

        Raises:
            ValueError: If the model has no chat template.
        """
        if llm.loaded.templates is None:
            raise ValueError(
                f"{name} has no chat template; give one with --chat-template FILE, or continue a text with ridgeline "
                "run"
            )
        self.name, self._llm, self._params = name, llm, params

    def answer(self, messages: Messages) -> Generator[ChatDelta, None, None]:
        """Yield a response of the local model piece by piece; see `ChatBackend.answer`."""
        ids, tokens = self._llm.encode_chat(messages), 0
        with closing(self._llm.stream(ids, self._params)) as events:
            for event in events:
                if event.finish is FinishReason.ERROR:
                    raise ValueError(f"the request failed: {event.error}")
                tokens = tokens + (event.token is not None) if event.output_tokens is None else event.output_tokens
                yield ChatDelta(event.text, event.reasoning, tokens, event.cached, event.finish)


class HttpChatBackend:
    """A chat backend that sends requests to a server, given by a URL with or without /v1."""

    raises = True

    def __init__(self, url: str, fields: Mapping[str, Any], key: str | None = None, model: str | None = None) -> None:
        """Choose a model of a server, by default the first that it lists.

        Args:
            url: The server's URL, such as http://127.0.0.1:8000.
            fields: Further fields of each request.
            key: The API key; None for none.
            model: The model's name; None to ask the server.

        Raises:
            Unreachable: If the server does not respond when its models are requested.
            ValueError: If the URL or the server's response is invalid.
        """
        self.url, self._fields = url, fields
        self._parts = _address(url)
        self._root = self._parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self.name = model or self._first_model()

    def answer(self, messages: Messages) -> Generator[ChatDelta, None, None]:
        """Yield a response of the server piece by piece; see `ChatBackend.answer`."""
        payload = {"model": self.name, "messages": list(messages), "stream": True}
        body = json.dumps({**payload, "stream_options": {"include_usage": True}, **self._fields})
        connection = self._connect()
        with closing(connection):
            response = self._request(connection, "POST", "/v1/chat/completions", body)
            for frame in self._frames(response):
                if "error" in frame:
                    raise ValueError(f"the server ended the response with an error: {_message(frame)}")
                yield _piece(frame)

    def _first_model(self) -> str:
        connection = self._connect()
        with closing(connection):
            listed = self._json(self._request(connection, "GET", "/v1/models").read(_MAX_BODY))
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{self.url} lists no models; give the URL of a server with OpenAI's API") from None

    def _connect(self) -> http.client.HTTPConnection:
        where = (str(self._parts.hostname), self._parts.port)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(*where, timeout=_SECONDS, context=ssl.create_default_context())
        return http.client.HTTPConnection(*where, timeout=_SECONDS)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        """Send a request and return the response.

        Raises:
            Unreachable: If the server does not respond.
            ValueError: If the server responds with an error.
        """
        try:
            connection.request(method, self._root + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no server responds at {self.url}: {_why(error)}; start it or correct the URL") from None
        if response.status != 200:
            message = _message(self._json(response.read(_MAX_BODY)))
            hint = "; give the URL without a path" if response.status == 404 and self._root else ""
            raise ValueError(f"{self.url} responded with status {response.status}: {message}{hint}")
        return response

    def _frames(self, response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
        """Yield the data of server-sent events up to the end of the stream.

        Raises:
            Unreachable: If the stream breaks off.
        """
        events = EventStreamParser()
        try:
            while piece := response.read1(_PIECE):
                for data in events.feed(piece):
                    if data == b"[DONE]":
                        return
                    yield self._json(data)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.url} closed the connection during its response: {_why(error)}") from None
        raise Unreachable(f"{self.url} closed the connection during its response")

    def _json(self, data: bytes) -> Any:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ValueError(
                f"the response of {self.url} is not valid for OpenAI's API; give the URL of a server with that API"
            )
        return value


def _address(url: str) -> SplitResult:
    """Return the parts of a server's URL.

    Raises:
        ValueError: If it is not an address.
    """
    try:
        parts = urlsplit(url)
        stated = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # e.g. brackets without an address, or a non-numeric port
        stated = False
    if not stated or parts.query or parts.fragment:
        raise ValueError(f"{url} is not a server's address; give one like http://127.0.0.1:8000")
    return parts


def _piece(frame: Mapping[str, Any]) -> ChatDelta:
    """Return the content of a streamed chunk. A chunk without choices carries the usage."""
    choices, usage = frame.get("choices") or [{}], frame.get("usage") or {}
    delta = choices[0].get("delta") or {}
    return ChatDelta(
        delta.get("content") or "",
        delta.get("reasoning_content") or delta.get("reasoning") or "",
        usage.get("completion_tokens"),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        choices[0].get("finish_reason"),
    )


def _message(body: Any) -> str:
    error = body.get("error", body)
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _why(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__)
