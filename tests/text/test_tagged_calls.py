"""Tool calls whose parameters are text between tags: read in any pieces, cut anywhere, and forced by grammars."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jsonschema
import numpy as np
import pytest

from ridgeline.core.text import ChatTemplate
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.tools import ALL_FORMATS, FORMATS, Function, ToolFormat, ToolParser, forced_calls
from ridgeline.core.text.tools.parameter_values import json_of
from ridgeline.core.text.tools.tag_style import AS_JSON, AS_TEXT, TagStyle
from ridgeline.core.text.tools.tagged_parameters import tagged_parameters
from ridgeline.core.text.vocabulary import literal_pattern
from ridgeline.engine.structured_output.grammar import compiled
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary
from ridgeline.engine.structured_output_params import StructuredOutputs
from text.read_counter import check_no_character_is_read_twice


def style_of(form: ToolFormat) -> TagStyle | None:
    """Return the literals of a format, if its parameters are text between tags."""
    arguments = form.arguments
    if not isinstance(arguments, partial) or arguments.func is not tagged_parameters:
        return None
    style = arguments.args[0]
    assert isinstance(style, TagStyle)
    return style


TAGGED = [form for form in ALL_FORMATS if style_of(form) is not None]
IDS = [f"{form.name}-{form.openings[0] if at == 0 else form.layout.before}" for at, form in enumerate(TAGGED)]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"type": "object"},
        "exact": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city"],
}
OFFERED = [Function("weather", WEATHER), Function("now")]

Told = tuple[str, list[tuple[str, Any]]]


def read(form: ToolFormat, pieces: Sequence[str], *, cut: bool = False, **options: Any) -> Told:
    """Return content and calls as (name, arguments), without the calls that are withdrawn."""
    parser = ToolParser(form, options.pop("offered", OFFERED), **options)
    content, calls = "", dict[int, list[str]]()
    for piece in (*pieces, None):
        delta = parser.finish(cut=cut) if piece is None else parser.push(piece)
        content += delta.content
        for call in delta.calls:
            calls.setdefault(call.index, [call.name, ""])[1] += call.arguments
        for index in delta.withdrawn:
            del calls[index]
    return content, [(name, arguments if cut else json.loads(arguments)) for name, arguments in calls.values()]


def parameters(style: TagStyle, texts: Mapping[str, str], strings: bool = True) -> str:
    """Return parameters as templates write them."""
    attribute = (AS_TEXT if strings else AS_JSON) if style.typed else ""
    tag = style.separator + style.value if style.value else ""
    return "".join(
        f"{style.parameter}{style.quote}{key}{style.quote}{attribute}{style.key_end}{tag}"
        f"{style.margin}{text}{style.margin}{style.value_end}{style.separator}"
        for key, text in texts.items()
    )


def calls_of(form: ToolFormat, *calls: tuple[str, str]) -> str:
    """Return calls as templates write them."""
    layout = form.layout
    each = [f"{layout.before}{name}{layout.middle}{arguments}{layout.after}" for name, arguments in calls]
    return f"{layout.start}{(layout.between or '').join(each)}{layout.end}"


def splits(text: str, count: int = 6) -> list[list[str]]:
    """Return the text whole, character by character, and in random pieces."""
    ways = [[text], list(text)]
    for seed in range(count):
        chance = random.Random(seed)
        cuts = sorted(chance.sample(range(1, len(text)), min(len(text) - 1, chance.randint(1, 12))))
        ways.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    return ways


# -- every format ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_calls_are_read_in_any_pieces(form: ToolFormat) -> None:
    style = style_of(form)
    assert style is not None
    hostile = [
        "",
        "4",
        "null",
        '"quoted"',
        "  two\n lines ",
        "\n",
        "a < b && c > d",
        style.value_end,
        f"{style.value_end}{style.value_end}",
        f"<b>{style.call_end}</b>{style.parameter}",
        f"{style.value_end} {style.parameter[:-1]}",
        f"{style.value_end}\n{style.call_end[:-1]}!",
        f"{style.value_end[:-1]}",
        "é😀",
    ]
    for value in hostile:
        text = f"<![CDATA[{value}]]>" if style.cdata and any(c in value for c in "<&\n") else value
        call = ("weather", parameters(style, {"city": text}) + parameters(style, {"days": "3"}, strings=False))
        said = f"Hm. {calls_of(form, call, ('now', ''), ('weather', parameters(style, {'city': text})))}"
        told = [("weather", {"city": value, "days": 3}), ("now", {}), ("weather", {"city": value})]
        for pieces in splits(said):
            assert read(form, pieces) == ("Hm.", told)


@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_values_get_their_types_from_the_schema(form: ToolFormat) -> None:
    style = style_of(form)
    assert style is not None
    repeated = parameters(style, {"days": "5"}, strings=False)
    written = {"days": "4", "where": "{'x': [1, None], 'y': \"it's\"}", "exact": "True", "note": "null", "more": "[1]"}
    said = calls_of(form, ("weather", parameters(style, written, strings=False) + repeated))
    values = {"days": 4, "where": {"x": [1, None], "y": "it's"}, "exact": True, "note": None, "more": [1]}
    assert read(form, [said]) == ("", [("weather", values)])


@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_what_is_no_call_is_text(form: ToolFormat) -> None:
    style = style_of(form)
    assert style is not None
    good = parameters(style, {"city": "Brest"})
    for said in (
        form.openings[0],
        form.openings[-1],
        "".join(form.openings) + " hm",
        calls_of(form, ("storm", good)),
        "" if style.section else calls_of(form, ("weather", good.replace(style.value_end, "", 1))),
        calls_of(form, ("weather", good.replace("city", "c" * 400))),
        calls_of(form, ("weather", "Brest")),
        calls_of(form, ("weather", good)).partition(style.call_end)[0],
    ):
        for pieces in splits(said) if said else ():
            content, calls = read(form, pieces)
            assert (content.split(), calls) == (said.split(), [])


@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_calls_without_their_section_and_with_text_after_them(form: ToolFormat) -> None:
    style = style_of(form)
    assert style is not None
    call = calls_of(form, ("weather", parameters(style, {"city": "Brest"})))
    bare = call.removeprefix(form.layout.start).removesuffix(form.layout.end)
    told = ("weather", {"city": "Brest"})
    for said, content in (
        (bare, ""),
        (f"Hm.\n{bare}\n{bare} So?", "Hm. So?"),
        (f"{bare}{form.layout.end}\n\nSo?", "\n\nSo?"),
        (f"{call}\n<b>{call}<{call}", "\n<b><"),
        (f"```\n{call}\n```", "```\n```"),
        (call.replace("\n", "").replace("=Brest", "Brest") if not style.margin else call.replace("\n", "\n\n"), None),
    ):
        for pieces in splits(said):
            found, calls = read(form, pieces)
            assert calls
            assert all(each == told for each in calls) or content is None
            assert content is None or found == content


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_a_call_that_is_cut_is_kept_as_far_as_it_is_known(form: ToolFormat, several: bool) -> None:
    """Show no part of a call as content where calls are forced, or once a call was reported."""
    style = style_of(form)
    assert style is not None
    call = ("weather", parameters(style, {"city": "Brest", "note": "a\nb" if not style.cdata else "a"}))
    text = calls_of(form, call, ("now", ""))
    whole = ['{"city": "Brest", "note": ' + json.dumps("a\nb" if not style.cdata else "a") + "}", "{}"]
    middle = form.layout.middle.rstrip() if style.name_end else form.layout.middle + "<"
    known = len(form.layout.start + form.layout.before + "weather" + middle)
    for size in range(len(text) + 1):
        for forced in (False, True):
            parser = ToolParser(form, OFFERED, several=several, forced=forced)
            deltas = [*map(parser.push, text[:size]), parser.finish(cut=not forced or size % 2 == 0)]
            calls = [call for delta in deltas for call in delta.calls]
            assert "".join(delta.content for delta in deltas) == ("" if forced or calls else text[:size])
            assert not any(delta.withdrawn for delta in deltas)
            names = [call.name for call in calls if call.id]
            assert names == ["weather", "now"][: len(names)]
            assert len(names) <= 1 + several
            assert not forced or bool(names) == (size >= known)
            for index, complete in enumerate(whole):
                assert complete.startswith("".join(call.arguments for call in calls if call.index == index))


@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_no_character_of_a_hostile_answer_is_read_twice(form: ToolFormat) -> None:
    style = style_of(form)
    assert style is not None
    begun = calls_of(form, ("weather", parameters(style, {"city": "B"}))).partition(style.call_end)[0]
    pieces = (form.openings[0], form.openings[-1], begun, begun.rstrip() + " ", style.value_end, style.call_end)
    for piece in pieces:
        check_no_character_is_read_twice(form, OFFERED, begun + piece * 200)


@pytest.mark.parametrize("form", TAGGED, ids=IDS)
def test_the_probe_finds_the_layout_of_a_template(form: ToolFormat) -> None:
    """Choose the format with the template's own layout among those whose reader is the same."""
    style, layout = style_of(form), form.layout
    assert style is not None

    def text(literal: str) -> str:
        return "{{ " + json.dumps(literal, ensure_ascii=False) + " }}"

    key, value = parameters(style, {"KEY": "VALUE"}).partition("VALUE")[::2]
    before, after = key.partition("KEY")[::2]
    parts = f"{text(before)}{{{{ k }}}}{text(after)}{{{{ v }}}}{text(value)}"
    source = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
        f"{{% for c in m.tool_calls or [] %}}{{{{ {json.dumps(layout.start, ensure_ascii=False)} if loop.first else "
        f"{json.dumps(layout.between, ensure_ascii=False)} }}}}{text(layout.before)}{{{{ c.function.name }}}}"
        f"{text(layout.middle)}{{% for k, v in c.function.arguments | items %}}{parts}{{% endfor %}}"
        f"{text(layout.after)}"
        f"{{{{ {json.dumps(layout.end, ensure_ascii=False)} if loop.last else '' }}}}{{% endfor %}}{{% endfor %}}"
    )
    assert ChatTemplate(source, ByteTokenizer()).probe.calls.tool_format is form


