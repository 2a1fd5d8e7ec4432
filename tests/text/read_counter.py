"""A count of the characters that the readers of a format receive, to show that reading takes linear time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.core.text.tools import Function, ToolFormat, ToolParser


def check_no_character_is_read_twice(form: ToolFormat, functions: Sequence[Function], text: str) -> None:
    """Check that a character is read in one section at most, and that a text without calls stays whole."""
    sent = 0

    def read(new: Any, opening: str) -> Any:
        nonlocal sent
        calls = form.read(new, opening)
        next(calls)
        while True:
            c = yield
            sent += 1
            try:
                calls.send(c)
            except StopIteration:
                return

    parser = ToolParser(replace(form, read=read), functions)
    content = parser.push(text).content + parser.finish().content
    assert sent <= len(text)
    assert parser.complete or content == text
