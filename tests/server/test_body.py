"""Bodies as bytes: what is read of them, and what is refused before it costs anything."""

import asyncio
import gc
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ridgeline.server.errors import ApiError
from ridgeline.server.http.body import depth_exceeds, parse_object, read_bytes
from ridgeline.util.untrusted import MAX_VALUES, crowded
from server import attacks


def parsed(body: bytes, most_ids: int = 0) -> dict[str, Any]:
    return asyncio.run(parse_object(body, 64, most_ids))


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as error:
        parsed(body)
    return error.value


def test_an_object_is_read() -> None:
    assert parsed(b' {"a": [1, 2.5, null, "\\u00e9\\u0000"]} ') == {"a": [1, 2.5, None, "é\0"]}


def test_of_two_equal_names_the_last_counts() -> None:
    assert parsed(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "not an object"),
        (b'"x"', "not an object"),
        (b"null", "not an object"),
        (b"3", "not an object"),
        (b"{}x", "not valid"),
        (b'{"a": [1', "not valid"),
        (b"{'a': 1}", "not valid"),
        (b'{"a": NaN}', "a: NaN is not a JSON number: give a finite number"),
        (b'{"a": -Infinity}', "a: -Infinity is not a JSON number"),
        (b'{"a": 1, "b": {"c": [2, Infinity]}}', "the body has Infinity, which is not a JSON number"),
        (b'{"a\\n": NaN}', "the body has NaN"),
        (b"[NaN]", "the body has NaN"),
        (b'{"a": NaN,}', "not valid JSON"),
        (b'{"a": "NaN \\ud800"}', "not valid JSON"),
        (b'{"a": 1e400}', "finite"),
        (b'{"a": -1e400}', "finite"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"\xed\xa0\x80": 1}', "UTF-8"),
        (b"\xef\xbb\xbf{}", "not valid"),
        (b'{"a": "\\ud800"}', "not valid"),
        (b'{"a": "\\ud800 and on"}', "not valid"),
        (b'{"a": "\\udc00\\ud800"}', "not valid"),
        (b'{"a": "\x00"}', "not valid"),
        (b"\x1f\x8b\x08\x00", "UTF-8"),
    ],
)
def test_what_is_no_object_of_finite_numbers_and_unicode_is_refused(body: bytes, word: str) -> None:
    error = refused(body)
    assert error.status == 400
    assert word in error.message


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[{" * 50_000])
def test_deep_nesting_is_refused_without_recursion(body: bytes) -> None:
    assert "nested deeper than 64" in refused(body).message


def test_the_limit_of_nesting_is_exact() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert parsed(nested(64))
    assert "deeper" in refused(nested(65)).message


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def test_depth_is_that_of_the_parsed_value() -> None:
    """Brackets, quotes and backslashes inside of strings do not count, whatever stands around them."""
    random_ = random.Random(8)

    def text() -> str:
        return "".join(random_.choices('[]{}"\\ab,:', k=random_.randrange(8)))

    def value(levels: int) -> object:
        if levels == 0 or random_.random() < 0.2:
            return text()
        children = [value(levels - 1) for _ in range(random_.randrange(4))]
        return children if random_.random() < 0.5 else {text() + str(i): child for i, child in enumerate(children)}

    for _ in range(300):
        thing = value(6)
        body, depth = json.dumps(thing).encode(), depth_of(thing)
        assert not depth_exceeds(body, depth)
        assert depth == 0 or depth_exceeds(body, depth - 1)


@pytest.mark.parametrize(("unit", "deep"), [(b"[", True), (b"[]", True), (b'"[', True), (b'\\"', True), (b"]", True)])
def test_four_mebibytes_of_anything_are_judged(unit: bytes, deep: bool) -> None:
    """An implementation that is quadratic, or that recurses, does not come to an end here."""
    assert depth_exceeds(b"[" * 70 + unit * ((4 << 20) // len(unit)), 64) is deep


def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is decoded fails the test."""

    def decode(body: bytes) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr(msgspec.json, "decode", decode)
    monkeypatch.setattr(json, "loads", decode)


@pytest.mark.parametrize(("body"), [pytest.param(body, id=name) for name, body in attacks.CROWDED])
def test_more_values_than_a_request_has_use_for_are_refused_undecoded(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    undecoded(monkeypatch)
    error = refused(body)
    assert (error.status, error.code) == (400, "too_large")
    assert f"more than {MAX_VALUES} values" in error.message


def test_the_error_names_the_field_that_has_most_of_the_values() -> None:
    text = 'a "\\\\" ,[{'
    body = json.dumps({"model": text, "stop": ["a"] * 9, "logit_bias": dict.fromkeys(map(str, range(250_000)), 1)})
    error = refused(body.encode())
    assert (error.param, error.message[:14]) == ("logit_bias", "logit_bias: it")
    assert refused(json.dumps({"a\n": [[]] * 250_000}).encode()).param is None


def values_of(value: object) -> tuple[int, int]:
    """Lists, objects and names; lists, objects and commas between entries: by walking what a reader made of it."""
    names = items = 0
    left = [value]
    while left:
        value = left.pop()
        if not isinstance(value, list | dict):
            continue
        entries = len(value)
        names += 1 + (entries if isinstance(value, dict) else 0)
        items += 1 + max(entries - 1, 0)
        left += value.values() if isinstance(value, dict) else value
    return names, items


def test_the_count_of_values_is_that_of_the_parsed_value() -> None:
    """Signs inside of strings do not count, whatever stands around them; numbers may be more than other values."""
    random_ = random.Random(9)

    def value(levels: int) -> object:
        if levels == 0 or random_.random() < 0.3:
            return "".join(random_.choices('[]{}"\\ab,:', k=random_.randrange(9)))
        children = [value(levels - 1) for _ in range(random_.randrange(5))]
        return children if random_.random() < 0.5 else {f'{i}":,': child for i, child in enumerate(children)}

    for _ in range(300):
        thing = value(5)
        body, (names, items) = json.dumps(thing).encode(), values_of(thing)
        assert not crowded(body, max(names, items))
        assert not crowded(body, names, items)
        assert names == 0 or crowded(body, names - 1, items)
        assert items <= names or crowded(body, names, items - 1)


@pytest.mark.parametrize("unit", ["a, ", "[{:,", '\\", ', "\\\\,", "\u00e9,"])
def test_a_long_text_may_have_as_many_signs_as_it_likes(unit: str) -> None:
    text = unit * 700_000
    assert parsed(json.dumps({"prompt": text}, ensure_ascii=False).encode()) == {"prompt": text}


def test_the_largest_batch_of_token_ids_is_read() -> None:
    batch = [[7] * 60_000] * 32
    body = json.dumps({"prompt": batch}).encode()
    assert parsed(body, 32 * 60_000) == {"prompt": batch}
    assert refused(body).code == "too_large"
    lists = b'{"prompt":[' + b"[]," * 250_000 + b"[]]}"
    with pytest.raises(ApiError, match="values"):
        parsed(lists, 32 * 60_000)


def test_nobody_looks_for_garbage_while_a_body_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the collector is on again, also after a body that is no JSON."""
    decode, collecting = msgspec.json.decode, list[bool]()

    def watched(body: bytes) -> Any:
        collecting.append(gc.isenabled())
        return decode(body)

    monkeypatch.setattr(msgspec.json, "decode", watched)
    assert parsed(b'{"a": 1}') == {"a": 1}
    assert gc.isenabled()
    refused(b'{"a": 1')
    assert gc.isenabled()
    gc.disable()
    try:
        parsed(b'{"a": 1}')
        assert not gc.isenabled(), "whoever turned it off finds it off"
    finally:
        gc.enable()
    assert collecting == [False] * 3


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def test_a_stated_length_is_refused_before_the_body_is_read() -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("read")
        yield b""

    with pytest.raises(ApiError) as error:
        asyncio.run(read_bytes({"content-length": "11"}, unread(), 10))
    assert (error.value.status, error.value.code) == (413, "request_too_large")


def test_a_body_without_a_length_is_refused_while_it_comes() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"abcd"

    with pytest.raises(ApiError) as error:
        asyncio.run(read_bytes({}, endless(), 10))
    assert error.value.status == 413


def test_a_body_of_just_the_limit_is_read() -> None:
    assert asyncio.run(read_bytes({"content-length": "10"}, pieces(b"12345", b"", b"67890"), 10)) == b"1234567890"
