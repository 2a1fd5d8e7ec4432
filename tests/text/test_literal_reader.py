"""Literals of Python and JSON that are written as JSON while they arrive: Python's own reader is the reference."""

import ast
import json
import math
import random
from collections.abc import Generator
from typing import Any

import pytest

from ridgeline.core.text.tools.json_scanner import Malformed
from ridgeline.core.text.tools.literal_reader import IN_LITERAL, Lookahead, read_string, read_value, rereading


def read(text: str) -> str | None:
    """Return the JSON of a literal, or None if it is malformed."""
    out = list[str]()

    def value(ahead: Lookahead) -> Generator[None, str, None]:
        yield from read_value(out, (yield), ahead)

    reading = rereading(value)
    next(reading)
    for at, c in enumerate(f"{text},"):
        try:
            reading.send(c)
        except StopIteration:
            return "".join(out) if at == len(text) else None
        except Malformed:
            return None
    return None


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kinds = [lambda: chance.choice([1, -2.5, 1e300, 0, 10**30, True, False, None, "é'\"\\\n\t\0😀", "", "it's", 'a"b'])]
    if depth < 4:
        kinds += [
            lambda: [random_value(chance, depth + 1) for _ in range(chance.randint(0, 3))],
            lambda: tuple(random_value(chance, depth + 1) for _ in range(chance.randint(0, 3))),
            lambda: {chance.choice(["a", "b'", 'c"', ""]): random_value(chance, depth + 1) for _ in range(3)},
        ]
    return chance.choice(kinds)()


@pytest.mark.parametrize("seed", range(20))
def test_what_python_or_json_writes_is_read_back(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        value = [random_value(chance)]
        expected = json.loads(json.dumps(value))
        for text in (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
            found = read(text)
            assert found is not None, text
            assert json.loads(found) == expected, text


@pytest.mark.filterwarnings("ignore:invalid")
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_literal_is_read_as_python_reads_it_or_as_valid_json_or_not_at_all(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        text = repr([random_value(chance)])
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(["", "'", '"', "{", "}", ",", ":", "x", "0", "\\", "]", "("]) + text[at + 1 :]
        found = read(text)
        if found is None:
            continue
        json.loads(found)
        try:
            expected = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError):
            continue  # quotes within a string, which Python does not accept
        if "'" not in found and '\\"' not in found and not isinstance(expected, set):
            assert json.loads(found) == json.loads(json.dumps(expected)), text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0x10", None),
        ("+5", "5"),
        ("007", "7"),
        ("1_000", "1000"),
        (".5", "0.5"),
        ("5.", "5.0"),
        ("1e-07", "1e-07"),
        ("1E999", None),
        ("(1)", "1"),
        ("('a')", '"a"'),
        ("(1,)", "[1]"),
        ("{1, 2}", "[1, 2]"),
        ("{None: 1, 2.5: 2}", '{"null": 1, "2.5": 2}'),
        ("'\\u12' ", '"\\\\u12"'),
        ("'C:\\users'", '"C:\\\\users"'),
        ("'\\U00110000'", None),
        ("'\\/'", '"/"'),
        ("'a\\\nb'", '"ab"'),
        ("'\0\t'", '"\\u0000\\t"'),
        ("['it's', 'a']", '["it\'s", "a"]'),
    ],
)
def test_numbers_escapes_and_brackets(text: str, expected: str | None) -> None:
    assert read(text) == expected


def test_large_numbers_stay_finite() -> None:
    assert math.isfinite(json.loads(read("1" + "0" * 300) or "nan"))


@pytest.mark.parametrize("piece", ["'", "' ", "', a = ", "'  \n", "\\u1", "\\", '"', "'" + " " * 400])
def test_no_character_of_a_string_is_read_more_than_twice(piece: str) -> None:
    """Count characters again that the reader looks at after a quote."""
    sent = 0

    def counted(ahead: Lookahead) -> Generator[None, str, None]:
        nonlocal sent
        reading = read_string([], "'", ahead, IN_LITERAL)
        next(reading)
        while True:
            c = yield
            sent += 1
            try:
                reading.send(c)
            except StopIteration:
                return

    text = piece * 300
    reading = rereading(counted)
    next(reading)
    try:
        for c in text:
            reading.send(c)
    except StopIteration:
        pass
    assert sent <= 2 * len(text) + 1
