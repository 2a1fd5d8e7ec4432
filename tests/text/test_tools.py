"""Tool calls: taken out of answers in any pieces, forced by grammars, and put back into conversations."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.tools import ALL_FORMATS, FORMATS, CallDelta, Function, ToolFormat, ToolParser, forced_calls
from ridgeline.core.text.tools.call_grammar import json_arguments
from ridgeline.core.text.tools.json_scanner import JsonScanner, JsonState, Malformed
from ridgeline.engine.structured_output.grammar import compiled
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary
from ridgeline.engine.structured_output_params import StructuredOutputs
from text.read_counter import check_no_character_is_read_twice

WITH_JSON = [form for form in ALL_FORMATS if form.arguments is json_arguments]
"""The formats whose arguments are JSON; test_tagged_calls.py has the others."""
OFFERED = [Function(name) for name in ("weather", "now", "näme")]
B, C, S, E, Z = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
ARGS = '{"city": "P\\"ari}s</tool_call>", "n": [1, -2.5e3, {"a": null}], "u": "\\u00e9"}'

K, K_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALLED = [("weather", ARGS), ("now", "{}")]


def kimi(identity: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def solar(name: str, arguments: str) -> str:
    return f"<|tool_call:begin|>k2j4h5g6f7<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"


def fenced(name: str, arguments: str) -> str:
    return f"{C}function{S}{name}\n```json\n{arguments}\n```{E}"


def acted(number: int, name: str, arguments: str) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}}'


Told = tuple[str, list[tuple[str, str]], list[int]]


def parse(name: str, pieces: Sequence[str], *, cut: bool = False, **options: Any) -> Told:
    """Content, calls as (name, arguments) and what was undone."""
    parser = ToolParser(FORMATS[name], OFFERED, **options)
    content, calls, undone = "", dict[int, list[str]](), list[int]()
    for piece in (*pieces, None):
        delta = parser.finish(cut=cut) if piece is None else parser.push(piece)
        content += delta.content
        undone += delta.withdrawn
        for call in delta.calls:
            if call.index not in calls:
                assert call.id
                assert call.name
                calls[call.index] = [call.name, ""]
            else:
                assert not call.id
                assert not call.name
            calls[call.index][1] += call.arguments
    assert parser.complete == len(calls) - len(undone) - (cut and bool(calls) and not complete(calls))
    return content, [(name, arguments) for name, arguments in calls.values()], undone


def complete(calls: dict[int, list[str]]) -> bool:
    try:
        json.loads(calls[max(calls)][1])
    except ValueError:
        return False
    return True


def one(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


G, Q = "<|tool_call>call:", '<|"|>'
L, M = "<|tool_call_start|>", "<|tool_call_end|>"
CALLED_A: Told = ("", [("now", '{"a": "b c"}')], [])
TWICE: Told = ("", [("now", '{"a": "b c"}'), ("weather", "{}")], [])
REST = '"v": true, "w": {}, "x": []}'
UNQUOTED = r"""{"a": "it's, 'b' c=d)]", "b": "'", "c": ""}"""
ESCAPED = r"""{"a": "x\ny\n'\\q", "b": "A\ud83d\ude00"}"""
LONG = r"""{"a": "b'\n''c", "b": ""}"""
TYPES = '{"a": 7, "b": [null, true, null], "c": [1, "x"], "d": {"k": {}, "2": []}, "e": ["u", "v"], "from-x": -0.5}'

GOOD: list[tuple[str, str, Told]] = [
    ("hermes", "no calls < at <tool all ", ("no calls < at <tool all ", [], [])),
    (
        "hermes",
        f"I look.\n<tool_call>\n{one('weather', ARGS)}\n</tool_call>\n<tool_call>\n{one('now', '{}')}\n</tool_call>\n",
        ("I look.", [("weather", ARGS), ("now", "{}")], []),
    ),
    ("hermes", f"<tool_call>{one('now', '{}')}</tool_call> and so on", (" and so on", [("now", "{}")], [])),
    ("hermes", f"<tool_call>{one('now', '{}')}", ("", [("now", "{}")], [])),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "x": [1], "name": "now"}</tool_call>',
        ("", [("now", '{"a": 1}')], []),
    ),
    ("hermes", '<tool_call>{"name": "n\\u00e4me"}</tool_call>', ("", [("näme", "{}")], [])),
    ("hermes", f"<tool_call>{one('weather', json.dumps(ARGS))}</tool_call>", ("", CALLED[:1], [])),
    ("hermes", '<tool_call>{"name": "now", "arguments": " "}</tool_call>', ("", CALLED[1:], [])),
    ("hermes", f"<tool_call>{one('now', 'null')}</tool_call>", ("", CALLED[1:], [])),
    ("hermes", f"<tool_call>{one('weather', ARGS)}\n<tool_call>{one('now', '{}')}</tool_call>", ("", CALLED, [])),
    ("hermes", f"<tool_call>{one('now', '{}')}\n<b>Done</b>", ("\n<b>Done</b>", CALLED[1:], [])),
    (
        "mistral",
        f"[TOOL_CALLS][{one('weather', ARGS)}, {one('now', '{}')}]",
        ("", [("weather", ARGS), ("now", "{}")], []),
    ),
    ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdefghi"}]', ("", [("now", "{}")], [])),
    ("mistral", f"Hm.[TOOL_CALLS]weather[ARGS]{ARGS}", ("Hm.", [("weather", ARGS)], [])),
    (
        "mistral",
        f"[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{ARGS}[TOOL_CALLS]now[ARGS]{{}}",
        ("", [("weather", ARGS), ("now", "{}")], []),
    ),
    ("mistral", f"[TOOL_CALLS]weather{ARGS}[TOOL_CALLS] now {{}}", ("", CALLED, [])),
    ("mistral", f"[TOOL_CALLS]weather[CALL_ID]abcdefghi{ARGS}", ("", CALLED[:1], [])),
    ("llama3_json", one("weather", ARGS, "parameters"), ("", [("weather", ARGS)], [])),
    ("llama3_json", f"<|python_tag|>{one('now', '{}', 'parameters')}", ("", [("now", "{}")], [])),
    (
        "llama3_json",
        f" {one('now', '{}', 'parameters')}; {one('weather', ARGS, 'parameters')}",
        ("", [("now", "{}"), ("weather", ARGS)], []),
    ),
    (
        "llama3_json",
        one("now", "{}", "parameters") + one("weather", ARGS, "parameters"),
        ("", [("now", "{}"), ("weather", ARGS)], []),
    ),
    ("llama3_json", 'It is {"name": "now"}.', ('It is {"name": "now"}.', [], [])),
    ("deepseek_v31", f"{B}{C}weather{S}{ARGS}{E}{C}now{S}{{}}{E}{Z}", ("", [("weather", ARGS), ("now", "{}")], [])),
    ("deepseek_v31", f"Wait. {B}{C}now{S}{{}}{E}{Z}", ("Wait.", [("now", "{}")], [])),
    (
        "apertus",
        f'I look. <|tools_prefix|>[{{"weather": {ARGS}}}, {{"now": {{}}}}]<|tools_suffix|>',
        ("I look.", CALLED, []),
    ),
    ("apertus", '<|tools_prefix|>[{"now": {}}] Done.', (" Done.", CALLED[1:], [])),
    ("apertus", f'<|tools_prefix|>[ {{"weather":{ARGS}}}', ("", CALLED[:1], [])),  # without its end
    (
        "cohere_command3",
        f"I look.<|START_ACTION|>\n[\n    {acted(0, 'weather', ARGS)},\n    {acted(1, 'now', '{}')}\n]\n<|END_ACTION|>",
        ("I look.", CALLED, []),
    ),
    (
        "cohere_command3",
        f"<|START_ACTION|>[{acted(0, 'now', '{}')}]<|END_ACTION|>\n<|START_ACTION|>[{acted(1, 'now', '{}')}]",
        ("", [("now", "{}")] * 2, []),
    ),
    ("cohere_command3", '<|START_ACTION|>[{"name": "x", "parameters": {}, "tool_name": "now"}]', ("", CALLED[1:], [])),
    ("deepseek_v3", f"I look.{B}{fenced('weather', ARGS)}\n{fenced('now', '{}')}{Z}", ("I look.", CALLED, [])),
    ("deepseek_v3", f"{B}\n{fenced('weather', ARGS)}{fenced('now', '{}')}", ("", CALLED, [])),  # without its end
    ("deepseek_v3", f"{B}{C}function{S}now\n\n```json\n\n{{}}```\n{E}\n{Z}", ("", CALLED[1:], [])),
    (
        "functionary",
        f"I look.<function=weather>{ARGS}</function><function=now>{{}}</function>",
        ("I look.", CALLED, []),
    ),
    ("functionary", f"<function=weather> {ARGS}\n</function>\n<function=now>{{}}", ("", CALLED, [])),
    ("gigachat3", f"I look.<|function_call|>{one('weather', ARGS)}", ("I look.", CALLED[:1], [])),
    (
        "gigachat3",
        f"I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{one('weather', ARGS)}",
        ("I look.", CALLED[:1], []),
    ),
    ("granite", f"<|tool_call|> [\n  {one('weather', ARGS)},\n  {one('now', '{}')}\n]", ("", CALLED, [])),
    ("granite", f"<tool_call>[{one('weather', ARGS)}, {one('now', '{}')}]", ("", CALLED, [])),
    ("granite", f"[{one('weather', ARGS)}, {one('now', '{}')}]", ("", CALLED, [])),
    ("granite", '<tool_call>[{"arguments": {}, "name": "now"}]\nSo it is.', ("\nSo it is.", CALLED[1:], [])),
    (
        "granite-20b-fc",
        f"I look.\n<function_call> {one('weather', ARGS)}\n<function_call> {one('now', '{}')}",
        ("I look.", CALLED, []),
    ),
    (
        "internlm",
        f"I look. <|action_start|><|plugin|>\n{one('weather', ARGS, 'parameters')}<|action_end|>",
        ("I look.", CALLED[:1], []),
    ),
    (
        "jamba",
        f" I look.<tool_calls>[\n    {one('weather', ARGS)},\n    {one('now', '{}')}\n]</tool_calls>",
        (" I look.", CALLED, []),
    ),
    ("jamba", f"<tool_calls>[{one('now', '{}')}]</tool_calls>\n</answer>", ("\n</answer>", CALLED[1:], [])),
    (
        "kimi_k2",
        f"I look. {K}{kimi('functions.weather:0', ARGS)}{kimi('functions.now:1', '{}')}{K_END}",
        ("I look.", CALLED, []),
    ),
    ("kimi_k2", f"{K}{kimi('functions.now:0', '{}')}Done.", ("Done.", CALLED[1:], [])),
    ("kimi_k2", f"{K}{kimi('functions.weather:0', ARGS)}{K}{kimi('functions.now:1', '{}')}", ("", CALLED, [])),
    ("kimi_k2", f"{K}{kimi(' weather:7 ', ARGS)}\n{kimi('functionsnow8', ' {} ')}", ("", CALLED, [])),
    (
        "kimi_k2",
        f"<|tool_call_section_begin|>{kimi('functions.now:0', '{}')}<|tool_call_section_end|>",
        ("", CALLED[1:], []),
    ),
    (
        "longcat",
        f"I look.\n<longcat_tool_call>{one('weather', ARGS)}</longcat_tool_call>\n"
        f"<longcat_tool_call>\n{one('now', '{}')}\n</longcat_tool_call>\nSo it is.",
        ("I look.\nSo it is.", CALLED, []),
    ),
    (
        "minimax",
        f"I look. <tool_calls>\n{one('weather', ARGS)}\n{one('now', '{}')}\n</tool_calls>",
        ("I look.", CALLED, []),
    ),
    ("minimax", f"<tool_calls>{one('weather', ARGS)}{one('now', '{}')}", ("", CALLED, [])),  # without its end
    ("minimax", f"<tool_calls>\n[{one('weather', ARGS)}, {one('now', '{}')}]\n</tool_calls>", ("", CALLED, [])),
    (
        "nemotron_json",
        f"I look.\n\n<TOOLCALL>[{one('weather', ARGS)}, {one('now', '{}')}]</TOOLCALL>",
        ("I look.", CALLED, []),
    ),
    ("nemotron_json", f"<TOOLCALL>[{one('now', '{}')}]", ("", CALLED[1:], [])),  # without its end
    ("phi4_mini_json", f"functools[{one('weather', ARGS)}, {one('now', '{}')}]", ("", CALLED, [])),
    (
        "phi4_mini_json",
        f"I use functools.\nfunctools[\n  {one('weather', ARGS)},\n  {one('now', '{}', 'parameters')}\n]",
        ("I use functools.", CALLED, []),
    ),
    ("solar_open", f"<|tool_calls|>{solar('weather', ARGS)}{solar('now', '{}')}<|calls|>", ("", CALLED, [])),
    ("solar_open", f"I look.<|tool_calls|>\n{solar('weather', ARGS)}\n{solar('now', '{}')}", ("I look.", CALLED, [])),
    (
        "phi4_mini_json",
        f"I look.<|tool_call|>{one('weather', ARGS)}<|/tool_call|><|tool_call|>[{one('now', '{}')}]<|/tool_call|>",
        ("I look.", CALLED, []),
    ),
    ("xlam", f"[{one('weather', ARGS)}, {one('now', '{}')}]", ("", CALLED, [])),
    ("xlam", f"I look.\n```json\n[{one('weather', ARGS)}, {one('now', '{}')}]\n```", ("I look.", CALLED, [])),
    ("xlam", f"I look.[TOOL_CALLS][{one('weather', ARGS)}]", ("I look.", CALLED[:1], [])),
    ("xlam", f"I look.<tool_call>[{one('weather', ARGS)}]</tool_call>", ("I look.", CALLED[:1], [])),
    ("functiongemma", "<start_function_call>call:now{a:<escape>b c<escape>}<end_function_call>", CALLED_A),
    ("gemma4", f"Hm. {G}now{{a:{Q}b c{Q}}}<tool_call|>", ("Hm.", [("now", '{"a": "b c"}')], [])),
    ("gemma4", f"{G}now{{a:{Q}b c{Q}}}<tool_call|>\n{G}weather{{}}<tool_call|>", TWICE),
    ("gemma4", f'{G}now {{ "a" : "b c" }} <tool_call|>', CALLED_A),
    ("gemma4", f"<|tool_call>:call:now{{{Q}a{Q}:b c}}<turn|>", ("<turn|>", CALLED_A[1], [])),
    ("gemma4", "<|tool_call>:now{a:'b c'}<tool_call|>", CALLED_A),
    ("gemma4", f"{G}now{{a:'b, {{c}}: 'd''}}<tool_call|>", ("", [("now", '{"a": "b, {c}: \'d\'"}')], [])),
    (
        "gemma4",
        f"{G}now at noon<tool_call|>{G}now{{a:{Q}b c{Q}}}<tool_call|>",
        (f"{G}now at noon<tool_call|>", CALLED_A[1], []),
    ),
    (
        "gemma4",
        f"{G}weather{{:{Q}<|{Q},n:[1,-2.5e3,{{a:None}},[{Q}]{Q}]],u:108.,v:True,w:{{}},x:[]}}<tool_call|>",
        ("", [("weather", '{"": "<|", "n": [1, -2.5e3, {"a": null}, ["]"]], "u": 108.0, ' + REST)], []),
    ),
    ("lfm2", f"Hm. {L}[now(a='b c'), weather()]{M}\nSo.", ("Hm.\nSo.", TWICE[1], [])),
    ("lfm2", f'{L} [ now ( a = "b c" , ) , ] {M}', CALLED_A),
    ("lfm2", f"{L}[now(a='b c')] and so on", (" and so on", CALLED_A[1], [])),
    ("lfm2", f"{L}[weather(a='it's, 'b' c=d)]', b=\"'\", c='')]{M}", ("", [("weather", UNQUOTED)], [])),
    ("lfm2", f"{L}[weather(a='x\ny\\n\\'\\q', b='\\x41\\ud83d\\ude00')]{M}", ("", [("weather", ESCAPED)], [])),
    ("lfm2", f"{L}[weather(a='''b'\n''c''', b=\"\"\"\"\"\")]{M}", ("", [("weather", LONG)], [])),
    (
        "lfm2",
        f"{L}[weather(a=07, b=[None, True, null], c=(1, 'x'), d={{'k': {{}}, 2: ()}}, e={{'u', 'v'}}, from-x=-.5)]{M}",
        ("", [("weather", TYPES)], []),
    ),
    ("llama4_pythonic", "[now(a='b c'),weather()]", TWICE),
    ("llama4_pythonic", "<|python_start|>[now(a='b c')]<|python_end|>", CALLED_A),
    ("llama4_pythonic", "Hm.<|python_start|>[now(a='b c'), weather()]", ("Hm.", TWICE[1], [])),
    ("olmo3", "<function_calls>now(a='b c')\nweather()</function_calls>", TWICE),
    ("olmo3", "<function_calls>\nnow(a='b c'),\n weather()\n</function_calls> So.", (" So.", TWICE[1], [])),
    ("pythonic", "[now(a='b c'), weather()]", TWICE),
]

# What is no call is text, whole and unchanged.
BAD: list[tuple[str, str]] = [
    ("hermes", "<tool_call>hello</tool_call>"),
    ("hermes", '<tool_call>\n{"name": "format_disk", "arguments": {}}\n</tool_call>'),
    ("hermes", '<tool_call>{"name": now, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "name": "weather"}</tool_call>'),
    ("hermes", '<tool_call>{"name": 3}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "not an object"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{} {}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": nil}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": "}</tool_call>'),
    ("hermes", "<tool_call>"),
    ("hermes", "a <tool_call> <tool_call> b"),
    ("hermes", '<tool_call>{"name": "' + "n" * 300 + '"}'),
    ("hermes", '<tool_call>{"x": ' + "[" * 100 + "]" * 100 + ', "name": "now"}</tool_call>'),
    ("mistral", "[TOOL_CALLS] now()"),
    ("mistral", "[TOOL_CALLS]other[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]now[ARGS][1]"),
    ("mistral", "[TOOL_CALLS]now[ARGS]and{}"),
    ("mistral", '[TOOL_CALLS][{"name": "other", "arguments": {}}]'),
    ("llama3_json", '{"city": "Paris", "temperature": 21}'),
    ("llama3_json", '{"name": "Paul", "parameters": {}} is a man'),
    ("llama3_json", '<|python_tag|>weather.call(query="Paris")'),
    ("llama3_json", "{ and so on"),
    ("deepseek_v31", f"{B}{C}other{S}{{}}{E}{Z}"),
    ("deepseek_v31", f"{B} hm"),
    ("deepseek_v31", f"{B}{C}" + "w" * 400),
    ("apertus", "<|tools_prefix|>[]<|tools_suffix|>"),
    ("apertus", '<|tools_prefix|>[{"other": {}}]<|tools_suffix|>'),
    ("apertus", '<|tools_prefix|>[{"now": 3}]<|tools_suffix|>'),
    ("cohere_command3", f"<|START_ACTION|>[{acted(0, 'other', '{}')}]<|END_ACTION|>"),
    ("cohere_command3", f"<|START_ACTION|>[{one('now', '{}')}]<|END_ACTION|>"),
    ("deepseek_v3", f"{B}{fenced('other', '{}')}{Z}"),
    ("deepseek_v3", f"{B}{C}now{S}{{}}{E}{Z}"),
    ("deepseek_v3", f"{B}{fenced('now', '[1]')}{Z}"),
    ("deepseek_v3", f"{B}function{S}now\n```json\n{{}}\n```{Z}"),
    ("functionary", "<function=other>{}</function>"),
    ("functionary", "<function=now><parameter=city>Paris</parameter></function>"),
    ("functionary", "for x in <function=" + "w" * 400),
    ("gigachat3", "<|function_call|>now"),
    ("gigachat3", f"<|function_call|>{one('now', '3')}"),
    ("granite", "[1, 2, 3]"),
    ("granite", f"Some text [{one('now', '{}')}]"),
    ("granite", f"<|tool_call|> [{one('other', '{}')}]"),
    ("granite-20b-fc", '<function_call> {"name": 123}'),
    ("internlm", f"<|action_start|>{one('now', '{}')}<|action_end|>"),
    ("internlm", "<|action_start|><|plugin|>not json<|action_end|>"),
    ("jamba", "<tool_calls>[]</tool_calls>"),
    ("kimi_k2", f"{K}{kimi('functions.other:0', '{}')}{K_END}"),
    ("kimi_k2", f"{K}{kimi('functions.now', '{}')}{K_END}"),
    ("kimi_k2", f"{K}{K_END}"),
    ("longcat", "Some text with <longcat_tool_call>invalid json"),
    ("minimax", "<tool_calls>\n</tool_calls>"),
    ("minimax", f"<tool_calls>\n{one('other', '{}')}\n</tool_calls>"),
    ("nemotron_json", "<TOOLCALL>[]</TOOLCALL>"),
    ("phi4_mini_json", "functools[] is empty"),
    ("phi4_mini_json", "import functools"),
    ("phi4_mini_json", "functools[cache]"),
    ("solar_open", f"<|tool_calls|>{solar('other', '{}')}<|calls|>"),
    ("solar_open", "<|tool_calls|><|tool_call:begin|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>"),
    ("xlam", "```json\n[1, 2]\n```"),
    ("xlam", "```json\n{}\n```"),
    ("functiongemma", "<start_function_call>call:other{}<end_function_call>"),
    ("gemma4", "<|tool_call>now{}<tool_call|>"),
    ("gemma4", f"{G}other{{}}<tool_call|>"),
    ("gemma4", f"{G}now(a=1)<tool_call|>"),
    ("gemma4", f"{G}now{{a}}<tool_call|>"),
    ("gemma4", f"{G}now{{{'a' * 300}:1}}<tool_call|>"),
    ("gemma4", "<|tool_call>now{}<tool_call|>"),
    ("lfm2", f"{L}[other(a=1)]{M}"),
    ("lfm2", f"{L}[]{M}"),
    ("lfm2", f"{L}[now]{M}"),
    ("lfm2", f"{L}[now(*x)]{M}"),
    ("lfm2", f"{L}[now(1)]{M}"),  # the function has no parameters that could have this place
    ("lfm2", f"{L}[now(__import__('os'))]{M}"),
    ("lfm2", f"{L}[{'n' * 300}()]{M}"),
    ("llama4_pythonic", "[1, 2, 3]"),
    ("llama4_pythonic", "[other(a=1)]"),
    ("olmo3", "<function_calls>other()</function_calls>"),
    ("olmo3", "<function_calls></function_call>"),
    ("pythonic", "It is [now(a=1)]"),
    ("pythonic", "[now] it is"),
]

VALUES_THAT_ARE_NO_LITERALS = (
    *(
        "b",
        "1 + 2",
        "1e999",
        "nan",
        "1__0",
        "f'x'",
        "b'x'",
        "print(1)",
        "[1",
        "[1}",
        "{1: }",
        "{[1]: 2}",
        "(1",
        "-",
        "",
    ),
    *("[" * 100 + "]" * 100, "[a for a in b]", "x.y", "1j", "{**a}", "9" * 500),
)


def splits(text: str, count: int = 12) -> list[list[str]]:
    """The text whole, character by character, and in random pieces."""
    ways = [[text], list(text)]
    for seed in range(count):
        chance = random.Random(seed)
        cuts = sorted(chance.sample(range(1, len(text)), min(len(text) - 1, chance.randint(1, 12))))
        ways.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    return ways


@pytest.mark.parametrize(("name", "text", "told"), GOOD)
def test_calls_are_found_in_any_pieces(name: str, text: str, told: Told) -> None:
    for pieces in splits(text):
        assert parse(name, pieces) == told


@pytest.mark.parametrize(("name", "text"), BAD)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    for pieces in splits(text):
        content, calls, _ = parse(name, pieces)
        assert content == text
        assert calls == []


@pytest.mark.parametrize("value", VALUES_THAT_ARE_NO_LITERALS)
def test_a_value_that_is_no_literal_is_not_evaluated(value: str) -> None:
    text = f"{L}[now(a={value}, b=1)]{M}"
    assert parse("lfm2", [text]) == (text, [], [])


def test_arguments_without_names_are_the_parameters_in_their_order() -> None:
    offered = [Function("tide", {"type": "object", "properties": {"harbour": {"type": "string"}, "days": {}}})]
    for arguments, expected in (
        ("'Brest', 3", {"harbour": "Brest", "days": 3}),
        ("'it's', days=3", {"harbour": "it's", "days": 3}),
        ("None", {"harbour": None}),
        ("1, 2, 3", None),
        ("days=3, 'Brest'", None),
    ):
        parser = ToolParser(FORMATS["pythonic"], offered)
        calls = [call for delta in (parser.push(f"[tide({arguments})]"), parser.finish()) for call in delta.calls]
        assert [json.loads(call.arguments) for call in calls] == ([] if expected is None else [expected])


def test_a_word_without_quotes_gets_its_type_from_the_schema() -> None:
    properties = {"code": {"type": "string"}, "days": {"type": "integer"}, "any": {}}
    parser = ToolParser(FORMATS["gemma4"], [Function("tide", {"type": "object", "properties": properties})])
    (call,) = parser.push(f"{G}tide{{any:07,code:07,days:07,other:Brest x}}<tool_call|>").calls
    assert json.loads(call.arguments) == {"any": 7, "code": "07", "days": 7, "other": "Brest x"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma4", f"{G}tide{{code:{Q}3{Q},days:{Q}3{Q},more:{Q}3{Q}}}<tool_call|>"),
        ("llama4_pythonic", """[tide(code="3", days="3", more="3")]"""),
        ("pythonic", """[tide("3", 3, more="3")]"""),
        (
            "qwen3_coder",
            "<tool_call><function=tide>"
            + "".join(f"<parameter={key}>3</parameter>" for key in ("code", "days", "more"))
            + "</function></tool_call>",
        ),
    ],
)
def test_types_are_found_behind_references_and_in_branches(name: str, text: str) -> None:
    """Check a schema that is only a reference, a pointer with an escaped slash, and types that are one of several."""
    properties = {
        "code": {"$ref": "#/$defs/a~1b"},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "more": {"type": ["number", "null"]},
    }
    definitions = {"a/b": {"type": "string"}, "all": {"type": "object", "properties": properties}}
    parser = ToolParser(FORMATS[name], [Function("tide", {"$ref": "#/$defs/all", "$defs": definitions})])
    (call,) = parser.push(text).calls
    assert json.loads(call.arguments) == {"code": "3", "days": 3, "more": 3}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("functiongemma", "<start_function_call>call:tide{code:<escape>3<escape>,days:<escape>3<escape>,o:{}}"),
        ("gemma4", f'{G}tide{{code:{Q}3{Q},days:"3",o:{Q}{{}}{Q}}}<tool_call|>'),
        ("llama4_pythonic", """[tide(code="3", days="3", o="{}")]"""),
        ("pythonic", "[tide('3', '3', {})]"),
    ],
)
def test_a_string_gets_the_type_of_a_parameter_that_is_no_string(name: str, text: str) -> None:
    properties = {"code": {"type": "string"}, "days": {"type": "integer"}, "o": {"type": "object"}}
    parser = ToolParser(FORMATS[name], [Function("tide", {"type": "object", "properties": properties})])
    (call,) = parser.push(text).calls
    assert json.loads(call.arguments) == {"code": "3", "days": 3, "o": {}}


@pytest.mark.parametrize(("name", "text", "told"), GOOD)
def test_no_half_marker_is_told_and_no_content_late(name: str, text: str, told: Told) -> None:
    """Whatever the answer's first characters are, what was told of them is a beginning of what is told in the end."""
    for end in range(len(text)):
        parser = ToolParser(FORMATS[name], OFFERED)
        assert told[0].startswith(parser.push(text[:end]).content)


