"""The log's two formats: one line a record, and no words of a user."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ridgeline.server.telemetry.logs import LogFormat, set_up_logs

SECRET = "what the user wrote"


@contextmanager
def logged(format: LogFormat) -> Iterator[io.StringIO]:
    """What is logged meanwhile; afterwards the loggers are as they were."""
    loggers = [logging.getLogger(name) for name in ("ridgeline", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    stream = io.StringIO()
    set_up_logs(format, stream)
    try:
        yield stream
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def _fail() -> None:
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("ridgeline.server.x").exception("it failed")


def test_json_is_an_object_a_line_with_the_fields() -> None:
    with logged("json") as stream:
        logging.getLogger("ridgeline.server.x").info("a %s\n\x1b[31m", "line", extra={"fields": {"running": 3}})
        _fail()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "ridgeline.server.x", "a line\n\x1b[31m")
    assert first["running"] == 3
    assert second["exception"].endswith("ValueError")
    assert "_fail" in second["exception"]
    assert SECRET not in stream.getvalue()


def test_text_escapes_what_does_not_print() -> None:
    with logged("text") as stream:
        logging.getLogger("ridgeline.server.x").info("path %s", "/v1\r\nINFO forged \x1b[31m \u202e")
        _fail()
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith(r"path /v1\r\nINFO forged \x1b[31m \u202e")
    assert lines[0].startswith("INFO ")
    assert lines[-1] == "ValueError"
    assert SECRET not in stream.getvalue()
