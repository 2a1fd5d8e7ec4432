"""What the probe finds in templates of releases and in small ones: transformers' renderer is the reference."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ridgeline.core.text import ChatTemplate
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.preamble import has_running_reasoning, with_marks
from ridgeline.core.text.template_probe import ABSENT as NO_CONTENT
from text import call_forms
from text.test_chat_templates import NAMES, source_of

Message = dict[str, Any]
ASK = {"role": "user", "content": "How high is it?"}
SAID = {"role": "assistant", "content": "Low."}
ARGUMENTS = {"harbour": "Brest", "days": 3}
TOOLS = call_forms.OFFERED
LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
END = "{% endfor %}{% endfor %}"
ONE = "<{{ c.function.name }}>{{ c.function.arguments | tojson }}"
FORMATS = {
    **dict.fromkeys(
        (
            "Bielik-11B-v3.0-Instruct",
            "MiMo-VL",
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
            "Qwen-Qwen2.5-7B-Instruct",
            "Qwen-Qwen3-0.6B",
            "Reka-Edge",
            "ibm-granite-granite-4.0",
            "qwen3",
        ),
        "hermes",
    ),
    "Apertus-8B-Instruct": "apertus",
    "Cohere2MoE": "cohere_command3",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command3",
    "GigaChat3.1-10B-A1.8B": "gigachat3",
    "MiniMax-M1": "minimax",
    "NVIDIA-Nemotron-Nano-v2": "nemotron_json",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_v3",
    "deepseek-r1": "deepseek_v3",
    "deepseek-r1-release": "deepseek_v3",
    "llama-cpp-deepseek-r1": "deepseek_v3",
    "meetkai-functionary-medium-v3.1": "functionary",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "moonshotai-Kimi-K2": "kimi_k2",
    "upstage-Solar-Open-100B": "solar_open",
    "ByteDance-Seed-OSS": "seed_oss",
    "GLM-4.6": "glm45",
    "MiniMax-M2": "minimax_m2",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "tencent-Hy3": "hy_v3",
    "LFM2.5-8B-A1B": "lfm2",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "openai-gpt-oss-120b": "openai",
}
"""The templates of releases whose calls one of our formats reads; the others have formats of their own."""


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, ByteTokenizer())


@pytest.fixture(scope="module", params=NAMES)
def released(request: pytest.FixtureRequest, data_dir: Path) -> tuple[str, ChatTemplate]:
    """A template of a release."""
    return request.param, template_of(source_of(data_dir, request.param))


def call(name: str, number: int = 0) -> Message:
    """A call as OpenAI's interface has it."""
    return {
        "id": f"call_{number}abcdefabcdef",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(ARGUMENTS)},
    }


def result(text: str, number: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}abcdefabcdef", "content": text}


def calling(*calls: Message, content: str | None = None) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def text_of(template: ChatTemplate, messages: list[Message]) -> str:
    """The prompt of a conversation, with tools offered unless the template fails on them."""
    tools = None if call_forms.rendered(template.source, [ASK], TOOLS) is None else TOOLS
    return template.encode(messages, tools=tools).text


def test_the_form_of_calls_is_one_in_which_transformers_writes_them_once(released: tuple[str, ChatTemplate]) -> None:
    _, template = released
    forms = call_forms.call_forms(template.source)
    found = template.probe.calls.form
    assert (found is None) == (not forms)
    if found is None:
        return
    content = call_forms.ABSENT if found.content == NO_CONTENT else found.content
    place = found.preambles.completed_turns[0]
    is_apart = place in ("before", "before_reasoning")
    assert call_forms.Form(found.arguments_as_text, content, is_apart, place == "once_a_turn") in forms


def test_a_format_is_found_only_where_its_parser_reads_the_template_s_calls(
    released: tuple[str, ChatTemplate],
) -> None:
    name, template = released
    found = template.probe.calls.tool_format
    assert (found.name if found else None) == FORMATS.get(name)
    assert (found is not None and found.layout.middle == "[ARGS]") == (
        name == "mistralai-Ministral-3-14B-Reasoning-2512"
    )