@pytest.mark.parametrize(
    "form",
    [form for form in ALL_FORMATS if form.arguments is json_arguments],
    ids=lambda form: f"{form.name}{form.layout.middle[:3]}",
)
def test_json_arguments_may_contain_the_tags_of_their_format(form: ToolFormat) -> None:
    layout = form.layout
    tags = [layout.end, layout.middle, layout.between or "", *form.openings, *form.markers]
    arguments = json.dumps({tag: f'"{tag}}}' for tag in tags}, ensure_ascii=False)
    text = f"{layout.start}{layout.before}weather{layout.middle}{arguments}{layout.after}{layout.end}"
    for pieces in splits(text):
        assert parse(form.name, pieces) == ("", [("weather", arguments)], [])


def test_arguments_are_told_as_they_come() -> None:
    parser = ToolParser(FORMATS["hermes"], OFFERED)
    assert parser.push('<tool_call>{"name": "now"').calls == ()
    (first,) = parser.push(', "arguments": {"a"').calls
    assert (first.index, first.name, first.arguments) == (0, "now", '{"a"')
    assert parser.push(": 12").calls == (CallDelta(0, arguments=": 12"),)
    assert parser.push("3}").calls == (CallDelta(0, arguments="3}"),)
    assert parser.push("}").calls == ()
    assert parser.complete == 1


