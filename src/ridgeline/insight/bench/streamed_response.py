"""A streamed response of a chat or completion endpoint, assembled from its frames."""

from typing import Any

import msgspec

DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _StreamFrame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: dict[str, float] | None = None
    error: Any = None


SHORTER = "give shorter --input and --output"
"""The advice in an error message if a prompt of random words exceeds the model's context."""

_READER = msgspec.json.Decoder(_StreamFrame)


class StreamedResponse:
    """The state of a streamed response.

    `text` excludes reasoning. `finished` is true once a finish_reason or [DONE] arrived. `error` is the server's error
    message. `prompt`, `output` and `cached` are token counts from its usage. `timings` are the server's own figures by
    name, if it reports them (those of llama.cpp, and `queued_ms` and `first_token_ms` of Ridgeline).
    """

    def __init__(self) -> None:
        self.text = ""
        self.finished = False
        self.error: str | None = None
        self.prompt: int | None = None
        self.output: int | None = None
        self.cached: int | None = None
        self.timings: dict[str, float] = {}

    def take(self, frame: bytes) -> bool:
        """Process a frame of the stream and return whether it has content, not only a role or token counts.

        Raises:
            ValueError: If it is not a frame of the OpenAI format.
        """
        if frame == DONE:
            self.finished = True
            return False
        try:
            read = _READER.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("a stream event that is not in OpenAI's format") from None
        if read.error is not None:
            self.error = _words(read.error)
        if read.usage is not None:
            self._count(read.usage)
        self.timings |= read.timings or {}
        pieces = [self._choice(choice) for choice in read.choices]
        return any(pieces)

    def _count(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details
        self.prompt, self.output = usage.prompt_tokens, usage.completion_tokens
        self.cached = None if details is None else details.cached_tokens

    def _choice(self, choice: _Choice) -> bool:
        """Process one choice of a streamed frame and return whether it has content."""
        self.finished |= choice.finish_reason is not None
        delta = choice.delta or _Delta()
        text = (choice.text or "") + (delta.content or "")
        self.text += text
        return bool(text or delta.reasoning or delta.reasoning_content or delta.tool_calls)


def error_in(body: bytes) -> str:
    """Return the error message of a failed response in one line of at most 200 characters, or "" if it has none."""
    try:
        return _words(_READER.decode(body).error)
    except (msgspec.DecodeError, RecursionError):
        return ""


def beyond_context(reason: str) -> bool:
    """Return whether a server rejected a request for exceeding the context.

    Servers word this differently, but all mention the context.
    """
    return reason.startswith("HTTP 400") and "context" in reason


def _words(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message or "").split())[:200]