# -- what models write -------------------------------------------------------------------------------------------------

WRITTEN: list[tuple[str, str, Told]] = [
    (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>Brest</parameter><parameter=days> 3 </parameter></function>"
        "</tool_call>",
        ("", [("weather", {"city": "Brest", "days": 3})]),
    ),
    (
        "qwen3_coder",
        "I look.<function=weather>\n<parameter=city>\nBrest\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=now>\n</function>\n</tool_call>",
        ("I look.", [("weather", {"city": "Brest"}), ("now", {})]),
    ),
    (
        "qwen3_coder",
        '<tool_call>\n<function=weather>\n<parameter=city>\n<a href="x">y</a>\n\n</parameter>\n<parameter=where>\n'
        '{"x": 10,\n "y": 20}\n</parameter>\n</function>\n</tool_call>',
        ("", [("weather", {"city": '<a href="x">y</a>\n', "where": {"x": 10, "y": 20}})]),
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nBrest\n<parameter=where>\n"
        '{"x": 1}\n</function>\n</tool_call>\n',
        ("", [("weather", {"city": "Brest", "where": {"x": 1}})]),
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\na\n<parameter=other>\n</function>\n<b>\n</function></tool_call>",
        ("", [("weather", {"city": "a\n<parameter=other>\n</function>\n<b>"})]),
    ),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="weather"><parameter name="city">Brest</parameter></invoke><invoke name="now">'
        "</invoke></minimax:tool_call>",
        ("", [("weather", {"city": "Brest"}), ("now", {})]),
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name='weather'>\n<parameter name=city>Brest</parameter>\n</invoke>",
        ("", [("weather", {"city": "Brest"})]),
    ),
    (
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">4'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="note" string="true">null</｜DSML｜parameter>\n</｜DSML｜invoke>'
        "\n</｜DSML｜function_calls>",
        ("", [("weather", {"city": "4", "note": "null"})]),
    ),
    (
        "deepseek_v4",
        '<｜DSML｜tool_calls><｜DSML｜invoke name="weather"><｜DSML｜parameter name="city">4</｜DSML｜parameter>'
        '<｜DSML｜parameter name="more" string="false">"x"</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>',
        ("", [("weather", {"city": "4", "more": "x"})]),
    ),
    (
        "minicpm5",
        'Head\n<function name="weather"><param name="city"><![CDATA[上\n</param></function>]]></param></function>\nTXT'
        '\n<function name="now"></function>\nTail',
        ("Head\nTXT\nTail", [("weather", {"city": "上\n</param></function>"}), ("now", {})]),
    ),
    (
        "glm45",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Brest</arg_value><arg_key>days</arg_key>\n\n<arg_value>3"
        "</arg_value></tool_call><tool_call>now</tool_call>",
        ("", [("weather", {"city": "Brest", "days": 3}), ("now", {})]),
    ),
    (
        "glm47",
        "<tool_call>  weather  <arg_key> city </arg_key><arg_value>  x = 1\n</arg_value></tool_call>post",
        ("post", [("weather", {"city": "  x = 1\n"})]),
    ),
    (
        "hy_v3",
        "Hm.<tool_calls><tool_call>now<tool_sep></tool_call>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n"
        "<arg_value>Brest</arg_value>\n</tool_call>\n</tool_calls>",
        ("Hm.", [("now", {}), ("weather", {"city": "Brest"})]),
    ),
    (
        "solar_open2",
        "<|tool_call:start|>weather\n<|tool_arg:start|>city<|tool_arg:value|>see <|tool_call: it<|tool_arg:end|>\n"
        "<|tool_call:end|>\n<|tool_call:start|>now\n<|tool_call:end|>",
        ("", [("weather", {"city": "see <|tool_call: it"}), ("now", {})]),
    ),
]