@pytest.mark.parametrize(
    "parts",
    [{}, {"description": None}, {"description": "Tides."}, {"parameters": {}}, {"parameters": {"type": "object"}}],
    ids=["bare", "null", "description only", "empty parameters", "no properties"],
)
def test_a_function_needs_no_more_than_its_name(released: tuple[str, ChatTemplate], parts: dict[str, Any]) -> None:
    # Some templates fail on a function without a description or parameters, which OpenAI's interface allows.
    name, template = released
    if name == "llama-cpp-deepseek-r1":
        pytest.skip("it fails on every tool")
    schema = {"type": "object", "properties": {"harbour": {"type": "string"}}}
    whole = {"name": "tide_table", "description": "Tides.", "parameters": schema}
    written, expected = (
        template.encode([ASK], tools=[{"type": "function", "function": function}]).text
        for function in ({"name": "tide_table", **parts}, whole)
    )
    assert ("tide_table" in written) == ("tide_table" in expected)


def test_the_tool_loop_of_openai_leaves_nothing_out(released: tuple[str, ChatTemplate]) -> None:
    """A call, two calls and a call beside text, each with its results: all is in the prompt, or it is refused."""
    _, template = released
    loops = (
        [ASK, calling(call("tide")), result("probe_low")],
        [ASK, calling(call("tide"), call("wind", 1)), result("probe_low"), result("probe_east", 1)],
        [ASK, calling(call("tide"), call("wind", 1)), result("probe_east", 1), result("probe_low")],
        [ASK, calling(call("tide"), content="I look."), result("probe_low"), SAID, ASK],
    )
    for messages in loops:
        texts = [each["content"] for each in messages if each["role"] == "tool"]
        names = [each["function"]["name"] for message in messages for each in message.get("tool_calls", ())]
        if template.probe.calls.form is None:
            with pytest.raises(ValueError, match=r"messages\[\d\]|chat template: line"):
                text_of(template, messages)
            continue
        prompt = text_of(template, messages)
        assert all(prompt.count(text) == 1 for text in texts)
        assert all(name in prompt for name in names)
        assert prompt.count("Brest") == len(names)
        assert '\\"' not in prompt.partition(ASK["content"])[2]
        assert "None" not in prompt.partition(ASK["content"])[2]


def preambles(*numbers: int, thought: bool) -> list[Message]:
    """Steps of a tool loop: text, reasoning and a call in one message, and its result."""
    steps = []
    for number in numbers:
        reasoning = {"reasoning_content": f"probe_thought_{number}"} if thought else {}
        step = calling(call(f"tide_{number}", number), content=f"probe_preamble_{number}")
        steps += [{**step, **reasoning}, result(f"probe_result_{number}", number)]
    return steps


@pytest.mark.parametrize("thought", [False, True])
@pytest.mark.parametrize("steps", ["one", "two", "over", "over without an end", "over and two", "after a system"])
def test_text_next_to_calls_is_kept(released: tuple[str, ChatTemplate], steps: str, thought: bool) -> None:
    """OpenAI's loop sends back what it got. All texts stay, and reasoning that the template keeps without text too."""
    _, template = released
    messages = {
        "one": [ASK, *preambles(0, thought=thought)],
        "two": [ASK, *preambles(0, 1, thought=thought)],
        "over": [ASK, *preambles(0, thought=thought), SAID, ASK],
        "over without an end": [ASK, *preambles(0, thought=thought), ASK],
        "over and two": [ASK, *preambles(0, thought=thought), SAID, ASK, *preambles(1, 2, thought=thought)],
        "after a system": [{"role": "system", "content": "probe_rule"}, ASK, *preambles(0, thought=thought)],
    }[steps]
    if template.probe.calls.form is None:
        with pytest.raises(ValueError, match=r"messages\[\d\]|chat template: line"):
            text_of(template, messages)
        return
    try:
        without = text_of(
            template, [{**each, "content": None} if each.get("tool_calls") else each for each in messages]
        )
    except ValueError:  # a call and then the user; Mistral's templates want a text between two of the user's
        assert steps == "over without an end"
        without = "probe_thought_0" if thought and template.probe.reads_thinking_parts else ""
    prompt = text_of(template, messages)
    for message in messages:
        if message.get("tool_calls"):
            assert prompt.count(message["content"]) == 1
            assert prompt.count(message["tool_calls"][0]["function"]["name"]) >= 1
        thought_text = message.get("reasoning_content", "probe_thought_none")
        assert prompt.count(thought_text) == without.count(thought_text)


