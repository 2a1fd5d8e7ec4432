"""Detokenizer, reasoning and stop strings together."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level

from ridgeline.core.text import Delta, OutputStream, ReasoningSplitter, load_tokenizer
from ridgeline.core.text.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def run(stream: OutputStream, data: bytes) -> tuple[str, str, str | None, int]:
    """(answer, reasoning, stop, tokens pushed)."""
    deltas = []
    for token in data:
        deltas.append(stream.push(token))
        if deltas[-1].stop is not None:
            break
    pushed = len(deltas)
    deltas.append(stream.finish())
    stop = next((delta.stop for delta in deltas if delta.stop is not None), None)
    return "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas), stop, pushed


def test_stop_inside_a_character_boundary() -> None:
    """The cut is exactly before the stop string, and the last token is the one that completes it."""
    data = "tea 🦙 milk".encode()
    assert run(OutputStream(TOKENIZER, stops=["🦙"]), data) == ("tea ", "", "🦙", 8)
    assert run(OutputStream(TOKENIZER, stops=["🦙"], include_stop=True), data) == ("tea 🦙", "", "🦙", 8)


def test_stops_apply_to_the_answer() -> None:
    stream = OutputStream(TOKENIZER, stops=["\n\n"], reasoning=ReasoningSplitter(TOKENIZER, []))
    text, thought, stop, _ = run(stream, b"<think>a\n\nb</think>\n\nc\n\nd")
    assert (text, thought, stop) == ("c", "a\n\nb", "\n\n")


def test_match_that_waited_is_found_at_the_end() -> None:
    assert run(OutputStream(TOKENIZER, stops=["abcd", "bc"]), b"xabc") == ("xa", "", "bc", 4)
    assert run(OutputStream(TOKENIZER, stops=["abcd", "bc"]), b"xabcd!") == ("x", "", "abcd", 5)


def test_end_of_sequence_has_no_text() -> None:
    stream = OutputStream(TOKENIZER)
    assert [stream.push(i) for i in (104, 256)] == [Delta("h"), Delta()]
    assert stream.finish() == Delta()


@given(st.binary(max_size=40))
def test_nothing_is_lost(data: bytes) -> None:
    """Without tags or stops in it, any token sequence comes out as decode gives it."""
    stream = OutputStream(TOKENIZER, stops=["\x00never\x00"], reasoning=ReasoningSplitter(TOKENIZER, []))
    assert run(stream, data)[0] == TOKENIZER.decode(data)


@pytest.mark.parametrize("special", [False, True])
def test_half_a_character_stays_in_the_section_that_ends(make_folder: Callable[..., Path], special: bool) -> None:
    # A thinking budget can end the reasoning there, and the response after it is exactly what its grammar allows.
    tags = ["<think>", "</think>"]
    tokenizer = load_tokenizer(make_folder(byte_level(), tags if special else [], [] if special else tags))
    half = tokenizer.encode("é", add_special=False)[:1]
    before, after = (tokenizer.encode(text, add_special=False) for text in ("<think>a", "</think>{}"))
    stream = OutputStream(tokenizer, reasoning=ReasoningSplitter(tokenizer, []))
    deltas = [*map(stream.push, (*before, *half, *after)), stream.finish()]
    assert ("".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)) == ("{}", "a\ufffd")
