"""The log formats of the server: text for people, or a JSON object per line. No log line contains text of users."""

import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Any, Literal, TextIO

import msgspec
from typing_extensions import override

LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """A log formatter that writes one JSON object: time, level, logger, message, and the record's `fields`.

    A caller passes them as `extra={"fields": ...}`.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()

    @override
    def formatException(self, ei: Any) -> str:
        return where_raised(ei)


class TextFormatter(logging.Formatter):
    """A log formatter that writes `INFO 11-21 22:14:13 message`, with control characters escaped."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in record.getMessage())
        line = f"{record.levelname} {stamp} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    @override
    def formatException(self, ei: Any) -> str:
        return where_raised(ei)


def where_raised(raised: tuple[type[BaseException], BaseException, TracebackType | None]) -> str:
    """Return an exception's traceback and class without its message, which may quote a user."""
    kind, _, lines = raised
    return "".join(traceback.format_tb(lines)) + kind.__name__


def set_up_logs(format: LogFormat, stream: TextIO | None = None) -> None:
    """Send the logs of the package and of uvicorn to a stream, or to stderr, in this format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    for name, level in (("ridgeline", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
