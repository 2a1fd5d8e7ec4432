"""Who may ask: the Host and Origin that a browser sends, and API keys. Denied by default: only PUBLIC
needs no key.

Decided on `scope["path"]`, on which the router decides too: a URL put together from headers can say something else
(CVE-2026-48710).
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.server.errors import ERROR_CODE, ApiError, error_response
from ridgeline.server.http.page_routes import PAGE
from ridgeline.server.server_settings import ServerSettings, is_loopback

HEALTH = frozenset({"/health", "/health/live", "/health/ready", "/ping"})
"""What says how the server is."""

PUBLIC = HEALTH | PAGE
"""What answers without a key. Nothing of what it says depends on a request."""

KEY = "ridgeline.key"
"""Where a request's scope has the digest of the key that let it in."""

MAX_KEYS = 1024


def read_keys(path: Path) -> tuple[str, ...]:
    """API keys from a file: one a line; blank lines and those that begin with # are skipped. Raises ValueError."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; give a file with one API key a line") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; give a file with one API key a line") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise ValueError(f"{path} holds no API key; write one a line")
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{path} holds {len(keys)} API keys; at most {MAX_KEYS} are taken")
    return keys


class Access:
    """The application behind its checks, in this order: Host, Origin, CORS, key."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        inner: ASGIApp = KeyCheck(app, settings.keys) if settings.keys else app
        if settings.allowed_origins:
            inner = CORSMiddleware(
                inner,
                allow_origins=settings.allowed_origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),
                expose_headers=("*",),
            )
        self.app, self.settings = inner, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            try:
                check_host(Headers(scope=scope), self.settings)
                check_origin(Headers(scope=scope), self.settings)
            except ApiError as error:
                app = _refusal(scope, error)
        await app(scope, receive, send)


class KeyCheck:
    """Lets requests with a key through to an application, and those to PUBLIC."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app, self._digests = app, [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        public = scope["type"] != "http" or scope["path"] in PUBLIC
        if not public:
            scope[KEY] = self._fitting(Headers(scope=scope))
        await (self.app if public or scope[KEY] else _refusal(scope, _wrong_key()))(scope, receive, send)

    def _fitting(self, headers: Headers) -> bytes | None:
        """The digest of the key that was given, if one was and it is one of ours. All are compared, whole digests, in
        constant time: how long it takes tells neither how much of a key was right nor which.
        """
        given = headers.getlist("authorization")
        scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
        digest = _digest(key.encode("latin-1"))
        equal = [hmac.compare_digest(digest, ours) for ours in self._digests]
        return digest if scheme.lower() == "bearer" and any(equal) else None


def check_host(headers: Headers, settings: ServerSettings) -> None:
    """Raises ApiError (403) if a server that listens on loopback without a key is called by a foreign name.

    A page may point its own name at 127.0.0.1 and then ask as if it were of this origin (DNS rebinding); the browser
    still sends that name.
    """
    if settings.keys or not is_loopback(settings.host):
        return
    name = _host_name(headers.get("host", ""))
    if not (is_loopback(name) or name in (settings.host, *settings.allowed_hosts)):
        raise ApiError(
            403, "the server does not answer to this Host; allow it with --allowed-hosts", code="host_not_allowed"
        )


def check_origin(headers: Headers, settings: ServerSettings) -> None:
    """Raises ApiError (403) for a page of another web origin that is not listed. Programs send no Origin."""
    origin = headers.get("origin")
    if origin is None or "*" in settings.allowed_origins or origin in settings.allowed_origins:
        return
    _, _, netloc = origin.partition("://")
    if not netloc or netloc != headers.get("host"):
        raise ApiError(
            403, "this web origin may not ask the server; allow it with --allowed-origins", code="origin_not_allowed"
        )


def check_client(request: Request, settings: ServerSettings, what: str) -> None:
    """Raises ApiError (403) for another machine where no key is asked for, of what costs everybody else. what: is asked
    for, in words.
    """
    host = request.client.host if request.client is not None else ""
    if not settings.keys and not is_loopback(host):
        raise ApiError(403, f"without an API key only this machine may {what}", code="key_needed")


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; "" where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refusal(scope: Scope, error: ApiError) -> ASGIApp:
    """The answer to a request that goes no further; its scope says why, for whoever counts."""
    scope[ERROR_CODE] = error.code
    return error_response(error)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _wrong_key() -> ApiError:
    return ApiError(
        401,
        "no API key, or a wrong one: send `Authorization: Bearer KEY`",
        kind="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
