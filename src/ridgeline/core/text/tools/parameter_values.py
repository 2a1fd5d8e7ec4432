"""The JSON values of parameters that a model writes as plain text, as in `<parameter=days>3</parameter>`.

The schema of the function decides the type: `3` is a number for an integer and text for a string. A value that fits no
type of its schema stays text, so that nothing is lost; the caller then sees what the model wrote.
"""

import ast
import json
from collections.abc import Mapping
from typing import Any

from ridgeline.core.text.tools.json_schema import excludes_strings, is_of_type, json_types
from ridgeline.core.text.tools.literal_reader import WORDS


def json_of(text: str, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> str:
    """Return the JSON text of the value that a parameter's text stands for.

    Args:
        text: The text that the model wrote.
        schema: The JSON schema of the parameter; {} if it has none.
        root: The schema of all parameters, in which references (`#/$defs/...`) are found.
    """
    types = json_types(schema, root or schema)
    value = _value(text)
    if isinstance(value, str) or (types and not any(is_of_type(value, name) for name in types)):
        value = text
    return _written(value)


def json_of_marked(text: str, schema: Mapping[str, Any], root: Mapping[str, Any], *, is_text: bool) -> str:
    """Return the JSON text of a value that a model marks as text or as JSON.

    The schema decides if it allows only the other kind: `42` is a number for an integer, and text for a string.

    Args:
        text: The text that the model wrote.
        schema: The JSON schema of the parameter; {} if it has none.
        root: The schema of all parameters.
        is_text: Whether the model marks the value as text.
    """
    if is_text:
        return json_of(text, schema, root) if excludes_strings(schema, root) else _written(text)
    types = json_types(schema, root)
    try:
        value = _json(text)
    except (ValueError, RecursionError):
        value = _value(text)
    fits = "string" not in types or isinstance(value, str) or any(is_of_type(value, name) for name in types)
    return _written(value if fits else text)


def _written(value: Any) -> str:
    """Return the JSON text of a value."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # JSON's escapes can be halves of characters, which no encoding writes.
    return written if _is_encodable(written) else json.dumps(value)


def _is_encodable(text: str) -> bool:
    """Return whether a text has only whole characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _value(text: str) -> Any:
    """Return the value that a text is in JSON or in Python's notation, or the text itself if it is neither.

    A quoted string is returned with its quotes, because models write strings without them.
    """
    stripped = text.strip()
    if stripped in WORDS:
        return json.loads(WORDS[stripped])
    for read in (_json, ast.literal_eval) if stripped[:1] in ("[", "{") else (_json,):
        try:
            value = read(stripped)
            json.dumps(value, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return text if isinstance(value, str) else value
    return text


def _json(text: str) -> Any:
    """Read JSON; raise ValueError for NaN and infinities, which JSON lacks."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)