@pytest.mark.parametrize("broken", ['{"a": 01}', '{"a": "\n"}', "{a: 1}", '{"a" 1}', '{"a": 1,}', '{"a": tru}'])
def test_a_call_that_breaks_after_its_name_was_told_is_undone_and_its_text_follows(broken: str) -> None:
    text = f"<tool_call>{one('now', broken)}</tool_call>"
    content, _, undone = parse("hermes", list(text))
    assert content == text
    assert undone == [0]
    assert parse("hermes", [text]) == (text, [], [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '\n <tool_call>{"name": "now", "arguments": {oops \n'),
        ("xlam", '\n [{"name": "now", "arguments": [ \n'),
        ("pythonic", "\n [now(a=oops) \n"),
    ],
)
def test_the_blanks_around_a_broken_call_stay(name: str, text: str) -> None:
    for pieces in ([text], list(text), [text[:2], text[2:]]):
        assert parse(name, pieces)[0] == text


def test_calls_after_a_broken_one_count() -> None:
    good = f"<tool_call>{one('now', '{}')}</tool_call>"
    content, calls, _ = parse("hermes", [f"<tool_call>{{oops {good}"])
    assert content == "<tool_call>{oops"
    assert calls == [("now", "{}")]


def test_a_harmony_message_to_a_function_can_be_empty() -> None:
    text = " to=functions.now<|message|>"
    assert parse("openai", [text]) == ("", [("now", "{}")], [])
    assert parse("openai", list(text + "\n")) == ("", [("now", "{}")], [])
    assert parse("openai", [text], cut=True)[1] == []
    assert parse("openai", [text + "hm"]) == (text + "hm", [], [])
    assert parse("hermes", ['<tool_call>{"name": "now", ']) == ('<tool_call>{"name": "now", ', [], [])


