"""Round trips through chat templates of releases: what a template writes of a response is read back from its text.

transformers renders the conversation, so the text is what the model was trained to write. The text of the response is
then read as the engine reads generated tokens, and must give the reasoning, the content and the calls that went in.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from ridgeline.core.text import ChatTemplate, OutputStream, ReasoningSplitter, reasoning_format_of
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.conversation import for_template, with_tool_calls
from ridgeline.core.text.tools import Function, ToolFormat, ToolParser

Message = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """A template of a release: the format of its calls, and the text that ends a response."""

    format: str | None
    """The name of the tool format that the probe must find; None if there is none."""
    ends: tuple[str, ...] = ()
    """The literals of the tokens that end a response, as the release's generation_config.json has them."""
    reason: str = ""
    """Why calls of this template are not read, if they are not."""
    lead: str = ""
    """The text between the opening of a response and its content."""
    takes_tools: bool = True
    """Whether tools can be offered; a template that serialises a generator fails on them."""
    not_written: Mapping[str, str] = field(default_factory=dict)
    """The cases that the template itself does not write, each with the reason."""


_NO_REASONING = {"reasoning": "no reasoning"}
_APART = {"text before": "in two messages"}
_AFTER_RESULTS = {"text before": "after the results"}
_ONE = {"two calls": "in two messages"}

RELEASES: Mapping[str, Release] = {
    "Apertus-8B-Instruct": Release("apertus", ("<|assistant_end|>", "<|tools_suffix|>"), not_written=_NO_REASONING),
    "Bielik-11B-v3.0-Instruct": Release("hermes", ("<|im_end|>",)),
    "Cohere2MoE": Release("cohere_command3", ("<|END_OF_TURN_TOKEN|>",), not_written=_APART),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": Release(
        "cohere_command3", ("<|END_OF_TURN_TOKEN|>",), not_written=_APART | _NO_REASONING
    ),
    "GigaChat3.1-10B-A1.8B": Release("gigachat3", ("<|message_sep|>",), not_written=_ONE | _NO_REASONING),
    "ByteDance-Seed-OSS": Release("seed_oss", ("<seed:eos>",)),
    "GLM-4.6": Release("glm45", ("<|observation|>", "<|user|>", "<|endoftext|>")),
    "HuggingFaceTB-SmolLM3-3B": Release(None, reason="the template drops calls"),
    "Kimi-K2-Instruct": Release(None, reason="the template calls list.append, which sandboxes refuse"),
    "Kimi-K2-Thinking": Release(None, reason="the template calls list.append, which sandboxes refuse"),
    "LFM2.5-8B-A1B": Release("lfm2", ("<|im_end|>",)),
    "MiMo-VL": Release("hermes", ("<|im_end|>",), not_written=_NO_REASONING),
    "MiniMax-M1": Release("minimax", ("<end_of_sentence>",), not_written=_APART | _NO_REASONING),
    "NVIDIA-Nemotron-Nano-v2": Release("nemotron_json", ("<SPECIAL_12>",), not_written=_NO_REASONING),
    "MiniMax-M2": Release("minimax_m2", ("[e~[",)),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Release("qwen3_coder", ("<|im_end|>",)),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": Release(
        "hermes", ("<|im_end|>",), not_written=_APART | _NO_REASONING
    ),
    "Qwen-Qwen2.5-7B-Instruct": Release("hermes", ("<|im_end|>",), not_written=_NO_REASONING),
    "Qwen-Qwen3-0.6B": Release("hermes", ("<|im_end|>",)),
    "Qwen3-Coder": Release("qwen3_coder", ("<|im_end|>",), not_written=_NO_REASONING),
    "Qwen3.5-4B": Release("qwen3_coder", ("<|im_end|>",)),
    "Reka-Edge": Release("hermes", ("\n\n<sep>",), lead=" ", not_written=_NO_REASONING),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": Release(
        "deepseek_v3", ("<｜end▁of▁sentence｜>", "<｜tool▁outputs▁begin｜>"), not_written=_APART | _NO_REASONING
    ),
    "deepseek-ai-DeepSeek-V3.1": Release("deepseek_v31", ("<｜end▁of▁sentence｜>",), not_written=_NO_REASONING),
    "deepseek-r1-release": Release("deepseek_v3", ("<｜end▁of▁sentence｜>",), not_written=_NO_REASONING),
    "StepFun3.5-Flash": Release("qwen3_coder", ("<|im_end|>",)),
    "deepseek-ai-DeepSeek-V3.2": Release(
        "deepseek_v32", ("<｜end▁of▁sentence｜>",), lead="</think>", not_written=_NO_REASONING
    ),
    "deepseek-ai-DeepSeek-V4": Release("deepseek_v4", ("<｜end▁of▁sentence｜>",), not_written=_NO_REASONING),
    "google-gemma-2-2b-it": Release(None, reason="the template knows no tools"),
    "google-gemma-4-31B-it": Release("gemma4", ("<turn|>", "<|tool_response>"), not_written=_AFTER_RESULTS),
    "google-gemma-4-31B-it-interleaved": Release("gemma4", ("<turn|>", "<|tool_response>")),
    "ibm-granite-granite-4.0": Release("hermes", ("<|end_of_text|>",), not_written=_NO_REASONING),
    "llama-cpp-deepseek-r1": Release(
        "deepseek_v3", ("<｜end▁of▁sentence｜>",), takes_tools=False, not_written=_APART | _NO_REASONING
    ),
    "meetkai-functionary-medium-v3.1": Release("functionary", ("<|eom_id|>", "<|eot_id|>"), not_written=_NO_REASONING),
    "meta-llama-Llama-3.1-8B-Instruct": Release(
        "llama3_json", ("<|eot_id|>",), not_written=_ONE | _APART | _NO_REASONING
    ),
    "meta-llama-Llama-3.3-70B-Instruct": Release(
        "llama3_json", ("<|eot_id|>",), not_written=_ONE | _APART | _NO_REASONING
    ),
    "mistralai-Ministral-3-14B-Reasoning-2512": Release("mistral", ("</s>",)),
    "mistralai-Mistral-Nemo-Instruct-2407": Release("mistral", ("</s>",), not_written=_APART | _NO_REASONING),
    "moonshotai-Kimi-K2": Release("kimi_k2", ("<|im_end|>",), not_written=_NO_REASONING),
    "upstage-Solar-Open-100B": Release("solar_open", ("<|flush|>", "<|calls|>"), not_written=_APART | _NO_REASONING),
    "openbmb-MiniCPM5-1B": Release("minicpm5", ("<|im_end|>",)),
    "tencent-Hy3": Release("hy_v3", ("<｜hy_eos:opensource｜>",)),
    "openai-gpt-oss-120b": Release("openai", ("<|call|>", "<|return|>"), not_written=_APART | _ONE),
}
"""The templates in the folder chat-templates of the test data, by name."""

