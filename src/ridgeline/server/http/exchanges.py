"""The observation of finished HTTP requests except health checks, for metrics and the access log."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.engine.request import NANOSECONDS
from ridgeline.server.errors import ERROR_CODE, ApiError, error_response, internal
from ridgeline.server.http.auth import HEALTH
from ridgeline.server.http.disconnect import GONE

IGNORED = "x-ridgeline-ignored-fields"
"""The response header that lists the unknown fields of a request."""
REFUSED = "ridgeline.refused"
"""The ASGI scope key of the ApiError that the HTTP protocol sent while the application handled the request."""
MAX_PATH = 200

logger = logging.getLogger("ridgeline.server.access")


@dataclass(frozen=True, slots=True)
class Exchange:
    """The record of a finished HTTP request, for metrics and the access log."""

    client: tuple[str, int] | None
    """The host and port of the HTTP client."""
    method: str | None
    """The method as the client sent it; None if no head was read."""
    path: str | None
    """The path of the request with %-escapes decoded; None if no head was read."""
    handler: str | None
    """The path pattern of the route that handled the request, or None."""
    status: int
    """The response status; `GONE` if the client left before a response."""
    seconds: float
    code: str | None = None
    """The code of the error response, if it was one."""
    ignored: int = 0
    """The number of unknown fields in the request body, at most as many as the response header lists."""


ExchangeObserver = Callable[[Exchange], None]


class Exchanges:
    """The outermost ASGI middleware, which reports each finished request except health checks.

    It turns an exception that no inner layer handled into a 500 response. uvicorn would log the exception's message,
    which may quote a user.
    """

    def __init__(self, app: ASGIApp, observers: Sequence[ExchangeObserver]) -> None:
        """Wrap an application whose requests are observed.

        Args:
            app: The application.
            observers: Called with each finished request; observers may be added later.
        """
        self._app, self._observers = app, observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for a request, and call the observers when it has ended."""
        started, start = time.perf_counter_ns(), None

        async def watched(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            logger.error("a request failed", exc_info=error)
            if start is None:
                await error_response(internal())(scope, receive, watched)
        finally:
            if scope["path"] not in HEALTH:
                exchange = _exchange(scope, start, (time.perf_counter_ns() - started) * NANOSECONDS)
                for observer in self._observers:
                    observer(exchange)


def _exchange(scope: Scope, start: Message | None, seconds: float) -> Exchange:
    """Return the record of a finished request from its scope and the start message of its response, if any."""
    refusal: ApiError | None = scope.get(REFUSED)
    status = GONE if start is None else start["status"]
    ignored = "" if start is None else Headers(raw=start["headers"]).get(IGNORED, "")
    return Exchange(
        client=scope.get("client"),
        method=scope["method"],
        path=scope["path"],
        handler=getattr(scope.get("route"), "path", None),
        status=status if refusal is None else refusal.status,
        seconds=seconds,
        code=scope.get(ERROR_CODE) if refusal is None else refusal.code,
        ignored=ignored.count(",") + 1 if ignored else 0,
    )


def log_exchange(exchange: Exchange) -> None:
    """Log `CLIENT "METHOD PATH" STATUS SECONDS s`, with `"-"` for a request whose head was not read."""
    client = f"{exchange.client[0]}:{exchange.client[1]}" if exchange.client else "-"
    request_line = "-"
    if exchange.method is not None and exchange.path is not None:
        request_line = f"{quote(exchange.method)} {quote(exchange.path)[:MAX_PATH]}"
    logger.info('%s "%s" %d %.3f s', client, request_line, exchange.status, exchange.seconds)