def test_an_answer_that_is_cut_keeps_what_there_is_of_its_call() -> None:
    content, calls, undone = parse("hermes", list('Hm. <tool_call>{"name": "now", "arguments": {"a": "b'), cut=True)
    assert (content, calls, undone) == ("Hm.", [("now", '{"a": "b')], [])


PYTHONIC_ARGS = """city='P"ari}s</tool_call>', n=[1, -2.5e3, {"a": None}], u='\\u00e9'"""
GEMMA_ARGS = f'{{city:{Q}P"ari}}s</tool_call>{Q},n:[1,-2.5e3,{{a:None}}],u:{Q}é{Q}}}'
WRITTEN = {
    **dict.fromkeys(("lfm2", "llama4_pythonic", "olmo3", "pythonic"), PYTHONIC_ARGS),
    "functiongemma": GEMMA_ARGS.replace(Q, "<escape>"),
    "gemma4": GEMMA_ARGS,
}
"""The arguments `ARGS` in the formats that do not write JSON."""


def written_and_told(name: str) -> tuple[str, str]:
    """Return the arguments `ARGS` as a format writes them, and as they are told."""
    return WRITTEN.get(name, ARGS), ARGS.replace("\\u00e9", "é") if name in WRITTEN else ARGS


WITH_WRITTEN = [form for form in ALL_FORMATS if form in WITH_JSON or form.name in WRITTEN]