@pytest.mark.parametrize(("name", "text", "told"), WRITTEN)
def test_what_models_write_is_read(name: str, text: str, told: Told) -> None:
    for pieces in splits(text):
        assert read(FORMATS[name], pieces) == told


BRANCHES = [{"$ref": "#/$defs/many"}] * 9


def with_days(schema: Any) -> Function:
    """Return a function with one parameter, whose schema can refer to branches that refer to themselves."""
    definitions = {"many": {"anyOf": BRANCHES}}
    return Function("tide", {"type": "object", "properties": {"days": schema}, "$defs": definitions})


@pytest.mark.parametrize("schema", [{"anyOf": 5}, {"allOf": {"type": "string"}}, {"anyOf": BRANCHES}])
def test_no_schema_breaks_the_reading_of_a_call_or_takes_long(schema: Any) -> None:
    parser = ToolParser(FORMATS["qwen3_coder"], [with_days(schema)])
    text = "<tool_call><function=tide><parameter=days>3</parameter></function></tool_call>"
    assert "".join(call.arguments for call in parser.push(text).calls) == '{"days": 3}'


def test_branches_that_refer_to_themselves_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^function tide: anyOf and oneOf .* give fewer$"):
        forced_calls(FORMATS["qwen3_coder"], [with_days({"oneOf": BRANCHES})], ByteTokenizer())


