"""Long JSON responses, which are encoded and sent in parts so that other responses proceed meanwhile."""

from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

_SENT_BYTES = 1 << 18
"""The number of bytes per part of a response body."""


class EncodedList:
    """A long list that is encoded to JSON part by part and embedded in a response unchanged."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, entries: Sequence[object]) -> None:
        """Encode entries to JSON and append them to this list."""
        if entries:
            self._parts.append(msgspec.json.encode(entries)[1:-1])

    def extend(self, other: "EncodedList") -> None:
        """Append the entries of another EncodedList, which are already encoded as JSON."""
        self._parts += other._parts

    def json(self) -> msgspec.Raw:
        """Return the whole list as raw JSON for the response."""
        return msgspec.Raw(b"[" + b",".join(self._parts) + b"]")


class LongResponse(Response):
    """A JSON response whose body is sent in parts, with a pause while the client leaves too many bytes unread."""

    media_type = "application/json"

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), _SENT_BYTES):
            await send(
                {"type": "http.response.body", "body": bytes(body[start : start + _SENT_BYTES]), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})
