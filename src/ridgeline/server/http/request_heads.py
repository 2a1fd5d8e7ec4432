"""The parsing of request heads with h11, with a rejection of heads that are too large or ambiguous.

Without this, h11 0.16 accepts a head of any size if it arrives in one piece, and `Content-Length` next to
`Transfer-Encoding`.
"""

import re

import h11
from typing_extensions import override

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.server_settings import ServerSettings

_HOST = re.compile(rb"[A-Za-z0-9._~\-\[\]:%]*")


class LimitedConnection(h11.Connection):
    """An h11 connection that rejects request heads that are too large or ambiguous.

    After `next_event` has raised an error, `refusal` is the response to send.
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
    """Return the error of a request head that h11 has parsed; None if it is valid."""
    names = [name for name, _ in head.headers]
    size = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
    if len(names) > settings.headers or size > settings.header_bytes:
        return _too_large(settings)
    if b"transfer-encoding" in names and (b"content-length" in names or head.http_version != b"1.1"):
        return invalid(
            "the request has Transfer-Encoding together with Content-Length or HTTP/1.0: send only Content-Length",
            code="invalid_request",
        )
    if head.http_version not in (b"1.0", b"1.1"):
        return invalid("the request does not use HTTP/1.0 or HTTP/1.1", code="invalid_request")
    if not head.target.startswith(b"/"):
        return invalid("the request's target does not start with a slash", code="invalid_request")
    if any(name == b"host" and not _HOST.fullmatch(value) for name, value in head.headers):
        return invalid("the Host header is not a valid host name", code="invalid_request")
    return None


def _too_large(settings: ServerSettings) -> ApiError:
    """Return the 431 error for too many or too large headers."""
    message = (
        f"the request head is too large: at most {settings.headers} headers with {settings.header_bytes} bytes in "
        "all are allowed"
    )
    return ApiError(431, message, code="headers_too_large")