def test_gpt_oss_gets_reasoning_in_its_channel_and_text_in_another(data_dir: Path) -> None:
    """Its template fails on content, reasoning and calls together, and puts text next to a call into the analysis."""
    template = template_of(source_of(data_dir, "openai-gpt-oss-120b"))
    channel = "<|start|>assistant<|channel|>{}<|message|>{}<|end|>".format
    call_text = (
        '<|start|>assistant to=functions.tide_{}<|channel|>commentary json<|message|>{{"harbour": "Brest", "days": 3}}'
    )
    one = text_of(template, [ASK, *preambles(0, thought=True)])
    shown, thought = channel("final", "probe_preamble_0"), channel("analysis", "probe_thought_0")
    assert shown + thought + call_text.format(0) in one
    # A text on a channel of its own ends the turn for the template, which then drops the reasoning before it.
    two = text_of(template, [ASK, *preambles(0, 1, thought=True)])
    for number in (0, 1):
        joined = channel("analysis", f"probe_thought_{number}\n\nprobe_preamble_{number}")
        assert joined + call_text.format(number) in two


def test_mistral_s_list_format_keeps_text_before_a_call_or_with_the_turn_s_last_text(data_dir: Path) -> None:
    """Its template leaves out text in a message with calls, and refuses a second text of the assistant in a turn."""
    template = template_of(source_of(data_dir, "mistralai-Mistral-Nemo-Instruct-2407"))
    running = text_of(template, [ASK, *preambles(0, thought=False)])
    assert re.search(r"probe_preamble_0.{0,20}\[TOOL_CALLS\]\[\{\"name\": \"tide_0\"", running)
    over = text_of(template, [ASK, *preambles(0, thought=False), SAID, ASK])
    assert f"[/TOOL_RESULTS]probe_preamble_0\n\n{SAID['content']}" in over


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_reaches_a_template_under_whichever_name_it_reads(name: str) -> None:
    """Solar Open reads `reasoning`, Qwen 3 `reasoning_content`, gpt-oss `thinking`."""
    source = "{% for m in messages %}{{ m." + name + " }}{{ m.content }}{% endfor %}"
    for given in ("reasoning_content", "thinking", "reasoning"):
        assert "probe_thought" in template_of(source).encode([ASK, {**SAID, given: "probe_thought"}]).text


def test_text_that_a_template_keeps_nowhere_is_refused_by_name() -> None:
    source = "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}"
    template = template_of(source + "{% for c in m.tool_calls or [] %}" + ONE + END)
    assert "<tide>" in template.encode([ASK, calling(call("tide")), result("low")]).text
    with pytest.raises(
        ValueError, match=r"messages\[1\].content: .* leaves out this text next to tool calls; send null"
    ):
        template.encode([ASK, calling(call("tide"), content="probe_preamble"), result("low")])
    # Reasoning in the text may be left out, as templates do with earlier turns.
    thought = "<think>I had better look at the tables of the harbour first.</think>"
    assert "<tide>" in template.encode([ASK, calling(call("tide"), content=thought), result("low")]).text


KEEPS_FIRST = (
    "{% for m in messages %}{% if m.role != 'assistant' or not m.tool_calls %}{{ m.content }}"
    "{% elif not (messages[:loop.index0] | selectattr('tool_calls') | list) %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}"
)


@pytest.mark.parametrize(
    "said",
    [
        ("I look.", "I look."),  # the same text twice
        ("I look.", "How high is it?"),  # the user's words
        ("I look.", "low"),  # the words of a result
        ("I look at it.", "How high it is I look at."),  # words that stand elsewhere
    ],
)
def test_text_that_stands_elsewhere_too_is_kept_in_its_own_place(said: tuple[str, str]) -> None:
    """Expect a message of its own for a text that the template leaves out next to the second call."""
    template = template_of(KEEPS_FIRST + ONE + END)
    steps = [calling(call("tide"), content=said[0]), result("low"), calling(call("wind", 1), content=said[1])]
    prompt = template.encode([ASK, *steps, result("east", 1)]).text
    assert (
        prompt
        == ASK["content"] + f"{said[0]}<tide>{json.dumps(ARGUMENTS)}low{said[1]}<wind>{json.dumps(ARGUMENTS)}east"
    )
    first = {"role": "assistant", "content": said[0], "function_call": call("tide")["function"]}
    second = {"role": "assistant", "content": said[1], "function_call": call("wind")["function"]}
    results = [
        {"role": "function", "name": name, "content": text} for name, text in (("tide", "low"), ("wind", "east"))
    ]
    assert template.encode([ASK, first, results[0], second, results[1]]).text == prompt


