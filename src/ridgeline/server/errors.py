"""The form in which an error reaches a client: OpenAI's error object, without messages of unexpected exceptions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from starlette.responses import Response

ERROR_CODE = "ridgeline.error"
"""The key of an ASGI scope under which the server stores the code of the error response."""

MAX_MESSAGE = 400
"""The most characters of an error message, because a message may quote a value with thousands of digits."""


_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
"""OpenAI's `type` of an error by its status; other statuses from 500 are server_error, others invalid_request_error."""


class ApiError(Exception):
    """An error response, raised anywhere below a route and turned into an HTTP response by the application.

    Args:
        status: The HTTP status.
        message: The text for the client, cut to `MAX_MESSAGE` characters.
        param: The name of the request field that is wrong.
        code: One of the codes listed in docs/serving.md.
        headers: Further headers of the response.
        retry: Whether client libraries should retry by themselves (x-should-retry); None leaves it to the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str,
        headers: Mapping[str, str] | None = None,
        retry: bool | None = None,
    ) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        super().__init__(message)
        self.status, self.message = status, message
        self.kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.param, self.code, self.retry = param, code, retry
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """Return OpenAI's error object, which is the response body, or the last frame of a stream that fails."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, *, code: str = "invalid_value") -> ApiError:
    """Return the 400 error for an invalid request."""
    return ApiError(400, message, param=param, code=code)


@contextmanager
def as_invalid(param: str | None = None, *, code: str = "invalid_value") -> Iterator[None]:
    """Turn a ValueError, whose message is for the client, into the 400 error for an invalid request."""
    try:
        yield
    except ValueError as error:
        raise invalid(str(error), param, code=code) from None


def internal() -> ApiError:
    """Return the 500 error for a bug of the server; it tells clients not to retry, as a retry would fail again."""
    return ApiError(500, "the server failed on this request", code="internal", retry=False)


def model_failed(*, out_of_memory: bool) -> ApiError:
    """Return the error for a request that failed while the model ran it, without the cause."""
    if out_of_memory:
        return ApiError(503, "there was not enough memory for this request", code="out_of_memory")
    return ApiError(500, "the model failed on this request", code="failed", retry=False)


def error_response(error: ApiError) -> Response:
    """Return the HTTP response for an error."""
    retry = {} if error.retry is None else {"x-should-retry": str(error.retry).lower()}
    return Response(msgspec.json.encode(error.body()), error.status, {**error.headers, **retry}, "application/json")