TIDE = {
    "type": "object",
    "properties": {
        "harbour": {"type": "string", "description": "A harbour."},
        "days": {"type": "integer", "description": "Days."},
        "options": {"type": "object", "description": "Options."},
        "marks": {"type": "array", "items": {"type": "number"}, "description": "Marks."},
        "exact": {"type": "boolean", "description": "Whether it is exact."},
    },
    "required": ["harbour"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "tide", "description": "Tide.", "parameters": TIDE}},
    {
        "type": "function",
        "function": {"name": "wind-now", "description": "Wind.", "parameters": {"type": "object", "properties": {}}},
    },
]
FUNCTIONS = [Function(tool["function"]["name"], tool["function"]["parameters"]) for tool in TOOLS]
ASK: Message = {"role": "user", "content": "How high is it?"}
BREST = {"harbour": "Brest", "days": 3}
NESTED = {
    "harbour": 'A "b"\\ <c>\n  é 😀, {d}: [e] ',
    "options": {"a": [1, -2.5, None, True, {"b": "x y"}], "": ""},
    "marks": [1.5, -2],
    "exact": False,
}


@dataclass(frozen=True)
class Case:
    """A response that a model can give."""

    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    """The functions that are called, with their arguments."""
    content: str | None = None
    """The text next to the calls."""
    reasoning: str | None = None
    """The reasoning before the calls."""
    before: tuple[Message, ...] = (ASK,)
    """The conversation before the response."""


CASES: Mapping[str, Case] = {
    "one call": Case((("tide", BREST),)),
    "two calls": Case((("tide", BREST), ("wind-now", {}))),
    "empty content": Case((("tide", BREST),), content=""),
    "text before": Case((("tide", BREST),), content="I look it up."),
    "no arguments": Case((("wind-now", {}),)),
    "nested": Case((("tide", NESTED),)),
    "number as text": Case((("tide", {"harbour": "4"}),)),
    "developer": Case((("tide", BREST),), before=({"role": "developer", "content": "Be brief."}, ASK)),
    "reasoning": Case((("tide", BREST),), reasoning="Which harbour?\nBrest."),
}


@dataclass
class Response:
    """The parts of a response that a client receives."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """The names of the called functions and their arguments as JSON text."""
    withdrawn: int = 0

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The calls with their arguments as values."""
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


@cache
def template_of(folder: Path, name: str) -> ChatTemplate:
    """Return a template of a release."""
    return ChatTemplate((folder / "chat-templates" / f"{name}.jinja").read_text(encoding="utf-8"), ByteTokenizer())


def turns_of(case: Case) -> list[Message]:
    """Return the conversation of a case with the response, in OpenAI's form."""
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(case.calls)
    ]
    said: Message = {"role": "assistant", "content": case.content, "tool_calls": calls}
    if case.reasoning is not None:
        said["reasoning_content"] = case.reasoning
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "probe_result"} for call in calls]
    return [*case.before, said, *results]


class NotWritten(Exception):
    """An error for a case that a template cannot write; it says why."""