def test_a_lost_text_is_found_in_a_long_conversation() -> None:
    """Expect every text: the template drops that of message 1 alone, whose number begins that of message 11."""
    template = template_of(
        "{% for m in messages %}{% if not m.tool_calls or loop.index0 > 1 or messages | length < 9 %}{{ m.content }}"
        "{% endif %}{% for c in m.tool_calls or [] %}" + ONE + END
    )
    steps = [
        message
        for number in range(6)
        for message in (calling(call("tide", number), content=f"Look {number}."), result(f"low {number}", number))
    ]
    prompt = text_of(template, [ASK, *steps])
    assert [prompt.count(f"Look {number}.") for number in range(6)] == [1] * 6


@pytest.mark.parametrize("reasoning", ["", ["It rises."]])
def test_reasoning_that_is_no_text_is_not_searched_for(reasoning: object) -> None:
    (marked,) = with_marks([calling(call("tide"), content="I look.") | {"reasoning_content": reasoning}])
    assert marked["reasoning_content"] == reasoning
    assert has_running_reasoning([marked], "a prompt")


def test_deepseek_r1_keeps_a_text_that_each_step_repeats(data_dir: Path) -> None:
    """Its template writes the text next to the first call of a conversation only."""
    template = template_of(source_of(data_dir, "deepseek-r1-release"))
    steps = [
        message
        for number in (0, 1, 2)
        for message in (calling(call("tide", number), content="How high? I look."), result(f"low {number}", number))
    ]
    assert text_of(template, [ASK, *steps]).count("How high? I look.") == 3


HERMES = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    '\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
)


NEEDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
FIRST_IS_SYSTEM = "{% set rule = messages[0].content %}{% set messages = messages[1:] %}{{ rule }}"
NOT_LAST = HERMES.replace("m.tool_calls or []", "((m.tool_calls or []) if not loop.last else [])")
NOT_LAST_NAMED = NOT_LAST.replace("]{{ m.content", "]{{ m.name + ':' if m.role == 'tool' }}{{ m.content")


@pytest.mark.parametrize(
    ("before", "loop"),
    [(NEEDS_SYSTEM, HERMES), (FIRST_IS_SYSTEM, HERMES), ("", NOT_LAST), (NEEDS_SYSTEM, NOT_LAST), ("", NOT_LAST_NAMED)],
    ids=["a system first", "the first is the system", "not last", "both", "not last, named results"],
)
def test_calls_are_found_where_a_template_wants_more_around_them(before: str, loop: str) -> None:
    template = template_of(before + loop + END)
    found = template.probe.calls
    assert found.tool_format is not None
    assert (found.tool_format.name, found.form and found.form.several) == ("hermes", True)
    system = {"role": "system", "content": "probe_rule"}
    prompt = template.encode(
        [system, ASK, calling(call("tide"), call("wind", 1)), result("low"), result("east", 1)]
    ).text
    assert prompt.count('<tool_call>\n{"name": "tide", "arguments": {"harbour": "Brest", "days": 3}}') == 1
    assert prompt.count('<tool_call>\n{"name": "wind"') == 1


SYSTEM: dict[str, list[Message]] = {
    "developer": [{"role": "developer", "content": "probe_rule"}, ASK],
    "two": [{"role": "system", "content": "probe_first"}, {"role": "developer", "content": "probe_rule"}, ASK],
    "two systems": [{"role": "system", "content": "probe_first"}, {"role": "system", "content": "probe_rule"}, ASK],
    "later": [ASK, SAID, {"role": "developer", "content": "probe_rule"}, ASK],
    "function": [
        ASK,
        {"role": "assistant", "content": None, "function_call": {"name": "tide", "arguments": '{"harbour": "Brest"}'}},
        {"role": "function", "name": "tide", "content": "probe_rule"},
    ],
    "ipython": [ASK, calling(call("tide")), {"role": "ipython", "content": "probe_rule"}],
}


