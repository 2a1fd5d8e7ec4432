"""The transport of a request's bytes to a server and of its response back. Tests use one without a network."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Protocol

import aiohttp

from ridgeline.insight.bench.clock import Clock

_MAX_ERROR = 1 << 16


class NoResponse(Exception):
    """An exception for a missing or incomplete response; `unreachable` if there was not even a connection."""

    def __init__(self, reason: str, *, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.unreachable = reason, unreachable


class HttpResponse(Protocol):
    """A response whose body is still arriving; `sent` is when the request reached the socket."""

    status: int
    sent: int

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the response body as they arrive.

        Raises:
            NoResponse: If it breaks off.
        """


class Transport(Protocol):
    """A connection to one endpoint of a server."""

    def post(self, body: bytes) -> AbstractAsyncContextManager[HttpResponse]:
        """Post a request body and return an async context manager that yields the HTTP response.

        Raises:
            NoResponse: If there is no response.
        """


class _AiohttpResponse:
    def __init__(self, response: aiohttp.ClientResponse, sent: int) -> None:
        self.status, self.sent, self._response = response.status, sent, response

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._response.content.iter_any():
            yield piece


class HttpTransport:
    """An HTTP transport with one persistent connection per concurrent request."""

    def __init__(self, url: str, headers: Mapping[str, str], clock: Clock) -> None:
        trace = aiohttp.TraceConfig()
        for signal in (trace.on_request_headers_sent, trace.on_request_chunk_sent):
            signal.append(self._sent)  # the last call counts
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
        """Post a request body and yield the HTTP response within a context.

        Raises:
            NoResponse: If there is no response or it breaks off.
        """
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
        """Close all HTTP connections of the transport."""
        await self._session.close()


def _why(error: aiohttp.ClientConnectorError | aiohttp.InvalidURL) -> str:
    """Return the operating system's message on a failed connection, or that the URL is invalid."""
    if isinstance(error, aiohttp.InvalidURL):
        return "it is not a valid URL"
    return error.strerror or type(error.os_error).__name__


async def error_body(reply: HttpResponse) -> bytes:
    """Return the start of an error response's body: the pieces until they exceed 64 KiB, or the whole body."""
    body = b""
    async for piece in reply.pieces():
        body += piece
        if len(body) > _MAX_ERROR:
            break
    return body
