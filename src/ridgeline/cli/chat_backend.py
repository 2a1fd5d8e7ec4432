"""Who answers in a chat: a model in this process, or a server that speaks OpenAI's interface."""

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
_SECONDS = 600.0  # that a server may be silent
_MAX_BODY, _PIECE = 1 << 20, 1 << 16  # bytes: of an answer that is no stream, and read of a stream at a time


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What came of an answer. tokens: of it so far. cached: of its prompt, found in KV memory. None where it is not
    said. finish: why it ended.
    """

    text: str = ""
    reasoning: str = ""
    tokens: int | None = None
    cached: int | None = None
    finish: str | None = None


class Unreachable(Exception):
    """There is no server, or it is gone; says where."""


class ChatBackend(Protocol):
    """Who answers. raises: whether an interrupt may break off what it waits for."""

    name: str
    raises: bool

    def answer(self, messages: Messages) -> Generator[ChatDelta, None, None]:
        """An answer as it comes; leaving the loop ends it. Raises ValueError in one line where there is none."""


class LocalChatBackend:
    """A model in this process. A step is not broken off in its middle: an interrupt ends the loop between two."""

    raises = False

    def __init__(self, name: str, llm: LLM, params: SamplingParams) -> None:
        """Raises ValueError for a model that has no chat template."""
        if llm.loaded.templates is None:
            raise ValueError(
                f"{name} has no chat template; give it one (--chat-template FILE), or let it go on with a text "
                "(ridgeline run)"
            )
        self.name, self._llm, self._params = name, llm, params

    def answer(self, messages: Messages) -> Generator[ChatDelta, None, None]:
        """As Partner."""
        ids, tokens = self._llm.encode_chat(messages), 0
        with closing(self._llm.stream(ids, self._params)) as events:
            for event in events:
                if event.finish is FinishReason.ERROR:
                    raise ValueError(f"the request failed: {event.error}")
                tokens = tokens + (event.token is not None) if event.output_tokens is None else event.output_tokens
                yield ChatDelta(event.text, event.reasoning, tokens, event.cached, event.finish)


class HttpChatBackend:
    """A server at a URL like http://127.0.0.1:8000 or with /v1. model: by default the first that it has."""

    raises = True

    def __init__(self, url: str, fields: Mapping[str, Any], key: str | None = None, model: str | None = None) -> None:
        """fields: of each request, beside its messages. Raises Unreachable; ValueError for what is no such server."""
        self.url, self._fields = url, fields
        self._parts = _address(url)
        self._root = self._parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self.name = model or self._first_model()

    def answer(self, messages: Messages) -> Generator[ChatDelta, None, None]:
        """As Partner."""
        asked = {"model": self.name, "messages": list(messages), "stream": True}
        body = json.dumps({**asked, "stream_options": {"include_usage": True}, **self._fields})
        connection = self._connect()
        with closing(connection):
            response = self._request(connection, "POST", "/v1/chat/completions", body)
            for frame in self._frames(response):
                if "error" in frame:
                    raise ValueError(f"the server ended the answer: {_message(frame)}")
                yield _piece(frame)

    def _first_model(self) -> str:
        connection = self._connect()
        with closing(connection):
            listed = self._json(self._request(connection, "GET", "/v1/models").read(_MAX_BODY))
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{self.url} lists no models; is it a server of OpenAI's interface?") from None

    def _connect(self) -> http.client.HTTPConnection:
        where = (str(self._parts.hostname), self._parts.port)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(*where, timeout=_SECONDS, context=ssl.create_default_context())
        return http.client.HTTPConnection(*where, timeout=_SECONDS)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        """Raises Unreachable, or ValueError with what the server says."""
        try:
            connection.request(method, self._root + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no server answers at {self.url}: {_why(error)}") from None
        if response.status != 200:
            said = _message(self._json(response.read(_MAX_BODY)))
            raise ValueError(f"{self.url} says {response.status}: {said}")
        return response

    def _frames(self, response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
        """The data of server-sent events, to the last. Raises Unreachable where the stream breaks off."""
        events = EventStreamParser()
        try:
            while piece := response.read1(_PIECE):
                for data in events.feed(piece):
                    if data == b"[DONE]":
                        return
                    yield self._json(data)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.url} left in the middle of its answer: {_why(error)}") from None
        raise Unreachable(f"{self.url} left in the middle of its answer")

    def _json(self, data: bytes) -> Any:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ValueError(f"{self.url} answers with something else than OpenAI's interface has")
        return value


def _address(url: str) -> SplitResult:
    """The parts of a server's URL. Raises ValueError."""
    try:
        parts = urlsplit(url)
        stated = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # brackets without an address, a port that is no number
        stated = False
    if not stated or parts.query or parts.fragment:
        raise ValueError(f"{url} is no server's address; give one like http://127.0.0.1:8000")
    return parts


def _piece(frame: Mapping[str, Any]) -> ChatDelta:
    """What a chunk says; one without choices has the usage."""
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
