"""The health of the server: its state, the public health routes, and the responses while the model loads."""

import asyncio
import logging
from concurrent.futures import Future
from typing import Literal, Protocol

from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.server.admission import shutting_down
from ridgeline.server.errors import ApiError, error_response
from ridgeline.server.http.auth import HEALTH
from ridgeline.server.http.page_routes import PAGE, page_routes

State = Literal["loading", "ready", "restarting", "stalled", "dead", "draining"]

WATCH_SECONDS = 1.0

logger = logging.getLogger(__name__)


class HealthSource(Protocol):
    """The interface of an engine that the health monitor watches."""

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests."""

    @property
    def messages_received(self) -> int:
        """A counter that grows with each message of the engine."""

    @property
    def ended(self) -> Future[str]:
        """A future that completes with the reason when the engine is gone for good."""

    @property
    def num_awaited(self) -> int:
        """The number of unfinished requests.

        While it is positive and `messages_received` does not grow, the engine hangs.
        """


class Health:
    """The state of the server, derived from its engine once a second.

    - `loading`: There is no engine yet.
    - `ready`: The engine accepts requests.
    - `restarting`: The engine died and another is starting.
    - `stalled`: The engine has been silent for `stalled_seconds` although there are unfinished requests.
    - `dead`: The engine is gone for good.
    - `draining`: The server finishes its requests and then ends.
    """

    def __init__(self, stalled_seconds: float) -> None:
        self.watched: HealthSource | None = None
        self.draining = False
        self._alive = True
        self._stalled_seconds = stalled_seconds
        self._messages = self._still = 0.0  # the last message count, and the seconds since it changed

    @property
    def state(self) -> State:
        """The present state of the server."""
        if self.watched is None:
            return "draining" if self.draining else "loading"
        if self.watched.ended.done():
            return "dead"
        if self._still >= self._stalled_seconds:
            return "stalled"
        if self.draining:
            return "draining"
        return "ready" if self.watched.alive else "restarting"

    async def watch(self) -> None:
        """Check the engine's progress once a second, for ever."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.look(WATCH_SECONDS)

    def look(self, seconds: float) -> None:
        """Check the engine's progress, `seconds` after the last check."""
        if self.watched is None:
            return
        if self.watched.alive != self._alive and not self.watched.ended.done():
            self._alive = self.watched.alive
            logger.warning(
                "the engine is running again" if self._alive else "the engine's process died and is restarting"
            )
        waits = self.watched.num_awaited > 0 and self.watched.alive and self.watched.messages_received == self._messages
        self._messages, self._still = self.watched.messages_received, self._still + seconds if waits else 0.0

    def answer(self, path: str) -> Response:
        """Return the response of a health route: 200 or 503, with the state of the server.

        /health/live fails only if the server is dead or stalled, the other routes whenever it is not ready.
        """
        state = self.state
        good = state not in ("dead", "stalled") if path == "/health/live" else state == "ready"
        return JSONResponse({"status": state}, 200 if good else 503, {"cache-control": "no-store"})


class ReadinessGate:
    """The ASGI application that serves from the first connection on, before and after the model is loaded.

    It answers health routes itself and passes all else to `app`. While `app` is None it serves the web page, and 503
    for other paths.
    """

    def __init__(self, health: Health) -> None:
        self.health = health
        self.app: ASGIApp | None = None
        self._page = Router(page_routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a health request, or pass the request on."""
        await self._answers(scope)(scope, receive, send)

    def _answers(self, scope: Scope) -> ASGIApp:
        if scope["path"] in HEALTH:
            known = scope["method"] in ("GET", "HEAD")
            return self.health.answer(scope["path"]) if known else error_response(_not_that_method())
        if self.app is None:
            if scope["path"] in PAGE:
                return self._page
            return error_response(shutting_down() if self.health.draining else _loading())
        return self.app


def _not_that_method() -> ApiError:
    message = "this route does not support that method"
    return ApiError(405, message, code="method_not_allowed", headers={"Allow": "GET, HEAD"})


def _loading() -> ApiError:
    return ApiError(503, "the model is still loading", code="loading", headers={"Retry-After": "5"})
