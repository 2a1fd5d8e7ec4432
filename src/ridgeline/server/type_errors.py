"""The translation of msgspec's error messages into Ridgeline's wording: what a value is, where, and what to give."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

_PLACE = re.compile(r" - at `(key` in `)?\$\.?([^`]*)`$")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[\]]+)")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*)")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_DECODING = re.compile(r"(.*) \(byte (\d+)\)")
_WANTED = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_GIVEN = {
    "str": "a string",
    "int": "a number",
    "float": "a number with a fraction",
    "bool": "a boolean",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_KINDS = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    dict: "object",
    list: "array",
    type(None): "null",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_ABSENT = object()
_SHOWN = 40
"""The most characters of a user's number or key in a message."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def explain_type(
    error: msgspec.ValidationError, value: object, kind: type[_Struct], *, text: bool = False
) -> tuple[str, str]:
    """Return the place of a value that msgspec refused, such as `stop[0]`, and the message that begins with it.

    Args:
        error: The error of msgspec.
        value: The value that was converted; None if it is unknown.
        kind: The struct to which it was converted.
        text: Whether values are text, as in a form.
    """
    reason, found = str(error), _PLACE.search(str(error))
    place, in_key = ("", False) if found is None else (found[2], found[1] is not None)
    reason = _PLACE.sub("", reason)
    if (missing := _MISSING.fullmatch(reason)) is not None:
        return place, f"{_dotted(place, missing[1])} is missing"
    if reason.startswith("Invalid enum value"):
        given = reason.removeprefix("Invalid enum value ")
        return place, f"{place} is {given}; give {_choices(kind, place) or 'another value'}"
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return place, f"{place or 'body'}: {reason}"
    wanted = _wanted(expected[1]) + _bound(expected[3])
    own, named = _find(value, place, expected[2], in_key=in_key)
    if in_key:
        shown = "a key that is not a number" if own is _ABSENT else f"the key {_cut(repr(own))}"
        return place, f"{named} has {shown}; give {wanted} as each key"
    return place, f"{named or 'the body'} is {_given(own, expected[2], text)}; give {wanted}"


def explain_json(error: Exception, body: bytes) -> str:
    """Return what makes a text invalid JSON, with the byte at which it is: `invalid character at byte 5`."""
    found = _DECODING.fullmatch(str(error).removeprefix("JSON is malformed: "))
    return f"it ends too early, after byte {len(body)}" if found is None else f"{found[1]} at byte {found[2]}"


def _dotted(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _wanted(kinds: str) -> str:
    """Return the description of msgspec's `str | array | null`: a string or a list."""
    names = [_WANTED.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"]
    return " or ".join(dict.fromkeys(names))


def _bound(rest: str) -> str:
    """Return the description of msgspec's ` >= 1.0`: ` of at least 1`."""
    sign, _, limit = rest.strip().partition(" ")
    return f" {_BOUNDS[sign]} {limit.removesuffix('.0')}" if sign in _BOUNDS else rest


def _given(value: object, kind: str | None, text: bool) -> str:
    """Return the description of a refused value: itself for a number or a boolean, otherwise its kind."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) or (text and isinstance(value, str)):
        return _cut(repr(value))
    known = _KINDS.get(type(value), "") if value is not _ABSENT else kind or ""
    return _GIVEN.get(known, "not valid")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _find(value: object, place: str, kind: str | None, *, in_key: bool) -> tuple[object, str]:
    """Return the refused value or key at a place, and the place with each `[...]` replaced by the key that it means.

    msgspec does not name the key of an object with arbitrary keys, so the first entry of the refused kind is taken.
    """
    named = ""
    for index, name in _STEP.findall(place):
        key = name or index
        if name and isinstance(value, Mapping):
            value = value.get(name, _ABSENT)
        elif index.isdigit() and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        elif index and isinstance(value, Mapping):
            key, value = next(_of_kind(value, kind), ("...", _ABSENT))
        else:
            value = _ABSENT
        named += f"[{key}]" if index else f".{name}"
    named = named.removeprefix(".")
    if in_key:
        return next(_no_integers(value), _ABSENT) if isinstance(value, Mapping) else _ABSENT, named
    return value if place or value is not None else _ABSENT, named


def _of_kind(entries: Mapping[str, object], kind: str | None) -> Iterator[tuple[str, object]]:
    """Yield the entries of an object whose values have a kind."""
    return ((_cut(key), value) for key, value in entries.items() if _KINDS.get(type(value)) == kind)


def _no_integers(entries: Mapping[Any, object]) -> Iterator[object]:
    """Yield the keys of an object that are not whole numbers."""
    for key in entries:
        try:
            msgspec.convert(key, int, strict=False)
        except msgspec.ValidationError:
            yield key


def _choices(kind: type[_Struct], place: str) -> str:
    """Return the values that a field of a struct can have, or "" if they are not listed."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    own = next((field.type for field in info.fields if field.encode_name == place), None)
    kinds = own.types if isinstance(own, inspect.UnionType) else (own,)
    return " or ".join(str(value) for each in kinds if isinstance(each, inspect.LiteralType) for value in each.values)
