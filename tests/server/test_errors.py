"""Every error has a code, and every code is one of those that are documented."""

import re
from pathlib import Path
from typing import Any

import pytest

import ridgeline.server
from server.conftest import Running

ROOT = Path(__file__).parents[2]
LONG = "a long way " * 2000


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"[1]", "invalid_json"),
        ({"prompt": "x", "temperature": "hot"}, "invalid_value"),
        ({"prompt": "x", "n": 1000}, "invalid_value"),
        ({}, "missing_field"),
        ({"prompt": "x", "max_tokens": 5000}, "context_length_exceeded"),
        ({"prompt": LONG}, "context_length_exceeded"),
        ({"prompt": "x", "suffix": "y"}, "unsupported_field"),
        ({"prompt": "x", "model": "another"}, "model_not_found"),
    ],
)
def test_an_error_has_a_code(server: Running, body: Any, code: str) -> None:
    assert server.post("/v1/completions", body).json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/chat/completions", 404, "there is no route POST /chat/completions; use /v1/chat/completions"),
        ("/v1/chat/completion", 404, "there is no route POST /v1/chat/completion; use /v1/chat/completions"),
        ("/v1/messages", 404, "there is no route POST /v1/messages; GET /version lists the routes"),
        ("/%1b[2J" + "x" * 999, 404, "; GET /version lists the routes"),
        ("/v1/models", 405, "/v1/models does not support POST; use GET"),
    ],
)
def test_a_route_that_does_not_exist_gets_the_one_to_use(server: Running, path: str, status: int, says: str) -> None:
    reply = server.post(path, {"prompt": "x"})
    message = reply.json()["error"]["message"]
    assert reply.status == status
    assert says in message
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize(
    ("route", "field", "says"),
    [
        ("/v1/completions", {"messages": []}, "messages belongs to /v1/chat/completions; give prompt here"),
        ("/v1/chat/completions", {"prompt": "a"}, "prompt belongs to /v1/completions; give messages here"),
        ("/v1/responses", {"messages": []}, "messages belongs to /v1/chat/completions; give input here"),
        ("/v1/completions", {"image": "a"}, "image is not supported here; leave it out"),
        (
            "/v1/completions",
            {"prompt": "a", "logit_bias": {"99999": 1}},
            "logit_bias has the key 99999; give token ids",
        ),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 999}}, "logit_bias[1] is 999.0; give a number in"),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {}}, "structured_outputs is empty; give exactly one"),
        ("/v1/completions", {"prompt": "a", "model": "absent"}, "no model 'absent' is served here"),
    ],
)
def test_a_message_names_the_field_and_the_fix(server: Running, route: str, field: dict[str, Any], says: str) -> None:
    error = server.post(route, field).json()["error"]
    assert says in error["message"]
    assert error["param"] == list(field)[-1]


def test_every_code_is_documented() -> None:
    (folder,) = ridgeline.server.__path__
    source = "".join(path.read_text() for path in Path(folder).rglob("*.py"))
    codes = set(re.findall(r'code(?:: str)? ?= ?"([a-z_]+)"', source)) | {
        "queue_full", "queue_tokens", "queue_pictures", "engine_died", "engine_restarting"
    }  # fmt: skip
    assert len(codes) > 30
    text = (ROOT / "docs" / "serving.md").read_text()
    table = text.partition("\n## What does an error look like?\n")[2].partition("\n## ")[0]
    assert codes == set(re.findall(r"`([a-z_]+)`", table)) - {"code"}