@pytest.mark.parametrize("name", dict.fromkeys(form.name for form in WITH_WRITTEN))
def test_half_a_call_is_no_content_where_calls_are_forced_or_one_came_before(name: str) -> None:
    """Two calls, or one where the format has no more, cut at every character, by length or by a stop string."""
    layout, (arguments, told) = FORMATS[name].layout, written_and_told(name)
    each = [f"{layout.before}{n}{layout.middle}{arguments}{layout.after}" for n in ("weather", "now")]
    first = layout.start + each[0]
    text = first + (layout.end if layout.between is None else layout.between + each[1] + layout.end)
    for size in range(len(text) + 1):
        for forced in (False, True):
            parser = ToolParser(FORMATS[name], OFFERED, forced=forced)
            deltas = [*map(parser.push, text[:size]), parser.finish(cut=not forced or size % 2 == 0)]
            calls = [call for delta in deltas for call in delta.calls]
            assert "".join(delta.content for delta in deltas) == ("" if forced or calls else text[:size])
            assert not any(delta.withdrawn for delta in deltas)
            assert (told * 2).startswith("".join(call.arguments for call in calls))


@pytest.mark.parametrize("offered", [OFFERED[:1], OFFERED], ids=["named", "of several"])
@pytest.mark.parametrize("form", WITH_WRITTEN, ids=lambda form: f"{form.name}{form.layout.middle[:3]}")
def test_a_forced_call_that_is_cut_is_told_as_far_as_it_is_known(form: ToolFormat, offered: Sequence[Function]) -> None:
    """Cut at every character, after blanks too. The name of the only function is known once anything is written."""
    layout = form.layout
    before = layout.start + layout.before + "weather"
    # A name in quotes is known at the closing quote, and any other with all of the text between it and the arguments.
    after_name = 1 if layout.middle[:1] in ('"', "") else len(layout.middle)
    known = 1 if len(offered) == 1 else len(before) + after_name
    arguments, whole = written_and_told(form.name)
    text, begin = before + layout.middle + arguments + layout.after + layout.end, len(before + layout.middle)
    for size in range(len(text) + 1):
        for blanks in ("", "\n\n"):
            parser = ToolParser(form, offered, several=False, forced=True)
            deltas = [parser.push(blanks), *map(parser.push, text[:size]), parser.finish(cut=size % 2 == 0)]
            calls = [call for delta in deltas for call in delta.calls]
            assert "".join(delta.content for delta in deltas) == ("" if calls else blanks)
            assert not any(delta.withdrawn for delta in deltas)
            assert [call.name for call in calls if call.id] == ["weather"] * (size >= known)
            told = "".join(call.arguments for call in calls)
            assert told == (whole[: len(told)] if form.name in WRITTEN else ARGS[: max(0, size - begin)])
            assert told == whole or size < len(text)


