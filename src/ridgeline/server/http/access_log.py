"""The access log: a line for each request, without what was in it; and a net under the application."""

import logging
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.engine.request import NANOSECONDS
from ridgeline.server.errors import error_response, internal
from ridgeline.server.http.auth import PUBLIC
from ridgeline.server.http.disconnect import GONE

MOST_PATH = 200

logger = logging.getLogger("ridgeline.server.access")


class AccessLog:
    """The outermost layer: says `CLIENT "METHOD PATH" STATUS SECONDS s` of each request that is over, except health's.

    An exception that no layer below has made an answer of becomes a 500 here. uvicorn would log its words, which may
    be a user's.
    """

    def __init__(self, app: ASGIApp, *, lines: bool) -> None:
        self._app, self._lines = app, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter_ns(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            logger.error("a request failed", exc_info=error)
            if not status:
                await error_response(internal())(scope, receive, watched)
        finally:
            status = status or GONE
            if self._lines and scope["path"] not in PUBLIC:
                logger.info("%s %d %.3f s", _of(scope), status, (time.perf_counter_ns() - started) * NANOSECONDS)


def _of(scope: Scope) -> str:
    client = scope.get("client")
    where = f"{client[0]}:{client[1]}" if client else "-"
    return f'{where} "{quote(scope["method"])} {quote(scope["path"])[:MOST_PATH]}"'