def written(template: ChatTemplate, release: Release, case: Case) -> tuple[str, str]:
    """Return the prompt of a case and the response's text as the template writes it, by transformers' renderer.

    Raises:
        NotWritten: If the template leaves a part of the response out, or writes it in several messages.
    """

    def render(messages: Sequence[Mapping[str, Any]], opens: bool) -> str:
        return str(
            render_jinja_template(
                [[dict(message) for message in messages]],
                chat_template=template.source,
                tools=TOOLS if release.takes_tools else None,
                add_generation_prompt=opens,
                bos_token="<s>",
                eos_token=release.ends[0],
            )[0][0]
        )

    turns = [turn.message for turn in next(for_template(with_tool_calls(turns_of(case)), template.probe))]
    said = [at for at, turn in enumerate(turns) if turn["role"] == "assistant"]
    if len(said) > 1:
        raise NotWritten("in two messages")
    prompt, whole = render(turns[: said[0]], True), render(turns, False)
    # Templates may move a system message, so the prompts are compared from the question on.
    opening, rest = (text[text.rindex(ASK["content"]) :] for text in (prompt, whole))
    start = next((at for at, (a, b) in enumerate(zip(opening, rest, strict=False)) if a != b), len(opening))
    tag = rest.rfind("<", 0, start)  # a tag of the opening can begin like a marker, as `<think>` and `<｜tool` do
    start = tag if tag >= 0 and ">" not in rest[tag:start] else start
    text = _until(rest[start:].partition("probe_result")[0], release.ends).removeprefix(release.lead)
    if case.reasoning is not None and case.reasoning not in text:
        raise NotWritten("no reasoning")
    if case.content is not None and case.content not in text:
        raise NotWritten("after the results")
    return prompt[: len(prompt) - len(opening) + start], text


def _until(text: str, ends: Sequence[str]) -> str:
    """Return the text before the first literal that ends a response."""
    return text[: min((at for at in (text.find(end) for end in ends) if at >= 0), default=len(text))]


def read(template: ChatTemplate, tool_format: ToolFormat, prompt: str, text: str, *, cut: bool = False) -> Response:
    """Read a response as the engine reads its tokens, of which each is one byte."""
    tokenizer, response = ByteTokenizer(), Response()
    reasoning = reasoning_format_of(template.source)
    splitter = None if reasoning is None else ReasoningSplitter(tokenizer, tokenizer.encode(prompt), reasoning)
    stream, parser = OutputStream(tokenizer, reasoning=splitter), ToolParser(tool_format, FUNCTIONS)
    parts: dict[int, list[str]] = {}

    def take(delta: Any, tokens: Sequence[int]) -> None:
        response.reasoning += delta.reasoning
        result = parser.push(delta.text, tokens)
        _take_calls(result)

    def _take_calls(result: Any) -> None:
        response.content += result.content
        for call in result.calls:
            parts.setdefault(call.index, [call.name, ""])[1] += call.arguments
        for index in result.withdrawn:
            response.withdrawn += 1
            del parts[index]

    for token in text.encode():
        take(stream.push(token), [token])
    take(stream.finish(), ())
    _take_calls(parser.finish(cut=cut))
    response.calls = [(name, arguments) for name, arguments in parts.values()]
    return response


def format_of(template: ChatTemplate) -> ToolFormat | None:
    """Return the tool format that the probe finds."""
    return template.probe.calls.tool_format


def outcome(folder: Path, name: str, case: str) -> str:
    """Return what becomes of a case: "yes" if all of it is read back, or why the template does not write it."""
    release, template = RELEASES[name], template_of(folder, name)
    if case in release.not_written:
        return release.not_written[case]
    tool_format, expected = format_of(template), CASES[case]
    assert tool_format is not None
    response = read(template, tool_format, *written(template, release, expected))
    parts = (response.values, response.content, response.reasoning)
    calls = [(called, dict(arguments)) for called, arguments in expected.calls]
    return "yes" if parts == (calls, expected.content or "", expected.reasoning or "") else "NO"


def table(folder: Path) -> str:
    """Return the table of templates and cases for docs/serving.md."""
    rows = [f"| template | format | {' | '.join(CASES)} |", f"| --- | --- |{' --- |' * len(CASES)}"]
    for name, release in sorted(RELEASES.items(), key=lambda item: item[0].lower()):
        if release.format is None:
            cells = [release.reason, *("" for _ in CASES)][: len(CASES)]
        else:
            cells = [outcome(folder, name, case) for case in CASES]
        rows.append(f"| {name} | {release.format or 'none'} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


BEGIN, END = "<!-- round trips: begin -->\n", "<!-- round trips: end -->\n"
"""The comments in docs/serving.md around the table."""


def in_docs(text: str) -> tuple[str, str, str]:
    """Return the parts of docs/serving.md before, in and after the table."""
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before + BEGIN, inside, END + after


if __name__ == "__main__":
    import sys

    docs = Path(__file__).parents[2] / "docs" / "serving.md"
    first, _, last = in_docs(docs.read_text(encoding="utf-8"))
    docs.write_text(first + table(Path(sys.argv[1])) + last, encoding="utf-8")