def test_one_call_at_a_time() -> None:
    text = f"[TOOL_CALLS][{one('weather', ARGS)}, {one('now', '{}')}]"
    parser = ToolParser(FORMATS["mistral"], OFFERED, several=False)
    names = [call.name for delta in (parser.push(text), parser.finish()) for call in delta.calls]
    assert names == ["weather"]


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"'),
        ("hermes", '<tool_call>{"name":"now","arguments":{"a":"'),
        ("hermes", '<tool_call>{"name":"now","arguments":{}}'),
        ("hermes", '<tool_call>{"name":"now","arguments":{}}\n<'),
        ("hermes", '<tool_call>{"name":"now","arguments":"'),
        ("mistral", "[TOOL_CALLS]["),
        ("llama3_json", "{"),
        ("deepseek_v31", f"{B}{C}"),
        ("apertus", '<|tools_prefix|>[{"'),
        ("cohere_command3", '<|START_ACTION|>[{"'),
        ("deepseek_v3", f"{B}{C}function{S}now\n```json\n"),
        ("functionary", "<function="),
        ("functionary", "<function=now>"),
        ("gigachat3", "<|function_call|>{"),
        ("granite", "[{"),
        ("granite", '<tool_call>[{"name":"now"},'),
        ("kimi_k2", f"{K}<|tool_call_begin|>"),
        ("kimi_k2", f"{K}<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{{"),
        ("minimax", '<tool_calls>{"name":"now","arguments":{}}'),
        ("phi4_mini_json", "functools["),
        ("solar_open", "<|tool_calls|><|tool_call:begin|>"),
        ("xlam", "```json\n["),
        ("gemma4", f"{G}now{{"),
        ("gemma4", f"{G}now{{a:{Q}"),
        ("lfm2", f"{L}[now(a='"),
        ("lfm2", f"{L}[now(a=["),
        ("olmo3", "<function_calls>now("),
        ("pythonic", "[now("),
    ],
)
def test_no_character_of_a_hostile_answer_is_read_twice(name: str, piece: str) -> None:
    """Sections that break off are not gone back to: a character is read in one section at most, and once after it."""
    check_no_character_is_read_twice(FORMATS[name], OFFERED, piece * 500)


