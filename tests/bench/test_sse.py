"""The events of a stream and what they say, however its bytes are cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.insight.bench.sse_parser import EventStreamParser
from ridgeline.insight.bench.streamed_response import StreamedResponse, error_in

STREAM = (
    b": hello\n\n"
    b'data: {"a": 1}\n\n'
    b"event: x\nid: 7\nretry: 5\ndata:two\ndata: lines\n\n"
    b"data: \xc3\xa9\r\n\r\n"
    b"data: r\r\rdata\n\n"
    b"datum: no\n\n\n"
    b"data: [DONE]\n\n"
    b"data: never ended\n"
)
EVENTS = [b'{"a": 1}', b"two\nlines", b"\xc3\xa9", b"r", b"", b"[DONE]"]


def events(*pieces: bytes) -> list[bytes]:
    stream = EventStreamParser()
    return [event for piece in pieces for event in stream.feed(piece)]


def test_whole() -> None:
    assert events(STREAM) == EVENTS
    assert events(*(bytes([byte]) for byte in STREAM)) == EVENTS


def test_every_cut_in_two() -> None:
    for place in range(len(STREAM) + 1):
        assert events(STREAM[:place], STREAM[place:]) == EVENTS, place


def test_every_cut_in_three() -> None:
    stream = STREAM[: STREAM.index(b"datum")]
    for first in range(len(stream)):
        for second in range(first, len(stream) + 1):
            assert events(stream[:first], stream[first:second], stream[second:]) == EVENTS[:-1], (first, second)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cuts(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert events(*(STREAM[a:b] for a, b in pairwise(places))) == EVENTS


def test_an_event_is_there_with_its_last_byte() -> None:
    """Not with the first of the next: a gap would be counted to the wrong token."""
    stream = EventStreamParser()
    assert stream.feed(b"data: 1\n") == []
    assert stream.feed(b"\n") == [b"1"]
    assert stream.feed(b"data: 2\r\n\r") == [b"2"]
    assert stream.feed(b"\n") == []


def test_an_event_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="16 MiB"):
        events(*[b"data: " + b"x" * (1 << 20) + b"\n"] * 40)


def taken(*values: object) -> tuple[list[bool], StreamedResponse]:
    answer = StreamedResponse()
    return [answer.take(json.dumps(value).encode()) for value in values], answer


def test_content_is_text_reasoning_and_tool_calls_and_nothing_else() -> None:
    """A chunk that only says who speaks comes before anything was computed: tools that count it find a server fast."""
    content, answer = taken(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"reasoning": "hm"}}]},
        {"choices": [{"delta": {"content": "Yes"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"text": "!", "logprobs": None}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "more": {}}},
    )
    assert content == [False, True, True, True, True, True, False, False]
    assert (answer.text, answer.finished, answer.error) == ("Yes!", True, None)
    assert (answer.prompt, answer.output, answer.cached) == (5, 3, None)


def test_an_end_is_a_finish_reason_or_done() -> None:
    answer = StreamedResponse()
    assert not answer.finished
    assert not answer.take(b"[DONE]")
    assert answer.finished


@pytest.mark.parametrize("error", [{"message": "out of\nmemory", "type": "server_error"}, "out of memory"])
def test_an_error_in_a_stream_is_told(error: object) -> None:
    _, answer = taken({"error": error})
    assert answer.error == "out of memory"
    assert error_in(json.dumps({"error": error}).encode()) == "out of memory"


@pytest.mark.parametrize("frame", [b"", b"{", b"[1]", b'{"choices": 3}', b'{"choices": [{"text": 3}]}', b"[" * 100_000])
def test_a_frame_that_is_none_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="not in OpenAI's format"):
        StreamedResponse().take(frame)
    assert error_in(frame) == ""
