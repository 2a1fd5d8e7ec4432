"""The parsing of untrusted request bodies into JSON objects; each limit is checked before the code that it protects."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.event_loop import offload_if_long
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.type_errors import explain_json
from ridgeline.util.untrusted import MAX_VALUES, crowded, crowded_field, outside_strings, without_collecting

_BESIDE_IDS = 4096
"""The number of values that a request may have besides its token ids: lists of ids, and other fields."""


async def read_object(request: Request, settings: ServerSettings, most_ids: int = 0) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Numbers are finite, strings are Unicode without lone surrogates, nesting is at most `settings.json_depth`. Of two
    equal names in one object the last counts, as in every common parser.

    Args:
        request: The request, whose body is read from the connection.
        settings: The limits of the server.
        most_ids: Token ids in the largest batch that the route accepts. A body may have this many values plus
            `_BESIDE_IDS`, or `MAX_VALUES` if that is more.

    Raises:
        ApiError: If the body is too large (413), or is no such object or has too many values (400).
    """
    body = await read_bytes(request.headers, request.stream(), settings.body_bytes)
    return await parse_object(body, settings.json_depth, most_ids)


async def parse_object(body: bytes, most_depth: int, most_ids: int = 0) -> dict[str, Any]:
    """Return the JSON object in a body; arguments and errors are those of `read_object`.

    The structure of a long body is checked in a thread.
    """
    await offload_if_long(len(body), lambda: check_structure(body, most_depth, most_ids))
    return _decoded(body)


async def read_bytes(headers: Mapping[str, str], chunks: AsyncIterator[bytes], most: int) -> bytes:
    """Return a body of at most `most` bytes; check its stated length first, and the real one while reading."""
    stated = headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async for chunk in chunks:
            if len(body) + len(chunk) > most:
                raise _too_large(most)
            body += chunk
    except ClientDisconnect:  # the client has gone, so this error reaches only the log
        raise invalid("the connection closed before the body was complete", code="invalid_request") from None
    return bytes(body)


def check_structure(body: bytes, most_depth: int, most_ids: int = 0) -> None:
    """Reject an empty body, or one with too many values or too deep nesting, before it is decoded.

    The arguments are those of `read_object`.

    Raises:
        ApiError: If the body is rejected (400).
    """
    if not body.strip():
        raise invalid("the body is empty: send a JSON object", code="invalid_json")
    most_items = max(MAX_VALUES, most_ids + _BESIDE_IDS)
    if crowded(body, most_items=most_items):
        field = crowded_field(body)
        what = "the body has" if field is None else f"{field}: it has, together with the rest of the body,"
        message = f"{what} more than {most_items} values: send fewer"
        raise invalid(message, field, code="too_large")
    if depth_exceeds(body, most_depth):
        raise invalid(f"the body is nested deeper than {most_depth} levels", code="invalid_json")


def _decoded(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body that has passed `check_structure`; raise ApiError (400) if it has none."""
    try:
        with without_collecting():
            value = msgspec.json.decode(body)
    except msgspec.ValidationError:
        raise invalid("the body has a number that is not finite or has too many digits", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # Unicode: msgspec before 0.23
        raise _no_json(body, error) from None
    if not isinstance(value, dict):
        raise invalid("the body is JSON, but not an object: send a JSON object", code="invalid_json")
    return value


class _Constant(str):
    """A word that some writers, such as Python's json, use for a number in JSON: NaN, Infinity or -Infinity."""


def _no_json(body: bytes, error: Exception) -> ApiError:
    """Return the error for invalid JSON, which names a field that is NaN or infinite if there is one."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return invalid("the body is not UTF-8 text", code="invalid_json")
    found: list[_Constant] = []

    def constant(word: str) -> _Constant:
        found.append(_Constant(word))
        return found[-1]

    if b"NaN" in body or b"Infinity" in body:
        with suppress(ValueError, RecursionError), without_collecting():  # the JSON is invalid otherwise too
            value = json.loads(body, parse_constant=constant)
            fields = value.items() if isinstance(value, dict) else ()
            named = [name for name, each in fields if isinstance(each, _Constant) and name.isidentifier()]
            if found and named:
                message = f"{named[0]}: {value[named[0]]} is not a JSON number: give a finite number"
                return invalid(message, named[0], code="invalid_json")
            if found:
                return invalid(
                    f"the body has {found[0]}, which is not a JSON number: give a finite number", code="invalid_json"
                )
    return invalid(f"the body is not valid JSON: {explain_json(error, body)}", code="invalid_json")


def depth_exceeds(body: bytes, most: int) -> bool:
    """Return whether lists and objects are nested deeper than `most`, in one pass over bytes that may be invalid JSON.

    This runs before parsing, because a recursive parser would first hit its own limit or the stack's.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    return bool(np.cumsum(_STEPS[outside_strings(body)], dtype=np.int32).max(initial=0) > most)


_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_STEPS.setflags(write=False)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body has more than {most} bytes", code="request_too_large")