class Marked(ByteTokenizer):
    """A vocabulary in which markers are tokens."""

    def __init__(self, *markers: str) -> None:
        super().__init__()
        self._vocabulary.control.update({marker: 300 + i for i, marker in enumerate(markers)})  # type: ignore[attr-defined]


def test_a_marker_that_is_a_token_counts_only_as_that_token() -> None:
    text, tokenizer = f"[TOOL_CALLS][{one('now', '{}')}]", Marked("[TOOL_CALLS]")
    spelled = ToolParser(FORMATS["mistral"], OFFERED, tokenizer)
    assert spelled.push(text, range(100)).content + spelled.finish().content == text
    assert spelled.complete == 0
    as_token = ToolParser(FORMATS["mistral"], OFFERED, tokenizer)
    (call,) = as_token.push(text, [300]).calls
    assert call.name == "now"
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_ids_that_later_prompts_must_repeat_are_the_model_s_own() -> None:
    """Check the ids of Kimi, whose prompts name results by them. A second call with the same id gets a random one."""
    parser = ToolParser(FORMATS["kimi_k2"], OFFERED)
    calls = [kimi(identity, "{}") for identity in ("functions.now:3", "functions.now:3 ", "functions.weather:4")]
    first, second, third = parser.push(K + "".join(calls) + K_END).calls
    assert (first.id, third.id) == ("functions.now:3", "functions.weather:4")
    assert second.id.startswith("call_")


