"""Responses in the format of each release over HTTP: a scripted model writes what the release's template writes."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from ridgeline.core.text import ReasoningFormat, ReasoningSplitter, reasoning_format_of
from ridgeline.engine.setup import LoadedEngine
from server.test_tools import Says, ids_of, load, served
from text.round_trips import ASK, CASES, RELEASES, TOOLS, Case, NotWritten, format_of, template_of, written

READ = [name for name, release in RELEASES.items() if release.format is not None and release.takes_tools]
SPOKEN = ("two calls", "one call", "text before", "nested", "reasoning")
THINKING = "reasoning_content"


@pytest.mark.parametrize("tokens", [False, True], ids=["markers as text", "markers as tokens"])
@pytest.mark.parametrize("name", READ)
def test_a_client_gets_what_a_release_writes(data_dir: Path, tmp_path: Path, name: str, tokens: bool) -> None:
    release, template = RELEASES[name], template_of(data_dir, name)
    tool_format = format_of(template)
    assert tool_format is not None
    reasoning = reasoning_format_of(template.source)
    markers = (*tool_format.markers, *(reasoning.section_of if reasoning else ())) if tokens else ()
    loaded = load(tmp_path, template.source, tuple(dict.fromkeys(markers)))
    with served(loaded) as (_, client):
        for case in (CASES[each] for each in SPOKEN):
            try:
                _, text = written(template, release, case)
            except NotWritten:
                continue
            script = ids_of(loaded, spoken(loaded, reasoning, text))
            loaded.engine.executor = Says([*script, *loaded.tokenizer.eos_ids])
            asked: dict[str, Any] = {"model": "m", "messages": [ASK], "tools": TOOLS, "max_tokens": 900}
            choice = client.chat.completions.create(**asked).choices[0]
            message = choice.message
            calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
            expect(case, message.content, getattr(message, THINKING, None), calls, choice.finish_reason)
            expect(case, *streamed(client.chat.completions.create(**asked, stream=True)))


def spoken(loaded: LoadedEngine, reasoning: ReasoningFormat | None, text: str) -> str:
    """Return what the model has to write after the prompt so that the whole is as the template writes it.

    The history can begin a response otherwise than a prompt does, which may have opened or closed the reasoning.
    """
    if reasoning is None:
        return text
    templates = loaded.text_processor.templates
    assert templates is not None
    prompt = templates.pick(tools=True).encode([ASK], tools=TOOLS).ids
    is_open = ReasoningSplitter(loaded.tokenizer, prompt, reasoning).inside
    begins = text.lstrip().startswith(reasoning.opening)
    if is_open:
        return text if reasoning.closing in text else reasoning.closing + text
    return text if begins or reasoning.closing not in text else reasoning.opening + text


def expect(
    case: Case, content: str | None, reasoning: str | None, calls: list[tuple[str, str]], finish: str | None
) -> None:
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [(n, dict(a)) for n, a in case.calls]
    assert (content or "", reasoning or "") == (case.content or "", case.reasoning or "")
    assert finish == "tool_calls"


def streamed(chunks: openai.Stream[Any]) -> tuple[str, str, list[tuple[str, str]], str | None]:
    """Return the content, the reasoning, the calls and the finish reason of a stream."""
    content, reasoning, finish = "", "", None
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, THINKING, None) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                calls.setdefault(call.index, [call.function.name, ""])[1] += call.function.arguments or ""
    return content, reasoning, [(name, arguments) for name, arguments in calls.values()], finish