@pytest.mark.parametrize("kind", SYSTEM)
def test_a_message_of_any_role_is_written_or_refused(released: tuple[str, ChatTemplate], kind: str) -> None:
    _, template = released
    for tools in (None, TOOLS):
        try:
            prompt = template.encode(SYSTEM[kind], tools=tools).text
        except ValueError:
            if kind in ("developer", "two", "two systems"):  # only where it knows no system message at all
                system = [{"role": "system", "content": "probe_rule"}, ASK]
                assert call_forms.rendered(template.source, system, tools) is None
            continue
        for message in SYSTEM[kind]:
            content = message.get("content") or ""
            assert not content.startswith("probe") or prompt.count(content) == 1


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("openai-gpt-oss-120b", "developer"),
        ("Reka-Edge", "developer"),
        ("google-gemma-4-31B-it", "developer"),
        ("Qwen3-Coder", "system"),  # it writes any role's name, and its model knows no developer
        ("Qwen-Qwen3-0.6B", "system"),
        ("meta-llama-Llama-3.1-8B-Instruct", "system"),
        ("Qwen3.5-4B", "system"),  # it refuses the role
    ],
)
def test_developer_stays_where_the_template_has_a_branch_for_it(data_dir: Path, name: str, role: str) -> None:
    assert template_of(source_of(data_dir, name)).probe.role("developer") == role


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        # It prints a null content as "None", although it asks whether something else is null.
        (
            "{% for m in messages %}{% if m.reasoning_content is not none %}{{ m.content }}{% endif %}"
            "{% for c in m.tool_calls or [] %}" + ONE + END,
            [ASK, calling(call("tide")), result("low")],
            'How high is it?<tide>{"harbour": "Brest", "days": 3}low',
        ),
        # It prints a null content as another word.
        (
            "{% for m in messages %}[{{ m.role }}]{% if m.content is none %}null{% else %}{{ m.content }}{% endif %}"
            "{% for c in m.tool_calls or [] %}" + ONE + END,
            [ASK, calling(call("tide")), result("low")],
            '[user]How high is it?[assistant]<tide>{"harbour": "Brest", "days": 3}[tool]low',
        ),
        # It says "None" anyway.
        (
            LOOP + ONE + END + "If None fits, say so.",
            [ASK, calling(call("tide")), result("low")],
            '[user]How high is it?[assistant]<tide>{"harbour": "Brest", "days": 3}[tool]lowIf None fits, say so.',
        ),
        # A call is named by its id alone, as Kimi K2.5 has it.
        (
            LOOP + "<{{ c.id }}>{{ c.function.arguments | tojson }}{% endfor %}"
            "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}",
            [ASK, calling(call("tide"), call("wind", 1)), result("low"), result("east", 1)],
            '[user]How high is it?[assistant]<functions.tide:0>{"harbour": "Brest", "days": 3}<functions.wind:1>'
            '{"harbour": "Brest", "days": 3}[tool]low(functions.tide:0)[tool]east(functions.wind:1)',
        ),
        # Short ids are refused, as some of Mistral's templates do.
        (
            LOOP + "{% if c.id|length < 9 %}{{ raise_exception('id') }}{% endif %}" + ONE + END,
            [ASK, calling({**call("tide"), "id": "1"}), {**result("low"), "tool_call_id": "1"}],
            '[user]How high is it?[assistant]<tide>{"harbour": "Brest", "days": 3}[tool]low',
        ),
        # The system message is written only before a last message of the user: it moves there in a tool loop.
        (
            "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set messages = messages[1:] %}"
            "{% endif %}{% for m in messages %}{{ s if loop.last and m.role == 'user' }}[{{ m.role }}]{{ m.content }}"
            "{% for c in m.tool_calls or [] %}" + ONE + END,
            [{"role": "system", "content": "probe_rule"}, ASK, calling(call("tide")), result("low")],
            '[user]probe_rule\n\nHow high is it?[assistant]<tide>{"harbour": "Brest", "days": 3}[tool]low',
        ),
        # Only the first call is written: each call gets a message, with its result behind it.
        (
            LOOP.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]") + ONE + END,
            [ASK, calling(call("a"), call("b", 1)), result("one"), result("two", 1)],
            '[user]How high is it?[assistant]<a>{"harbour": "Brest", "days": 3}[tool]one'
            '[assistant]<b>{"harbour": "Brest", "days": 3}[tool]two',
        ),
        # An object is written as Python has it, text as it is.
        (
            LOOP + "<{{ c.function.name }}>{{ c.function.arguments }}" + END,
            [ASK, calling(call("tide")), result("low")],
            '[user]How high is it?[assistant]<tide>{"harbour": "Brest", "days": 3}[tool]low',
        ),
        # A result is written under its function's name, which OpenAI's interface does not repeat.
        (
            "{% for m in messages %}{% if m.role == 'tool' %}{{ m.name + ':' }}{% endif %}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}" + ONE + END,
            [ASK, calling(call("tide")), result("low")],
            'How high is it?<tide>{"harbour": "Brest", "days": 3}tide:low',
        ),
        # Two leading messages are one where the template keeps one.
        (
            "{{ messages[0].content if messages[0].role == 'system' }}|{% for m in messages if m.role != 'system' %}"
            "{{ m.content }}{% endfor %}",
            SYSTEM["two"],
            "probe_first\n\nprobe_rule|How high is it?",
        ),
    ],
    ids=[
        "null in words",
        "null in other words",
        "None anyway",
        "ids of functions",
        "no short ids",
        "system moves",
        "one call a message",
        "as Python has it",
        "named results",
        "joined",
    ],
)
def test_small_templates_get_what_they_take(source: str, messages: list[Message], expected: str) -> None:
    assert template_of(source).encode(messages, add_generation_prompt=False).text == expected


