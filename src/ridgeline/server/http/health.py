"""Health: what the server says of itself before anybody is asked for a key; and what answers while it loads."""

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
    """What runs: an engine, or what draws pictures.

    alive: requests are taken now. heard: grows with all that it says. ended: done when it is gone for good.
    """

    @property
    def alive(self) -> bool: ...

    @property
    def heard(self) -> int: ...

    @property
    def ended(self) -> Future[str]: ...

    @property
    def awaited(self) -> int:
        """Requests that are waited for; while there are any, `heard` grows, or it hangs."""


class Health:
    """What state the server is in.

    `loading` until there is an engine, `restarting` while another is started in place of one that died, `stalled` when
    it has said nothing for `stalled_seconds` though requests wait for it, `dead` when it is gone for good. `draining`:
    the server is to end and finishes what it has.
    """

    def __init__(self, stalled_seconds: float) -> None:
        self.watched: HealthSource | None = None
        self.draining = False
        self._alive = True
        self._stalled_seconds = stalled_seconds
        self._heard = self._still = 0.0  # what the engine had said, and for how many seconds it has not said more

    @property
    def state(self) -> State:
        """Of the server now."""
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
        """Look whether the engine moves, for ever."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.look(WATCH_SECONDS)

    def look(self, seconds: float) -> None:
        """So many seconds have passed since the last look."""
        if self.watched is None:
            return
        if self.watched.alive != self._alive and not self.watched.ended.done():
            self._alive = self.watched.alive
            logger.warning("the engine is back" if self._alive else "the engine's process died; another is started")
        waits = self.watched.awaited > 0 and self.watched.alive and self.watched.heard == self._heard
        self._heard, self._still = self.watched.heard, self._still + seconds if waits else 0.0

    def answer(self, path: str) -> Response:
        """To one of HEALTH. /health/live: whether the process is worth keeping. The others: whether a request could be
        answered now.
        """
        state = self.state
        good = state not in ("dead", "stalled") if path == "/health/live" else state == "ready"
        return JSONResponse({"status": state}, 200 if good else 503, {"cache-control": "no-store"})


class ReadinessGate:
    """The outermost application, which answers from the first connection on. It tells health, and hands all else to
    `app`; as long as that is None, there is the page, and any other request is a 503.
    """

    def __init__(self, health: Health) -> None:
        self.health = health
        self.app: ASGIApp | None = None
        self._page = Router(page_routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
    said = "this route does not have that method"
    return ApiError(405, said, code="method_not_allowed", headers={"Allow": "GET, HEAD"})


def _loading() -> ApiError:
    return ApiError(503, "the model is being loaded", kind="server_error", code="loading", headers={"Retry-After": "5"})
