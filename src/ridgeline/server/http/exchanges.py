"""Exchanges: each HTTP request with what became of it, told once to whoever logs or counts; the access log's line."""

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
"""The header that names the fields of a request that nobody knows."""
REFUSED = "ridgeline.refused"
"""Where a request's scope has the ApiError that the protocol answered with while the application had the request."""
MAX_PATH = 200

logger = logging.getLogger("ridgeline.server.access")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is over.

    client: its host and port. method, path: as it wrote them; None where no head was read. handler: the pattern of its
    route. status: of the answer; GONE where the client left before one. code: of the error that it was answered with.
    ignored: fields that nobody knows.
    """

    client: tuple[str, int] | None
    method: str | None
    path: str | None
    handler: str | None
    status: int
    seconds: float
    code: str | None = None
    ignored: int = 0


ExchangeObserver = Callable[[Exchange], None]


class Exchanges:
    """The outermost layer: tells of each request that is over, except health's.

    An exception that no layer below has made an answer of becomes a 500 here. uvicorn would log its words, which may
    be a user's.
    """

    def __init__(self, app: ASGIApp, observers: Sequence[ExchangeObserver]) -> None:
        """observers: looked at for each exchange: further ones may join."""
        self._app, self._observers = app, observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
    """start: of the answer, None where there was none."""
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
    """`CLIENT "METHOD PATH" STATUS SECONDS s`, without what was in it; `"-"` for a head that was not read."""
    client = f"{exchange.client[0]}:{exchange.client[1]}" if exchange.client else "-"
    asked = "-"
    if exchange.method is not None and exchange.path is not None:
        asked = f"{quote(exchange.method)} {quote(exchange.path)[:MAX_PATH]}"
    logger.info('%s "%s" %d %.3f s', client, asked, exchange.status, exchange.seconds)