@pytest.mark.parametrize(
    ("schema", "marks_text", "text", "value"),
    [
        ({"type": "integer"}, True, "42", 42),
        ({"type": "integer"}, True, "many", "many"),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, True, '{"a": [1]}', {"a": [1]}),
        ({"type": ["integer", "string"]}, True, "42", "42"),
        ({}, True, "42", "42"),
        ({"type": "string"}, False, "42", "42"),
        ({"type": "string"}, False, '"42"', "42"),
        ({"type": ["null", "string"]}, False, "null", None),
        ({"type": "integer"}, False, "[42]", [42]),
        ({}, False, "42", 42),
    ],
)
def test_the_schema_decides_where_the_mark_of_a_value_does_not_fit(
    schema: dict[str, Any], marks_text: bool, text: str, value: Any
) -> None:
    offered = [Function("now", {"type": "object", "properties": {"a": schema}})]
    mark = "true" if marks_text else "false"
    written = (
        f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n<｜DSML｜parameter name="a" string="{mark}">{text}'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    assert read(FORMATS["deepseek_v4"], [written], offered=offered) == ("", [("now", {"a": value})])


def test_names_of_python_s_types_in_a_schema_are_understood() -> None:
    values = {"bool": ("true", True), "dict": ('{"a": 1}', {"a": 1}), "float": ("2.5", 2.5), "int": ("4", 4)}
    values |= {"list": ("[1]", [1]), "str": ("4", "4")}
    for name, (text, value) in values.items():
        assert json.loads(json_of(text, {"type": name})) == value


def test_half_a_character_in_json_stays_an_escape() -> None:
    text = json_of('{"a": "\\ud83d"}', {"type": "object"})
    assert json.loads(text) == {"a": "\ud83d"}
    assert text.encode()


# -- forced calls ------------------------------------------------------------------------------------------------------

UNIT = {"$defs": {"Unit": {"enum": ["°C", "°F", ""], "type": "string"}, "Place": {"type": "object"}}}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "nothing": {"type": "object"},
    "no properties": {"type": "object", "properties": {}},
    "a text": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "string"}},
        "required": ["b"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "a": {
                "type": "object",
                "properties": {"b": {"type": "array", "items": {"type": "integer"}}},
                "required": ["b"],
                "additionalProperties": False,
            }
        },
        "required": ["a"],
    },
    "enums": {
        "type": "object",
        "properties": {"a": {"enum": ["x", "xy", 3, None]}, "b": {"const": "z z"}, "c": {"enum": [1, 2]}},
        "required": ["a", "b", "c"],
    },
    "references": {
        **UNIT,
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/Unit"},
            "b": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
            "c": {"type": "array", "items": {"$ref": "#/$defs/Unit"}, "minItems": 1},
            "d": {"allOf": [{"$ref": "#/$defs/Unit"}], "description": "A unit."},
        },
        "required": ["a", "b", "c", "d"],
    },
    "kinds": {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "b": {"type": ["string", "integer"], "maximum": 5},
            "c": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "d": {},
            "e": {"type": ["boolean", "null"]},
        },
        "required": ["a", "b", "c", "d", "e"],
    },
    "lengths": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 2, "maxLength": 4},
            "b": {"type": "string", "pattern": "^[a-c]+/[0-9]$"},
            "c": {"type": "string", "pattern": "x", "maxLength": 3},
            "d": {"type": "string", "maxLength": 100_000},
            "e": {"type": ["string", "integer", "array"], "maxLength": 5_000},
        },
        "required": ["a", "b", "c", "d", "e"],
    },
    "further": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a", "z"],
        "additionalProperties": {"type": "integer"},
    },
}


