"""Server-sent events, out of bytes that come in any pieces (WHATWG HTML, 9.2.6; only the data of an event is kept)."""

_MAX_EVENT_BYTES = 1 << 24


class EventStreamParser:
    """The events of one stream. An event without the blank line that ends it is none."""

    def __init__(self) -> None:
        self._rest = b""  # of a line that has not ended
        self._data: list[bytes] = []
        self._after_return = False  # a newline that comes next belongs to it

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that a piece completes. Raises ValueError for an event of more than 16 MiB."""
        if self._after_return and piece:
            piece, self._after_return = piece.removeprefix(b"\n"), False
        lines = (self._rest + piece).splitlines(keepends=True)
        ended = bool(lines) and lines[-1].endswith((b"\n", b"\r"))
        self._rest = lines.pop() if lines and not ended else b""
        self._after_return |= ended and lines[-1].endswith(b"\r")
        if len(self._rest) + sum(map(len, self._data)) > _MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {_MAX_EVENT_BYTES >> 20} MiB")
        return [event for line in lines if (event := self._line(line.rstrip(b"\r\n"))) is not None]

    def _line(self, line: bytes) -> bytes | None:
        """What an empty line ends; other lines are data, or of no interest: comments, ids, names of events."""
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