PLAIN = "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.content or '' }}{% endfor %}"


def test_reasoning_before_several_calls_is_written_once() -> None:
    template = template_of(
        "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% for c in (m.tool_calls or [])[:1] %}"
        + ONE
        + END
    )
    thinking = {**calling(call("a"), call("b", 1)), "reasoning": "probe_thought"}
    prompt = template.encode([ASK, thinking, result("one"), result("two", 1)]).text
    assert (prompt.count("probe_thought"), prompt.count("<a>"), prompt.count("<b>")) == (1, 1, 1)


def test_calls_with_an_id_are_forced_in_the_layout_without_a_list() -> None:
    """Mistral Small 3.2 writes `name[CALL_ID]id[ARGS]`."""
    written = "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}"
    found = template_of(LOOP + written + END).probe.calls.tool_format
    assert found is not None
    assert (found.name, found.layout.middle) == ("mistral", "[ARGS]")


def test_the_tags_of_phi_4_mini_are_no_content_of_another_format() -> None:
    # Granite writes the same opening tag, but no closing one.
    found = template_of(LOOP + "<|tool_call|>{{ c.function | tojson }}<|/tool_call|>" + END).probe.calls.tool_format
    assert found is not None
    assert (found.name, found.layout.end) == ("phi4_mini_json", "<|/tool_call|>")


@pytest.mark.parametrize(("given", "expected"), [("", "{}"), ("  ", "{}"), ("null", "{}"), ('{"a": 1}', '{"a": 1}')])
def test_arguments_may_be_empty(given: str, expected: str) -> None:
    asked = call("tide")
    asked["function"]["arguments"] = given
    assert f"<tide>{expected}" in template_of(LOOP + ONE + END).encode([ASK, calling(asked), result("low")]).text