class WithMarkers(ByteTokenizer):
    """A vocabulary in which the markers of a format are tokens."""

    def __init__(self, markers: Sequence[str]) -> None:
        super().__init__()
        self._vocabulary.tokens.extend(marker.encode() for marker in markers)
        self._vocabulary.control.update({marker: 257 + at for at, marker in enumerate(markers)})  # type: ignore[attr-defined]

    def spelled(self, text: str) -> list[int]:
        """Return the tokens of a text; a marker is one token."""
        parts = re.split(f"({literal_pattern(self.control).pattern})", text)
        return [token for part in parts for token in ([self.control[part]] if part in self.control else part.encode())]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("form", TAGGED, ids=IDS)
@pytest.mark.parametrize("marked", [False, True])
def test_what_a_grammar_allows_is_read_as_valid_arguments(form: ToolFormat, schema: str, marked: bool) -> None:
    """Read whole calls of a random walk through the grammar, and validate their arguments with the schema."""
    tokenizer = WithMarkers(form.markers if marked else ())
    tables = GrammarVocabulary(tokenizer, 257 + marked * len(form.markers))
    offered = [Function("weather", SCHEMAS[schema])]
    grammar = forced_calls(form, offered, tokenizer)
    start = compiled(StructuredOutputs(grammar=grammar), tables.library)
    style = style_of(form)
    assert style is not None
    closing = tokenizer.spelled(style.margin + style.value_end)
    ended = 0
    for seed in range(6):
        chance, matcher, said, rest = random.Random(seed), start.deep_copy(), list[int](), list[int]()
        while not matcher.is_stopped() and len(said) < 1_500:
            mask, done = tables.next_of(matcher)
            tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if done and (not len(tokens) or chance.random() < 0.4):
                break
            tidy = [token for token in tokens if token > 256 or chr(token) in '</>}]",\nx°']
            rest = rest or (closing.copy() if chance.random() < 0.1 else [])
            token = int(chance.choice(tidy if tidy and chance.random() < 0.8 else tokens))
            rest = rest if rest and rest[0] in tokens else []
            said.append(rest.pop(0) if rest else token)
            assert matcher.consume_token(said[-1])
        if not matcher.is_accepting():
            continue
        text = b"".join(tables.tokens[token] for token in said).decode()
        parser = ToolParser(form, offered, tokenizer, forced=True)
        deltas = [parser.push(text, said), parser.finish()]
        assert "".join(delta.content for delta in deltas).strip() == ""
        assert not any(delta.withdrawn for delta in deltas)
        assert parser.complete
        for index in range(parser.complete):
            arguments = "".join(call.arguments for delta in deltas for call in delta.calls if call.index == index)
            jsonschema.validate(json.loads(arguments), SCHEMAS[schema])
        ended += 1
    assert ended
