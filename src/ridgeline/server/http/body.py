"""A request's body: bytes from a stranger become a JSON object, each bound checked before what it guards."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.settings import ServerSettings


async def read_object(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object in a request's body. Raises ApiError: 413 for one that is too large, 400 for what is none.

    Numbers are finite, strings are Unicode without lone surrogates, nesting is at most `settings.json_depth`. Of two
    equal names in one object the last counts, as in every common reader.
    """
    return parse_object(await read_bytes(request.headers, request.stream(), settings.body_bytes), settings.json_depth)


async def read_bytes(headers: Mapping[str, str], chunks: AsyncIterator[bytes], most: int) -> bytes:
    """A body of at most `most` bytes: by its stated length before anything is read, else while it comes."""
    stated = headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async for chunk in chunks:
            if len(body) + len(chunk) > most:
                raise _too_large(most)
            body += chunk
    except ClientDisconnect:  # nobody is there to be told
        raise invalid("the connection closed before the body was complete", code="invalid_request") from None
    return bytes(body)


def parse_object(body: bytes, most_depth: int) -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError (400)."""
    if not body.strip():
        raise invalid("the body is empty; send a JSON object", code="invalid_json")
    if depth_exceeds(body, most_depth):
        raise invalid(f"the body is nested deeper than {most_depth}", code="invalid_json")
    try:
        value = msgspec.json.decode(body)
    except msgspec.ValidationError:
        raise invalid("the body has a number that is not finite or too long", code="invalid_json") from None
    except UnicodeDecodeError:
        raise invalid("the body is not text in UTF-8", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError):
        raise _no_json(body) from None
    if not isinstance(value, dict):
        raise invalid("the body is JSON, but no object", code="invalid_json")
    return value


class _Constant(str):
    """A word that some writers, Python's among them, take for a number in JSON: NaN, Infinity, -Infinity."""


def _no_json(body: bytes) -> ApiError:
    """What is said of a body that is none: which field holds such a word, if that is what is wrong."""
    found: list[_Constant] = []

    def constant(word: str) -> _Constant:
        found.append(_Constant(word))
        return found[-1]

    if b"NaN" in body or b"Infinity" in body:
        with suppress(ValueError, RecursionError):  # it is no JSON otherwise either
            value = json.loads(body, parse_constant=constant)
            fields = value.items() if isinstance(value, dict) else ()
            named = [name for name, each in fields if isinstance(each, _Constant) and name.isidentifier()]
            if found and named:
                said = f"{named[0]}: it is {value[named[0]]}, which JSON does not have; give a number"
                return invalid(said, named[0], code="invalid_json")
            if found:
                return invalid(f"the body has {found[0]}, which JSON does not have; give a number", code="invalid_json")
    return invalid("the body is not valid JSON", code="invalid_json")


def depth_exceeds(body: bytes, most: int) -> bool:
    """Whether lists and objects are nested deeper than `most`, in one pass over bytes that may be no JSON at all.

    Asked before parsing: a parser that recurses would meet its own limit, or the stack's, first.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    # An escaped quote does not end a string; once those are gone, every second stretch between quotes is a string.
    plain = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), dtype=np.uint8)
    outside = ~np.logical_xor.accumulate(plain == ord('"'))
    step = _STEPS[plain] * outside
    return bool(np.cumsum(step, dtype=np.int32).max(initial=0) > most)


_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_STEPS.setflags(write=False)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body has more than {most} bytes", code="request_too_large")
