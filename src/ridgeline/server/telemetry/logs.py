"""The server's log: lines for people, or a JSON object a line for machines. No text of users is ever in it."""

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
    """A record as one object: time, level, logger, message, and its fields (`extra={"fields": ...}`)."""

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
    """`INFO 11-21 22:14:13 message`, control characters escaped: a line is a line, whatever a client sent."""

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
    """An exception's class and the lines that it passed, without what it says, which may quote a user."""
    kind, _, lines = raised
    return "".join(traceback.format_tb(lines)) + kind.__name__


def set_up_logs(format: LogFormat, stream: TextIO | None = None) -> None:
    """Send what the package and uvicorn log to a stream, or to stderr, in this format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    for name, level in (("ridgeline", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
