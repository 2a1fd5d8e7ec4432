"""Attacks as data, for the tests of hostile inputs and for benchmarks/innocent_stream.py.

Each table is of (id, what is sent): the ids begin with the number of the row in the table of docs/serving.md that they
belong to. `posts()` gives every attack that is one POST request, so that a table that grows is measured too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMPLETE, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
GREET = [{"role": "user", "content": "hi"}]
CONTEXT, VOCABULARY = 512, 2048
"""Of `tales`."""
HOST = b"Host: 127.0.0.1\r\n"
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
BODY_BYTES = 4 << 20
"""The largest body that a server takes by default."""

Cases = Sequence[tuple[Any, ...]]


def schema(of: Any) -> dict[str, Any]:
    """The fields of a chat whose answer has to follow a JSON schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}


def nested(levels: int) -> Any:
    """A schema of alternatives inside alternatives."""
    inner: Any = {"type": "string"}
    for _ in range(levels):
        inner = {"oneOf": [inner, {"type": "integer"}]}
    return inner


def whole(head: bytes, unit: bytes, tail: bytes) -> bytes:
    """A body of nearly the largest size, which has a unit as often as there is room for it."""
    return head + unit * ((BODY_BYTES - len(head) - len(tail)) // len(unit)) + tail


BODIES: Cases = (
    ("01-empty", b""),
    ("02-trailing", b'{"messages":[{"role":"user","content":"a"}],"prompt":"a"}x'),
    ("02-truncated", b'{"messages":[{"role":"us'),
    ("03-list", b"[]"),
    ("03-string", b'"x"'),
    ("03-null", b"null"),
    ("03-number", b"3"),
    ("04-lists", b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ("04-objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    ("04-open", b"[" * 100_000),
    ("05-utf8", b'{"prompt":"\xff","messages":[]}'),
    ("05-bom", b'\xef\xbb\xbf{"prompt":"a","messages":[]}'),
    ("05-surrogate", b'{"prompt":"\\ud800","messages":[{"role":"user","content":"\\ud800"}]}'),
)
"""Bodies that are no requests: 400 on every route."""

CROWDED: Cases = (
    ("55-empty-lists", whole(b'{"prompt":[', b"[],", b"[]]}")),
    ("55-nested-lists", whole(b'{"prompt":[', b"[" * 60 + b"]" * 60 + b",", b"[]]}")),
    ("55-objects", whole(b'{"prompt":[', b"{},", b"{}]}")),
    ("55-keys", json.dumps({str(i): 1 for i in range(250_000)}).encode()),
    ("55-keys-inside", json.dumps({"messages": GREET, "metadata": {str(i): "" for i in range(220_000)}}).encode()),
    ("55-texts", whole(b'{"prompt":[', b'"",', b'""]}')),
    ("55-ids", whole(b'{"prompt":[', b"5,", b"5]}")),
    ("55-no-json", whole(b'{"prompt":[NaN,', b"[],", b"[]]}")),
)
"""Bodies with more values than any request has use for: refused before any value is made of them."""

COMPLETION_FIELDS: Mapping[str, Sequence[tuple[str, Any]]] = {
    "07": [("temperature", value) for value in (-1, 1e9, "0.7", True, [], {})],
    "08": [
        *(("top_p", value) for value in (0, 1.0001, -1, "1", True)),
        *(("top_k", value) for value in (-2, 2**63, 0.5, "5", True)),
    ],
    "09": [("max_tokens", value) for value in (0, -1, 2**31, 2**70, 10**4000, 1.5, "1", True)],
    "17": [("n", value) for value in (10**9, 0, -1, 9, 1.5, 10**4000)],
    "18": [
        *(("logprobs", value) for value in (10**6, 21, -1)),
        *(("prompt_logprobs", value) for value in (10**6, -1)),
    ],
    "19": [
        ("stop", value)
        for value in (["a"] * 100_000, ["a" * 1_000_000], "a" * 257, [""], "", ["a"] * 5, [1], 1, {"a": 1})
    ],
    "21": [
        ("logit_bias", value)
        for value in (
            {str(i): 1 for i in range(200_000)},
            {str(VOCABULARY): 1},
            {"-1": 1},
            {"5": 1000},
            {"5": -1000},
            {"x": 1},
            {"5": "x"},
            {str(2**70): 1},
            [1],
        )
    ],
    "22": [("seed", value) for value in (2**64, -(2**63) - 1, 1.5, "1")],
    "23": [("suffix", "x"), ("best_of", 2), ("prompt_embeds", "AAAA"), ("use_beam_search", True)],
    "30": [("chat_template", "{{ messages }}")],
}
"""Fields of a completion that are out of bounds, by the row of the table: 400 naming the field."""

FIELDS: Cases = [
    (f"{number}-{i}-{name}", name, value)
    for number, cases in COMPLETION_FIELDS.items()
    for i, (name, value) in enumerate(cases)
]

LITERALS: Cases = (
    ("07-nan", b"NaN"),
    ("07-infinity", b"-Infinity"),
    ("07-1e400", b"1e400"),
    ("09-digits", b"9" * 5000),
)
"""Numbers that JSON does not have, or nobody."""

CHARACTERS = ("a", " ", "\u00e9", "\U0001f600")
"""Each is sent four million bytes long, as a prompt and as a message."""

PROMPTS: Cases = (
    ("13-text", ""),
    ("13-list", []),
    ("13-inner", [[]]),
    ("13-million", [""] * 1_000_000),
    ("13-null", None),
    ("14-33", ["a"] * 33),
    ("15-negative", [-1]),
    ("15-vocabulary", [VOCABULARY]),
    ("15-padding", [VOCABULARY + 64]),
    ("15-large", [2**40]),
    ("15-larger", [2**70]),
    ("15-mixed", ["a", 1]),
    ("15-mixed-too", [1, "a"]),
    ("15-bool", [True]),
    ("15-float", [1.0]),
    ("15-deeper", [[[1]]]),
    ("15-object", {"a": 1}),
)

FORMS: Cases = (
    ("25-counted", {"structured_outputs": {"regex": "(x{1000}){1000}"}}),
    ("25-look-behind", {"structured_outputs": {"regex": "(?<=a)b"}}),
    ("25-back-reference", {"structured_outputs": {"regex": r"(a)\1"}}),
    ("25-unclosed", {"guided_regex": "("}),
    ("25-long", {"guided_regex": "a" * 20_000}),
    ("26-recursive", schema({"$ref": "#"})),
    ("26-one-of", schema(nested(30))),
    ("26-enum", schema({"enum": [str(i) for i in range(100_000)]})),
    ("26-length", schema({"type": "string", "maxLength": 10**9})),
    ("26-remote", schema({"$ref": "http://127.0.0.1:9/schema"})),
    ("26-file", schema({"$ref": "file:///etc/passwd"})),
    ("26-type", schema({"type": "strin"})),
    ("26-list", schema([])),
    ("26-text", {"guided_json": '{"enum":[' + "[]," * 1_300_000 + "[]]}"}),
    ("27-parentheses", {"structured_outputs": {"grammar": "start: " + "(" * 30_000}}),
    ("27-parentheses-closed", {"structured_outputs": {"grammar": "start: " + "(" * 6000 + '"a"' + ")" * 6000}}),
    ("27-parentheses-gbnf", {"structured_outputs": {"grammar": "root ::= " + "(" * 6000 + '"a"' + ")" * 6000}}),
    ("27-left-recursion", {"structured_outputs": {"grammar": 'start: start "a"'}}),
    ("27-empty-rule", {"structured_outputs": {"grammar": "start: "}}),
    ("27-nonsense", {"structured_outputs": {"grammar": "\0\x1b["}}),
)
"""Forms of an answer that cannot be followed."""

ARGUMENTS = ("tokenize", "add_generation_prompt", "chat_template", "messages", "tools", "conversation", "documents")
"""Variables of a template that no request may give."""

MESSAGES: Cases = (
    ("32-role", [{"role": "robot", "content": "a"}]),
    ("32-no-role", [{"content": "a"}]),
    ("32-null", [{"role": "user", "content": None}]),
    ("32-number", [{"role": "user", "content": 3}]),
    ("32-many", GREET * 10_000),
    ("32-tool", [{"role": "tool", "content": "x"}]),
    ("32-empty", []),
    ("32-no-objects", ["hi"]),
    ("32-object", {"role": "user"}),
    ("32-deep-content", [{"role": "user", "content": [[[[]]]]}]),
    (
        "33-metadata",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}],
    ),
    ("33-file", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]),
    (
        "33-data",
        [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1000}}],
            }
        ],
    ),
    ("33-type", [{"role": "user", "content": [{"type": "text\x1b[31m\n", "text": "x"}]}]),
)

