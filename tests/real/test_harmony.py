"""Responses of gpt-oss in the harmony format, read by our parsers and by the openai-harmony package."""

import json
import os
import subprocess
import sys

import pytest

from real.packages import HARMONY, LITELLM
from ridgeline.core.text import OutputStream, ReasoningSplitter, reasoning_format_named
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.tools import Function, ToolParser, format_named

pytestmark = pytest.mark.real

_ORACLE = """
import json, sys
from openai_harmony import HarmonyEncodingName, Role, load_harmony_encoding
encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
for text in json.load(sys.stdin):
    tokens = encoding.encode(text, allowed_special="all")
    messages = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    print(json.dumps([[m.channel, m.recipient, "".join(part.text for part in m.content)] for m in messages]))
"""
THOUGHT = "<|channel|>analysis<|message|>Which harbour?\nBrest, not é 🙂.<|end|>"
NEXT = "<|start|>assistant"
ARGUMENTS = '{"harbour": "Brest", "note": "to=functions.tide <b>"}'
TEXTS = [
    "<|channel|>final<|message|>Four.<|return|>",
    f"{THOUGHT}{NEXT}<|channel|>final<|message|>Four.\n\nOr five.<|return|>",
    f"{THOUGHT}{NEXT}<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    f"{THOUGHT}{NEXT} to=functions.tide<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
    f" to=functions.tide<|channel|>commentary <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    f"<|channel|>commentary<|message|>I look it up.<|end|>{NEXT}<|channel|>commentary to=functions.tide "
    f"<|constrain|>json<|message|>{{}}<|call|>",
    f"{THOUGHT}{NEXT}<|channel|>analysis to=python code<|message|>print(1)<|end|>"
    f"{NEXT}<|channel|>final<|message|>1<|return|>",
    f"<|channel|>analysis<|message|>One.<|end|>{NEXT}<|channel|>analysis<|message|> Two.<|end|>"
    f"{NEXT}<|channel|>final<|message|>Three<|return|>",
]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[str, str | None, str]]]:
    """Return the messages that openai-harmony reads from each text: channel, recipient and content."""
    folder, code = tmp_path_factory.mktemp("encodings"), HARMONY.find().parent
    (folder / "o200k_base.tiktoken").write_bytes(LITELLM.find().read_bytes())
    paths = {"PYTHONPATH": str(code), "TIKTOKEN_ENCODINGS_BASE": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", _ORACLE],
        input=json.dumps(TEXTS),
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [[tuple(message) for message in json.loads(line)] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("at", range(len(TEXTS)))
def test_a_response_is_read_as_openai_harmony_reads_it(
    parsed: list[list[tuple[str, str | None, str]]], at: int
) -> None:
    tokenizer = ByteTokenizer()
    reasoning = reasoning_format_named("openai_gptoss")
    assert reasoning is not None
    stream = OutputStream(tokenizer, reasoning=ReasoningSplitter(tokenizer, tokenizer.encode(NEXT), reasoning))
    parser = ToolParser(format_named("openai"), [Function("tide")])
    deltas = [*map(stream.push, TEXTS[at].encode()), stream.finish()]
    parts = [*(parser.push(delta.text) for delta in deltas), parser.finish()]
    calls = [call for part in parts for call in part.calls]
    assert len(parsed) == len(TEXTS)
    said = [message for message in parsed[at] if not _is_call(message[1])]
    expected = [(recipient, text) for _, recipient, text in parsed[at] if _is_call(recipient)]
    thoughts = [text for channel, recipient, text in said if channel == "analysis" or recipient]
    assert "".join(delta.reasoning for delta in deltas) == "".join(thoughts)
    content = [text for channel, recipient, text in said if channel != "analysis" and not recipient]
    assert "".join(part.content for part in parts) == "".join(content)
    assert [f"functions.{call.name}" for call in calls if call.name] == [recipient for recipient, _ in expected]
    assert "".join(call.arguments for call in calls) == "".join(text for _, text in expected)


def _is_call(recipient: str | None) -> bool:
    return (recipient or "").startswith("functions.")
