"""msgspec's errors in Ridgeline's words: what a value is, where, and what to give."""

from typing import Any

import msgspec
import pytest

from ridgeline.server.routes.request_fields import ChatFields, CompletionFields, DetokenizeFields
from ridgeline.server.routes.vectors import EmbeddingFields
from ridgeline.server.type_errors import explain_json, explain_type


def refusal(kind: type[msgspec.Struct], value: Any, *, text: bool = False) -> tuple[str, str]:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind, str_keys=True, strict=not text)
    return explain_type(caught.value, value, kind, text=text)


@pytest.mark.parametrize(
    ("kind", "value", "place", "message"),
    [
        (ChatFields, {"temperature": "a"}, "temperature", "temperature is a string; give a number"),
        (ChatFields, {"temperature": 101}, "temperature", "temperature is 101; give a number of at most 100"),
        (ChatFields, {"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0; give a number above 0"),
        (ChatFields, {"n": 0}, "n", "n is 0; give a whole number of at least 1"),
        (ChatFields, {"n": 1.5}, "n", "n is 1.5; give a whole number"),
        (ChatFields, {"n": None}, "n", "n is null; give a whole number"),
        (ChatFields, {"stop": ["x", 1]}, "stop[1]", "stop[1] is 1; give a string"),
        (ChatFields, {"stop": {}}, "stop", "stop is an object; give a string or a list"),
        (ChatFields, {"messages": ["a"]}, "messages[0]", "messages[0] is a string; give an object"),
        (ChatFields, {"stream": "yes"}, "stream", "stream is a string; give true or false"),
        (
            ChatFields,
            {"stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "stream_options.include_usage is 1; give true or false",
        ),
        (
            ChatFields,
            {"logit_bias": {"1": 2, "AI": 1}},
            "logit_bias",
            "logit_bias has the key 'AI'; give a whole number as each key",
        ),
        (
            ChatFields,
            {"logit_bias": {"1": 2, "7": "x"}},
            "logit_bias[...]",
            "logit_bias[7] is a string; give a number",
        ),
        (DetokenizeFields, {"tokens": [True]}, "tokens[0]", "tokens[0] is true; give a whole number"),
        (CompletionFields, [1], "", "the body is a list; give an object"),
        (
            EmbeddingFields,
            {"input": "a", "encoding_format": "x"},
            "encoding_format",
            "encoding_format is 'x'; give base64 or float",
        ),
    ],
)
def test_the_message_has_value_place_and_fix(kind: type[msgspec.Struct], value: Any, place: str, message: str) -> None:
    assert refusal(kind, value) == (place, message)


def test_text_of_a_form_is_quoted() -> None:
    """Return the text in the message, because all values of a form are strings."""
    assert refusal(ChatFields, {"n": "two"}, text=True)[1] == "n is 'two'; give a whole number"


def test_a_long_key_is_cut() -> None:
    message = refusal(ChatFields, {"logit_bias": {"x" * 500: 1}})[1]
    assert len(message) < 120
    assert "xxx...; give" in message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "it ends too early, after byte 1"),
        (b'{"a":1,}', "trailing comma in object at byte 7"),
        (b"x", "invalid character at byte 0"),
    ],
)
def test_invalid_json_has_a_place(body: bytes, says: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body)
    assert explain_json(caught.value, body) == says