HEADS: Cases = (
    ("36-host-path", b"GET /v1/models HTTP/1.1\r\nHost: a/?x\r\n\r\n", 400),
    ("36-two-hosts", b"GET /v1/models HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    ("36-absolute", b"GET http://127.0.0.1/v1/models HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (
        "37-two-framings",
        b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "37-two-lengths",
        b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        400,
    ),
    (
        "37-chunk",
        b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nDE0B6B3A7640000\r\nabc",
        408,
    ),
    ("37-300-headers", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 300 + b"\r\n", 431),
    ("37-70-kb", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 70_000 + b"\r\n\r\n", 431),
    ("37-http-0.9", b"GET /v1/models\r\n\r\n", 400),
    ("37-length", b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
    (
        "37-large",
        b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Connection: close\r\nContent-Length: 5000000\r\n\r\n",
        413,
    ),
)
"""Heads that are ambiguous or too large, with the status of the answer."""

_PARTS = [{"type": "text", "text": "a"}] * 40_000
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_PROMPTS = [[5 + i % 1000 for i in range(480)]] * 32

SCORED = {"prompt": _PROMPTS, "max_tokens": 1, "prompt_logprobs": 20}
"""The longest log-probabilities of prompts that a server of `tales` gives."""

COSTLY: Cases = (
    ("18-prompt-logprobs", COMPLETE, SCORED),
    ("18-prompt-logprobs-stream", COMPLETE, {**SCORED, "stream": True}),
    ("18-echo", COMPLETE, {"prompt": _PROMPTS, "max_tokens": 0, "echo": True, "logprobs": 20}),
    ("18-echo-n", COMPLETE, {"prompt": _PROMPTS[:4], "max_tokens": 8, "echo": True, "logprobs": 20, "n": 8}),
    ("18-logprobs", COMPLETE, {**LONG, "logprobs": 20, "n": 8}),
    ("18-logprobs-chat", CHAT, {"messages": GREET, "logprobs": True, "top_logprobs": 20, "n": 8, "max_tokens": 400}),
    ("56-stop-ids", COMPLETE, {"prompt": "a", "max_tokens": 1, "stop_token_ids": list(range(2000)) * 90}),
    ("56-escapes", COMPLETE, whole(b'{"prompt":"', b"\\u0061", b'"}')),
    ("56-backslashes", COMPLETE, whole(b'{"prompt":"', b"\\\\", b'"}')),
    ("56-commas", COMPLETE, whole(b'{"prompt":"', b"a, ", b'"}')),
    ("56-digits", COMPLETE, whole(b'{"prompt":[', b"9" * 300 + b",", b"1]}")),
    ("56-unknown", COMPLETE, {"prompt": "a", "max_tokens": 1, **{f"field{i}": i for i in range(150_000)}}),
    ("56-choices", COMPLETE, {"prompt": "a", "guided_choice": [str(i) for i in range(190_000)]}),
    ("56-parts", CHAT, {"messages": [{"role": "user", "content": _PARTS}], "max_tokens": 1}),
    ("56-messages", CHAT, {"messages": GREET * 1024, "max_tokens": 1}),
    ("56-calls", CHAT, {"messages": [
        {"role": "assistant", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "[" + "[]," * 1_300_000 + "[]]"}}
        ]}
    ]}),
    ("56-tools", CHAT, {"messages": GREET, "tools": [{**_TOOL, "description": ["x"] * 1000}] * 128}),
    ("56-documents", CHAT, {"messages": GREET, "documents": [{"title": "a", "text": "b"}] * 40_000}),
    ("56-metadata", CHAT, {"messages": GREET, "max_tokens": 1, "metadata": {str(i): "" for i in range(150_000)}}),
    ("56-render", CHAT + "/render", {"messages": [{"role": "user", "content": "a b, " * 100_000}]}),
    ("56-input", RESPONSES, {"input": [{"role": "user", "content": "a"}] * 40_000}),
    ("56-tokenize", TOKENIZE, {"prompt": "a " * 2_000_000}),
    ("56-detokenize", DETOKENIZE, {"tokens": [5] * 190_000}),
    ("56-embeddings", "/v1/embeddings", {"input": ["a"] * 190_000}),
    ("56-rerank", "/v1/rerank", {"query": "a", "documents": ["a"] * 190_000}),
)  # fmt: skip
"""Requests that are within all bounds of their bytes, and ask for as much work as those allow."""


