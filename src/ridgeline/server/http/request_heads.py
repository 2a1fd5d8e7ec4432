"""Heads of requests: h11 reads them, and those that are too large or could be read in two ways are refused.

What h11 0.16 leaves open and this closes: a head that arrives in one piece may have any size, and `Content-Length`
beside `Transfer-Encoding` is accepted.
"""

import re

import h11
from typing_extensions import override

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.server_settings import ServerSettings

_HOST = re.compile(rb"[A-Za-z0-9._~\-\[\]:%]*")


class LimitedConnection(h11.Connection):
    """Reads requests as h11 does and refuses heads that are too large or could be read in two ways.

    refusal: what to answer to the request that `next_event` raised for.
    """

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=settings.header_bytes)
        self.settings = settings
        self.refusal: ApiError | None = None

    @override
    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.refusal = _too_large(self.settings)
            raise
        if isinstance(event, h11.Request):
            self.refusal = check_head(event, self.settings)
            if self.refusal is not None:
                raise h11.RemoteProtocolError(self.refusal.message)
        return event


def check_head(head: h11.Request, settings: ServerSettings) -> ApiError | None:
    """What is wrong with a request's head that h11 has read."""
    names = [name for name, _ in head.headers]
    size = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
    if len(names) > settings.headers or size > settings.header_bytes:
        return _too_large(settings)
    if b"transfer-encoding" in names and (b"content-length" in names or head.http_version != b"1.1"):
        return invalid("the request states its length in two ways", code="invalid_request")
    if head.http_version not in (b"1.0", b"1.1"):
        return invalid("the request is of another version of HTTP than 1.0 and 1.1", code="invalid_request")
    if not head.target.startswith(b"/"):
        return invalid("the request's target does not begin with a slash", code="invalid_request")
    if any(name == b"host" and not _HOST.fullmatch(value) for name, value in head.headers):
        return invalid("the Host header is not a host name", code="invalid_request")
    return None


def _too_large(settings: ServerSettings) -> ApiError:
    """A head of too many or too large headers."""
    message = f"a request has at most {settings.headers} headers of {settings.header_bytes} bytes in all"
    return ApiError(431, message, code="headers_too_large")
