"""Transport: a request's bytes to a server, and its answer's bytes back. Tests have one without a network."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Protocol

import aiohttp

from ridgeline.insight.bench.clock import Clock

_MAX_ERROR = 1 << 16


class NoResponse(Exception):
    """There is no whole answer; why, in a few words. unreachable: not even a connection."""

    def __init__(self, reason: str, *, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.unreachable = reason, unreachable


class HttpResponse(Protocol):
    """The beginning of an answer. sent: when the request was handed to the socket."""

    status: int
    sent: int

    def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes. Raises Unanswered where it breaks off."""


class Transport(Protocol):
    """The way to one route of a server."""

    def post(self, body: bytes) -> AbstractAsyncContextManager[HttpResponse]:
        """Send a body. Raises Unanswered."""


class _AiohttpResponse:
    def __init__(self, response: aiohttp.ClientResponse, sent: int) -> None:
        self.status, self.sent, self._response = response.status, sent, response

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._response.content.iter_any():
            yield piece


class HttpTransport:
    """A route over HTTP. As many connections as there are requests under way, kept open between them."""

    def __init__(self, url: str, headers: Mapping[str, str], clock: Clock) -> None:
        trace = aiohttp.TraceConfig()
        for signal in (trace.on_request_headers_sent, trace.on_request_chunk_sent):
            signal.append(self._sent)  # the last of them counts
        self.url, self._clock = url, clock
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            headers={"Content-Type": "application/json", **headers},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            trace_configs=[trace],
            trust_env=False,
        )

    async def _sent(self, _session: aiohttp.ClientSession, context: SimpleNamespace, _what: object) -> None:
        context.trace_request_ctx.sent = self._clock.now()

    @asynccontextmanager
    async def post(self, body: bytes) -> AsyncIterator[HttpResponse]:
        """Send a body. Raises Unanswered."""
        moments = SimpleNamespace(sent=self._clock.now())
        try:
            async with self._session.post(
                self.url, data=body, trace_request_ctx=moments, allow_redirects=False
            ) as response:
                yield _AiohttpResponse(response, moments.sent)
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise NoResponse(f"no connection to {self.url}: {_why(error)}", unreachable=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponse(f"the connection broke: {type(error).__name__}") from None

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()


def _why(error: aiohttp.ClientConnectorError | aiohttp.InvalidURL) -> str:
    """The system's words."""
    if isinstance(error, aiohttp.InvalidURL):
        return "that is no URL"
    return error.strerror or type(error.os_error).__name__


async def error_body(reply: HttpResponse) -> bytes:
    """The first 64 KiB of what came instead of an answer."""
    body = b""
    async for piece in reply.pieces():
        body += piece
        if len(body) > _MAX_ERROR:
            break
    return body
