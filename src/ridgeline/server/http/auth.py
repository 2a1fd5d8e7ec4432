"""Access control: checks of the Host and Origin headers, and of API keys, if any are configured.

It decides by `scope["path"]`, as the router does, because a URL built from headers may differ (CVE-2026-48710).
Requests without a valid key can then reach only the `PUBLIC` paths.
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
"""The paths of the health routes."""

PUBLIC = HEALTH | PAGE
"""The paths served without a key; their contents are the same for every client."""

KEY = "ridgeline.key"
"""The name under which an ASGI scope stores the digest of the request's API key."""

MAX_KEYS = 1024


def read_keys(path: Path) -> tuple[str, ...]:
    """Read API keys from a file: one per line, without blank lines and lines that start with #.

    Raises:
        ValueError: If the file cannot be read or has no keys or too many.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: give a file with one API key per line") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give a file with one API key per line") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise ValueError(f"{path} has no API key: write one per line")
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{path} has {len(keys)} API keys, but the limit is {MAX_KEYS}: remove some")
    return keys


class Access:
    """An ASGI middleware that checks, in this order, the Host header, the Origin header, CORS and the API key."""

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
        """Check the headers of an HTTP request, and pass it on or respond with the error."""
        app = self.app
        if scope["type"] == "http":
            try:
                check_host(Headers(scope=scope), self.settings)
                check_origin(Headers(scope=scope), self.settings)
            except ApiError as error:
                app = _refusal(scope, error)
        await app(scope, receive, send)


class KeyCheck:
    """An ASGI middleware that passes on requests with a valid API key, and those to `PUBLIC` paths."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app, self._digests = app, [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the API key of a request, and pass it on or respond with 401; a `PUBLIC` path needs no key."""
        public = scope["type"] != "http" or scope["path"] in PUBLIC
        if not public:
            scope[KEY] = self._fitting(Headers(scope=scope))
        await (self.app if public or scope[KEY] else _refusal(scope, _wrong_key()))(scope, receive, send)

    def _fitting(self, headers: Headers) -> bytes | None:
        """Return the digest of the request's key if it is valid, else None.

        All digests are compared in constant time, so that the duration reveals neither a matching prefix nor the
        matching key.
        """
        given = headers.getlist("authorization")
        scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
        digest = _digest(key.encode("latin-1"))
        equal = [hmac.compare_digest(digest, ours) for ours in self._digests]
        return digest if scheme.lower() == "bearer" and any(equal) else None


def check_host(headers: Headers, settings: ServerSettings) -> None:
    """Reject a foreign Host header on a loopback server without keys, as a protection against DNS rebinding.

    A web page may point its own host name at 127.0.0.1 and then send requests as if it were of the same origin; the
    browser still sends that name.

    Raises:
        ApiError: If the host name is not allowed (403).
    """
    if settings.keys or not is_loopback(settings.host):
        return
    name = _host_name(headers.get("host", ""))
    if not (is_loopback(name) or name in (settings.host, *settings.allowed_hosts)):
        raise ApiError(
            403,
            "the Host header of this request is not allowed: allow the host with --allowed-hosts",
            code="host_not_allowed",
        )


def check_origin(headers: Headers, settings: ServerSettings) -> None:
    """Raise ApiError (403) for a request of a web page whose origin is not allowed; programs send no Origin."""
    origin = headers.get("origin")
    if origin is None or "*" in settings.allowed_origins or origin in settings.allowed_origins:
        return
    _, _, netloc = origin.partition("://")
    if not netloc or netloc != headers.get("host"):
        raise ApiError(
            403,
            "requests from this web origin are not allowed: allow it with --allowed-origins",
            code="origin_not_allowed",
        )


def check_client(request: Request, settings: ServerSettings, what: str) -> None:
    """Reject an expensive request from another machine if the server has no API keys.

    Args:
        request: The request.
        settings: The settings of the server.
        what: The requested action for the error message.

    Raises:
        ApiError: If the server has no keys and the client is on another machine (403).
    """
    host = request.client.host if request.client is not None else ""
    if not settings.keys and not is_loopback(host):
        raise ApiError(
            403,
            f"without an API key, only clients on this machine may {what}: start the server with --api-key-file",
            code="key_needed",
        )


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port; "" if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refusal(scope: Scope, error: ApiError) -> ASGIApp:
    """Return the error response as an application, and store the error code in the scope for metrics."""
    scope[ERROR_CODE] = error.code
    return error_response(error)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _wrong_key() -> ApiError:
    return ApiError(
        401,
        "the API key is missing or wrong: send `Authorization: Bearer KEY`",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
