"""Structured output over HTTP: every field that asks for it, and forms that nobody should have sent."""

import asyncio
import json
import re
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import load_engine
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.errors import ApiError
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHAT = "/v1/chat/completions"


_CLOSING = {"3": 8, "94": 8}
"""The quotation mark and the brace of `tales`, which would tell its story inside a string."""


def fits(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}},
        fits,
    ),
    "json_object": (
        {"response_format": {"type": "json_object"}, "max_tokens": 120, "n": 3, "logit_bias": _CLOSING},
        lambda t: isinstance(json.loads(t), dict),
    ),
    "json_object of a schema": ({"response_format": {"type": "json_object", "schema": SCHEMA}}, fits),
    "json_object of one without a type": (
        {"response_format": {"type": "json_object", "schema": {k: v for k, v in SCHEMA.items() if k != "type"}}},
        fits,
    ),
    "json_object of a list": (
        {
            "response_format": {
                "type": "json_object",
                "schema": {"type": "array", "items": {"enum": [1]}, "maxItems": 3},
            }
        },
        lambda t: set(json.loads(t)) <= {1},
    ),
    "json_object and no schema": (
        {"response_format": {"type": "json_object", "schema": None}, "max_tokens": 120, "n": 3, "logit_bias": _CLOSING},
        lambda t: isinstance(json.loads(t), dict),
    ),
    "json": ({"structured_outputs": {"json": SCHEMA}}, fits),
    "json text": ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "json_object": False}}, fits),
    "regex": ({"structured_outputs": {"regex": "[a-f]{3}[0-9]"}}, lambda t: re.fullmatch("[a-f]{3}[0-9]", t)),
    "choice": ({"structured_outputs": {"choice": ["red", "blue"]}}, lambda t: t in ("red", "blue")),
    "grammar": ({"structured_outputs": {"grammar": 'start: "a" "b"+ "c"'}}, lambda t: re.fullmatch("ab+c", t)),
    "guided_json": ({"guided_json": SCHEMA}, fits),
    "guided_regex": ({"guided_regex": "x{2,3}y"}, lambda t: re.fullmatch("x{2,3}y", t)),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, lambda t: t in ("yes", "no")),
    "guided_grammar": ({"guided_grammar": 'root ::= "q" [0-9]'}, lambda t: re.fullmatch("q[0-9]", t)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_field_that_asks_for_a_form_gets_it(server: Running, name: str) -> None:
    fields, valid = FORMS[name]
    body = {"messages": [{"role": "user", "content": "Tell."}], "max_tokens": 100, "seed": 3, "n": 2, **fields}
    reply = server.post(CHAT, body)
    assert reply.status == 200, reply.data
    ended = [c for c in reply.json()["choices"] if c["finish_reason"] == "stop"]
    assert ended
    for choice in ended:
        assert valid(choice["message"]["content"])
    server.idle()


OPEN = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("open_objects", [False, True])
def test_objects_of_a_schema_are_closed_unless_the_server_leaves_them_open(open_objects: bool) -> None:
    """Let a model that is pushed towards quotation marks write properties of its own where it may."""
    llm = AsyncLLM(load_engine("tales"))
    settings = ServerSettings(models=("tales",), open_objects=open_objects)
    with closing(llm), running(Service(llm, Everybody()), settings) as server:
        body = {"messages": [{"role": "user", "content": "Tell."}], "max_tokens": 60, "seed": 3, "n": 8}
        for form in (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": OPEN}}},
            {"guided_json": json.dumps(OPEN)},
        ):
            reply = server.post(CHAT, {**body, "logit_bias": {"3": 8}, **form})
            assert reply.status == 200, reply.data
            texts = [choice["message"]["content"] for choice in reply.json()["choices"]]
            others = [text for text in texts if re.search(r'"(?!a"|b")[^"]*": ', text)]
            assert bool(others) == open_objects, texts


def test_completions_have_forms_too_and_neighbours_of_a_batch_their_own(server: Running) -> None:
    body = {"prompt": ["Once", "There"], "max_tokens": 20, "n": 2, "guided_regex": "[a-d]{4,6}"}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.data
    texts = [choice["text"] for choice in reply.json()["choices"]]
    assert len(texts) == 4
    assert all(re.fullmatch("[a-d]{4,6}", text) for text in texts)


def test_a_plain_text_format_asks_for_nothing(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Tell."}], "max_tokens": 3, "response_format": {"type": "text"}}
    assert server.post(CHAT, body).status == 200


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "two fields": ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "give only one of them"),
    "two kinds": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "exactly one"),
    "no kind": ({"structured_outputs": {}}, "exactly one"),
    "unknown kind": ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag"),
    "a type that is none": ({"response_format": {"type": ["json_object"]}}, "response_format.type"),
    "unknown type": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "a schema of no object": ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format.schema"),
    "a schema's bounds": ({"response_format": {"type": "json_object", "schema": nested(33)}}, "deeper than 32"),
    "text of a schema": ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
    "two schemas": (
        {"response_format": {"type": "json_object", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}}},
        "response_format.json_schema",
    ),
    "an unknown entry": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "root": "x"}}},
        "json_schema.root",
    ),
    "no schema": ({"response_format": {"type": "json_schema"}}, "json_schema.schema"),
    "schema no object": ({"guided_json": "[1]"}, "must be an object"),
    "schema no JSON": ({"guided_json": "{"}, "not valid JSON"),
    "deep": ({"guided_json": nested(33)}, "deeper than 32"),
    "long": ({"guided_regex": "a" * 20_000}, "the limit is 16384"),
    "huge enum": ({"guided_json": {"enum": [f"v{i}" for i in range(100_000)]}}, "the limit is 16384"),
    "huge length": ({"guided_json": {"type": "string", "maxLength": 10**9}}, "maxLength"),
    "remote": ({"guided_json": {"$ref": "http://169.254.169.254/x"}}, "the server fetches nothing"),
    "file": ({"guided_json": {"$ref": "file:///etc/passwd"}}, "the server fetches nothing"),
    "recursive": ({"guided_json": {"$ref": "#"}}, "cannot be enforced"),
    "not": ({"guided_json": {"not": {"type": "string"}}}, 'Unimplemented keys: ["not"]'),
    "oneOf": ({"guided_json": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}, "give anyOf"),
    "pattern": ({"guided_json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
    "look-behind": ({"guided_regex": "(?<=a)b"}, "look-around"),
    "power": ({"guided_regex": "(x{1000}){1000}"}, "cannot be enforced"),
    "unclosed": ({"guided_regex": "(a"}, "unclosed group"),
    "parentheses": ({"guided_grammar": "start: " + "(" * 8_000 + '"a"' + ")" * 8_000}, "nested"),
    "gbnf parentheses": ({"guided_grammar": "root ::= " + "(" * 8_000}, "cannot be enforced"),
    "circle": ({"guided_grammar": "start: a\na: a"}, "cannot be enforced"),
    "empty rule": ({"guided_grammar": "start: missing"}, "cannot be enforced"),
    "empty choice": ({"guided_choice": []}, "guided_choice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_form_that_makes_no_sense_is_a_400_that_says_why(server: Running, name: str) -> None:
    fields, why = WRONG[name]
    reply = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, **fields})
    assert reply.status == 400, reply.data
    error = reply.json()["error"]
    assert why in error["message"]
    assert error["param"] in fields
    assert " at 0x" not in error["message"]
    assert "coerce" not in error["message"]
    server.check()


def test_a_stop_string_or_token_ends_a_form_wherever_it_comes(server: Running) -> None:
    """Expect `stop` and an incomplete form, as in vLLM."""
    body = {"prompt": "Once", "max_tokens": 40, "structured_outputs": {"regex": "abcd"}, "stop": "c"}
    (choice,) = server.post("/v1/completions", body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert b'"finish_reason":"stop"' in server.post("/v1/completions", {**body, "stream": True}).data
    (b,) = server.service.llm.texts.tokenizer.encode("b", add_special=False)[-1:]
    form = {"structured_outputs": {"grammar": f'start: "a" <[{b}]> "d"'}, "stop_token_ids": [b]}
    (choice,) = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 9, **form}).json()["choices"]
    assert (choice["text"][:1], choice["finish_reason"]) == ("a", "stop")
    assert "d" not in choice["text"]