N1 = '{"n": 1}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cohere_command3", f"<|START_ACTION|>[\n    {acted(17, 'weather', N1)}\n]<|END_ACTION|>"),
        ("kimi_k2", f"{K}{kimi('functions.weather:17', N1)}{K_END}"),
        ("solar_open", f"<|tool_calls|>{solar('weather', N1)}<|calls|>"),
    ],
)
def test_the_model_chooses_the_id_of_a_forced_call(name: str, text: str) -> None:
    tokenizer = ByteTokenizer()
    tables = GrammarVocabulary(tokenizer, 257)
    grammar = forced_calls(FORMATS[name], FUNCTIONS, tokenizer)
    matcher = compiled(StructuredOutputs(grammar=grammar), tables.library)
    assert all(matcher.consume_token(byte) for byte in text.encode())
    assert matcher.is_accepting()


# -- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_the_scanner_agrees_with_json_on_texts_and_on_damaged_ones(seed: int) -> None:
    chance = random.Random(seed)

    def value(depth: int) -> Any:
        kinds = [lambda: chance.choice([1, -2.5, 1e300, 0, True, False, None, 'é"\\\n', ""])]
        if depth < 4:
            kinds += [
                lambda: [value(depth + 1) for _ in range(chance.randint(0, 3))],
                lambda: {str(i) + "ü": value(depth + 1) for i in range(chance.randint(0, 3))},
            ]
        return chance.choice(kinds)()

    for _ in range(30):
        text = json.dumps({"a": value(0)}, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1]))
        if chance.random() < 0.7:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(['"', "{", "}", ",", ":", "x", "0", "", "\\", "]"]) + text[at + 1 :]
        assert scanned(text) == loaded(text), text


def scanned(text: str) -> bool:
    scanner = JsonScanner()
    try:
        for c in text:
            if scanner.place is JsonState.END:
                return False
            scanner.push(c)
    except Malformed:
        return False
    return scanner.place is JsonState.END


def loaded(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=lambda name: 1 / 0), dict)
    except (ValueError, ZeroDivisionError):
        return False


# -- formats ----------------------------------------------------------------------------------------------------------


# -- forced calls -----------------------------------------------------------------------------------------------------

FUNCTIONS = [
    Function("weather", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    Function("now"),
]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("form", WITH_JSON, ids=lambda form: f"{form.name}{form.layout.middle[:3]}")
def test_a_grammar_forces_calls_in_the_format(form: ToolFormat, several: bool) -> None:
    """Whatever a drunken speaker says within the grammar, the parser takes whole calls of offered functions from it."""
    tokenizer = ByteTokenizer()
    tables = GrammarVocabulary(tokenizer, 257)
    grammar = forced_calls(form, FUNCTIONS, tokenizer, several=several)
    start = compiled(StructuredOutputs(grammar=grammar), tables.library)
    most = 0
    for seed in range(12):
        chance, matcher, said = random.Random(seed), start.deep_copy(), bytearray()
        while not matcher.is_stopped() and len(said) < 3_000:
            mask, done = tables.next_of(matcher)
            bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if done and (not len(bits) or chance.random() < 0.3):
                break
            closing = [byte for byte in bits if chr(byte) in "}]\",)'"]
            said.append(int(chance.choice(closing if closing and chance.random() < 0.6 else bits)))
            assert matcher.consume_token(said[-1])
        else:
            if not matcher.is_accepting():
                continue
        content, calls, undone = parse(form.name, [said.decode()])
        assert (content.strip(), undone) == ("", [])
        assert calls
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
        most = max(most, len(calls))
    assert (most > 1) == (several and form.layout.between is not None)
