"""A parser of server-sent events from byte pieces of any size (WHATWG HTML, 9.2.6), which keeps only event data."""

_MAX_EVENT_BYTES = 1 << 24


class EventStreamParser:
    """The parser of one event stream; an event that lacks its closing blank line is dropped."""

    def __init__(self) -> None:
        self._rest = b""  # the start of a line that has not ended
        self._data: list[bytes] = []
        self._after_return = False  # the last byte was a carriage return, so a newline that follows belongs to it

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of all events that a piece of the stream completes.

        Raises:
            ValueError: If the parser would have to store more than 16 MiB of unfinished events.
        """
        if self._after_return and piece:
            piece, self._after_return = piece.removeprefix(b"\n"), False
        lines = (self._rest + piece).splitlines(keepends=True)
        ended = bool(lines) and lines[-1].endswith((b"\n", b"\r"))
        self._rest = lines.pop() if lines and not ended else b""
        self._after_return |= ended and lines[-1].endswith(b"\r")
        if len(self._rest) + sum(map(len, self._data)) > _MAX_EVENT_BYTES:
            raise ValueError(f"a stream event larger than {_MAX_EVENT_BYTES >> 20} MiB")
        return [event for line in lines if (event := self._line(line.rstrip(b"\r\n"))) is not None]

    def _line(self, line: bytes) -> bytes | None:
        """Process a line of the stream, and return the data of the event that it completes, or None.

        An empty line completes an event. Comments, ids and event names are ignored.
        """
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
