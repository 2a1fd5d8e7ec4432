"""Long responses: written part by part and sent part by part, so that other responses go on meanwhile."""

from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

_SENT_BYTES = 1 << 18
"""The number of bytes of a response that are sent at a time."""


class EncodedList:
    """A long list in a response, which is encoded as JSON part by part and put into the response as it is."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, entries: Sequence[object]) -> None:
        """Write further entries."""
        if entries:
            self._parts.append(msgspec.json.encode(entries)[1:-1])

    def extend(self, other: "EncodedList") -> None:
        """Take over the entries of another list."""
        self._parts += other._parts

    def json(self) -> msgspec.Raw:
        """Return the whole list."""
        return msgspec.Raw(b"[" + b",".join(self._parts) + b"]")


class LongResponse(Response):
    """A response in JSON whose body is sent in parts, each as the client reads those before it."""

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
