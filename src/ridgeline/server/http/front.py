"""Front: what answers from the first connection on, when the model is still to be read."""

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.server.admission import shutting_down
from ridgeline.server.errors import ApiError, error_response
from ridgeline.server.http.auth import HEALTH
from ridgeline.server.http.health import Health
from ridgeline.server.http.page import PAGE, page_routes


class Front:
    """Tells health, and hands all else to the application; as long as that is None, there is the page, and any other
    request is a 503."""

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