@dataclass(frozen=True)
class Post:
    """An attack that is one request."""

    name: str
    path: str
    body: bytes

    @property
    def row(self) -> str:
        """The row of the table in docs/serving.md that it belongs to, as two digits."""
        return self.name[:2]


def posts() -> Iterator[Post]:
    """All attacks that are one POST request."""
    cases: list[tuple[str, str, Any]] = [
        *((name, COMPLETE, body) for name, body in (*BODIES, *CROWDED)),
        *((name, COMPLETE, {"prompt": "a", "max_tokens": 1, field: value}) for name, field, value in FIELDS),
        *((name, COMPLETE, b'{"prompt":"a","seed":%s}' % literal) for name, literal in LITERALS),
        *((name, COMPLETE, {"prompt": prompt, "max_tokens": 1}) for name, prompt in PROMPTS),
        *((name, CHAT if "response_format" in form else COMPLETE, with_form(form)) for name, form in FORMS),
        *((f"30-{name}", CHAT, {"messages": GREET, "chat_template_kwargs": {name: True}}) for name in ARGUMENTS),
        *((name, CHAT, {"messages": messages}) for name, messages in MESSAGES),
        *COSTLY,
    ]
    for i, character in enumerate(CHARACTERS):
        for path, body in four_megabytes(character):
            cases.append((f"12-{i}-{path.rsplit('/', 1)[1]}", path, body))
    for name, path, body in cases:
        yield Post(name, path, body if isinstance(body, bytes) else json.dumps(body).encode())


def with_form(form: Mapping[str, Any]) -> dict[str, Any]:
    """A request for an answer of this form, to the route whose fields it has."""
    asked = {"messages": GREET} if "response_format" in form else {"prompt": "a"}
    return {**asked, "max_tokens": 1, **form}


def four_megabytes(character: str) -> Sequence[tuple[str, bytes]]:
    """A text of one character as a prompt and as a message, with the routes that take them."""
    text = character * (4_000_000 // len(character.encode()))
    bodies = ((COMPLETE, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]}))
    return [(path, json.dumps(body, ensure_ascii=False).encode()) for path, body in bodies]