@pytest.mark.parametrize("given", ["[1]", "{", "3", [1], "[" * 100_000, '{"a": NaN}', '{"a": Infinity}'])
def test_arguments_that_are_no_object_are_refused(given: object) -> None:
    asked = call("tide")
    asked["function"]["arguments"] = given
    with pytest.raises(ValueError, match=r"messages\[1\].tool_calls: the arguments of a call are not a JSON object"):
        template_of(LOOP + ONE + END).encode([ASK, calling(asked)])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([ASK, calling(call("tide"))], r"messages\[1\].tool_calls: .* leaves out these tool calls"),
        ([ASK, result("probe_low")], r"messages\[1\]: .* leaves out this tool message"),
        ([{"role": "developer", "content": "x"}, ASK], r"messages\[0\]: .* leaves out messages with role developer"),
        ([{"role": "system", "content": "x"}, ASK], r"messages\[0\]: .* leaves out messages with role system"),
        ([ASK, {"role": "ipython", "content": "x"}], r"messages\[1\]: .* leaves out messages with role ipython"),
    ],
)
def test_what_a_template_leaves_out_is_refused_by_name(messages: list[Message], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        template_of(PLAIN).encode(messages)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_later_system_message_that_is_left_out_is_refused_by_name(role: str) -> None:
    template = template_of("{{ messages[0].content if messages[0].role == 'system' }}" + PLAIN)
    assert template.encode([{"role": role, "content": "x"}, ASK]).text == "x" + ASK["content"]
    with pytest.raises(ValueError, match=r"messages\[1\]: .* leaves out this system message"):
        template.encode([ASK, {"role": role, "content": "probe_rule"}])
    twice = [{"role": role, "content": "probe_rule"}, ASK, SAID, {"role": role, "content": "probe_other"}, ASK]
    with pytest.raises(ValueError, match=r"messages\[3\]: .* leaves out this system message"):
        template.encode(twice)


def test_a_plain_conversation_is_not_probed() -> None:
    template = template_of(PLAIN)
    rendered: list[Any] = []
    template.probe._render = lambda *asked: rendered.append(asked) or ""
    assert template.encode([ASK, SAID, ASK]).text == ASK["content"] + SAID["content"] + ASK["content"]
    assert rendered == []


def test_a_template_that_spends_its_budget_is_probed_once() -> None:
    """The probe has dozens of conversations; one that takes ten seconds is not tried again in the next."""
    template = template_of("{% if messages|length > 1 %}{{ 'x' * 10**10 }}{% endif %}{{ messages[0].content }}")
    rendered: list[int] = []
    own: Callable[..., str] = template.probe._render

    def count(messages: Any, tools: Any, opens: bool) -> str:
        rendered.append(len(messages))
        return own(messages, tools, opens)

    template.probe._render = count
    assert template.probe.calls.form is None
    assert len(rendered) == 1


FAILS: Mapping[str, tuple[str, list[Message], str]] = {
    "an addition": (
        "{% for m in messages %}\n{{ '[' ~ m.role ~ ']' }}\n{{ m.content + m.nothing }}\n{% endfor %}",
        [ASK],
        r"chat template: line 3 on messages\[0\]: 'dict object' has no attribute 'nothing'",
    ),
    "a later message": (
        "{% set first = messages[0] %}\n{% for m in messages[1:] %}{{ m.content.x.y }}{% endfor %}",
        [{"role": "system", "content": "s"}, ASK],
        r"line 2 on messages\[1\]",
    ),
    "in a macro": (
        "{% macro f(m) %}\n\n{{ 1 + m.content }}{% endmacro %}\n{% for m in messages %}{{ f(m) }}{% endfor %}",
        [ASK],
        r"line 3 on messages\[0\]: unsupported operand",
    ),
    "refused": (
        "{% for m in messages %}\n{{ raise_exception('no ' + m.role) if m.role == 'system' else '' }}{% endfor %}",
        [ASK, {"role": "assistant", "content": "a"}, {"role": "system", "content": "s"}],
        r"line 2 on messages\[2\]: no system",
    ),
    "on no message": ("a\n\n{{ nothing.at.all }}", [ASK], r"line 3: 'nothing' is undefined"),
    "after two that were joined": (
        "{{ messages[0].content if messages[0].role == 'system' }}\n{% for m in messages if m.role != 'system' %}"
        "{{ m.content + 1 if m.content == 'How high is it?' else '' }}{% endfor %}",
        [*SYSTEM["two systems"]],
        r"line 2 on messages\[2\]",
    ),
}


@pytest.mark.parametrize("name", FAILS)
def test_a_failure_says_where_and_on_what(name: str) -> None:
    source, messages, says = FAILS[name]
    with pytest.raises(ValueError, match=says) as failure:
        template_of(source).encode(messages)
    assert "\n" not in str(failure.value)