def test_many_different_schemas_leave_the_cache_within_its_bytes(server: Running) -> None:
    before = server.service.llm.stats.grammars
    for i in range(30):
        form = {"type": "object", "properties": {f"k{i}": {"type": "boolean"}}, "required": [f"k{i}"]}
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_json": form}).status == 200
    stats = server.service.llm.stats
    assert stats.grammars == before + 30
    assert 0 < stats.grammar_bytes <= 64 << 20


LIMITED = "(a?){300}a{300}"
"""It compiles, and its first character takes the library past its limits."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_a_form_past_the_librarys_limits_is_cut_and_no_failure(server: Running, path: str, stream: bool) -> None:
    """What was said until then is the answer."""
    pattern = {"type": "string", "pattern": f"^[0-9]{{8}}{LIMITED}$"}
    form = {"format": {"type": "json_schema", "name": "p", "schema": pattern}}
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": 50, "guided_json": pattern, "n": 2, "stream": stream}
    if path == CHAT:
        body = {**body, "prompt": None, "messages": [{"role": "user", "content": "Tell."}]}
    elif path == "/v1/responses":
        body = {"input": "Tell.", "max_output_tokens": 50, "text": form, "stream": stream}
    reply = server.post(path, body)
    assert reply.status == 200, reply.data
    said = reply.data.decode()
    assert '"error":{' not in said
    assert '"status":"incomplete"' in said if path == "/v1/responses" else said.count('"finish_reason":"length"') == 2
    if not stream and path != "/v1/responses":
        for choice in reply.json()["choices"]:
            text = choice["text"] if path != CHAT else choice["message"]["content"]
            assert re.fullmatch('"[0-9]{4,8}a?', text)
    server.idle()


def test_a_form_past_the_librarys_limits_at_once_is_refused(server: Running) -> None:
    reply = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 9, "guided_regex": LIMITED})
    assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_grammar")
    assert "lexer error" in reply.json()["error"]["message"]
    server.check()


# -- the process that tries them --------------------------------------------------------------------------------------


async def verdicts(check: GrammarCheck, *forms: StructuredOutputs) -> list[str | None]:
    said: list[str | None] = []
    for form in forms:
        try:
            await check.check(form, "f")
            said.append(None)
        except ApiError as error:
            said.append(error.message if error.status == 400 else f"{error.status}")
    return said


GOOD = StructuredOutputs(regex="ab+")


def test_a_form_that_takes_too_long_ends_the_process_and_not_the_next_trial() -> None:
    """Stopped by its clock: a process that is stopped answers nothing, as one that computes for ever."""

    async def run() -> None:
        check = GrammarCheck(ServerSettings(compile_seconds=0.3))
        try:
            assert await verdicts(check, GOOD) == [None]
            process = check._process
            assert process is not None
            process.send_signal(19)  # SIGSTOP
            (message,) = await verdicts(check, StructuredOutputs(regex="c+"))
            assert message is not None
            assert "takes more than 0.3 s" in message
            assert await verdicts(check, StructuredOutputs(regex="c+"), GOOD) == [None, None]
            assert check.failures == 1
        finally:
            await check.aclose()

    asyncio.run(run())


def test_a_process_that_dies_of_a_form_is_replaced() -> None:
    """Memory for nothing at all: the form that needs some is refused, and others are after it."""

    async def run() -> None:
        check = GrammarCheck(ServerSettings(compile_bytes=1 << 20))
        try:
            big = StructuredOutputs(regex="|".join(f"[a-z]{{{i}}}x{i}" for i in range(1, 600)))
            (message,) = await verdicts(check, big)
            assert message is not None
            assert "memory" in message
            assert check.failures == 1
            check._settings = ServerSettings()
            assert await verdicts(check, big, GOOD) == [None, None]
        finally:
            await check.aclose()

    asyncio.run(run())


def test_many_who_ask_for_one_form_are_one_trial_and_too_many_forms_are_turned_away() -> None:
    """And a trial that is under way when the server ends does not hold that up."""

    async def run() -> None:
        check = GrammarCheck(ServerSettings(compile_seconds=600.0), most_waiting=2)
        asked = [asyncio.create_task(verdicts(check, GOOD)) for _ in range(100)]
        bad = [asyncio.create_task(verdicts(check, StructuredOutputs(regex="(?<=a)b"))) for _ in range(100)]
        await asyncio.sleep(0)
        assert await verdicts(check, StructuredOutputs(regex="x+")) == ["429"]
        assert await asyncio.gather(*asked) == [[None]] * 100
        (said,) = {str(message) for (message,) in await asyncio.gather(*bad)}
        assert "look-around" in said
        assert await verdicts(check, StructuredOutputs(regex="x+")) == [None]

        process = check._process
        assert process is not None
        process.send_signal(19)  # SIGSTOP
        last = asyncio.create_task(verdicts(check, StructuredOutputs(regex="c+")))
        await asyncio.sleep(0)
        await check.aclose()
        assert await last == ["503"]
        assert process.returncode == -9

    asyncio.run(run())


def test_whoever_leaves_during_a_trial_leaves_no_answer_behind_for_the_next() -> None:
    async def run() -> None:
        check = GrammarCheck(ServerSettings())
        try:
            assert await verdicts(check, GOOD) == [None]
            gone = asyncio.ensure_future(check.check(StructuredOutputs(regex="(?<=a)b"), "f"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            assert await verdicts(check, StructuredOutputs(regex="z+")) == [None]
        finally:
            await check.aclose()

    asyncio.run(run())
