"""Who is let in. On scopes, as the server makes them, with no server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from ridgeline.server.http import auth
from ridgeline.server.http.auth import PUBLIC, Access, read_keys
from ridgeline.server.server_settings import ServerSettings

KEYS = ("sk-first", "sk-second-and-longer")


def ask(
    settings: ServerSettings, path: str = "/v1/models", *headers: tuple[str, str], method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one request; the application behind the checks says `inside`."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    if not any(name == b"host" for name, _ in raw):
        raw.append((b"host", b"127.0.0.1:8000"))
    scope: Scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw}
    asyncio.run(Access(_inside, settings)(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


async def _inside(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("inside")(scope, receive, send)


def status(settings: ServerSettings, *rest: Any, **more: Any) -> int:
    return ask(settings, *rest, **more)[0]


KEYED = ServerSettings(keys=KEYS)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_each_key_opens_every_route(key: str, scheme: str) -> None:
    for path in ("/v1/chat/completions", "/metrics", "/tokenize", "/nowhere"):
        assert status(KEYED, path, ("Authorization", f"{scheme} {key}")) == 200


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        ("sk-first",),
        ("Basic sk-first",),
        ("Bearer sk-firs",),
        ("Bearer sk-firstt",),
        ("Bearer SK-FIRST",),
        ("Bearer  sk-first",),
        ("Bearer sk-first ",),
        ("Bearer sk-first,sk-second-and-longer",),
        ("Bearer sk-first\xe9",),
        ("Bearer " + "s" * 1_000_000,),
        ("Bearer sk-first", "Bearer sk-first"),
        ("Bearer wrong", "Bearer sk-first"),
    ],
)
def test_anything_else_is_401_in_openai_s_form(given: tuple[str, ...]) -> None:
    code, headers, body = ask(KEYED, "/v1/models", *(("Authorization", value) for value in given))
    assert (code, headers["www-authenticate"]) == (401, "Bearer")
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_only_health_and_the_page_need_no_key() -> None:
    assert all(status(KEYED, path) == 200 for path in PUBLIC)
    health = ("/health/", "//health", "/health/live/", "/Health", "/health%2f..", "/v1/../health", "/healthz")
    page = ("//", "/page", "/page/", "/page/cards.json", "/page/../metrics", "/page/app.js/", "/page/index.html")
    for path in (*health, *page):
        assert status(KEYED, path) == 401


def test_every_key_is_compared_whatever_the_first_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the place of a key in the list nor what it has in common with one shows in the work done."""
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    for given in ("sk-first", "sk-second-and-longer", "wrong", ""):
        compared.clear()
        ask(KEYED, "/v1/models", ("Authorization", f"Bearer {given}"))
        assert compared == [(32, 32)] * 2


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "127.0.0.1"])
def test_a_keyless_server_on_loopback_answers_to_loopback(host: str) -> None:
    assert status(ServerSettings(), "/v1/models", ("Host", host)) == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "a:b:c", "[::2]", "127.0.0.1.nip.io"]
)
def test_it_does_not_answer_to_names_that_were_rebound_to_it(host: str) -> None:
    assert status(ServerSettings(), "/v1/models", ("Host", host)) == 403


def test_a_foreign_host_may_be_allowed_and_does_not_matter_with_a_key_or_beyond_loopback() -> None:
    host = ("Host", "proxy.example")
    assert status(ServerSettings(allowed_hosts=("proxy.example",)), "/v1/models", host) == 200
    assert status(KEYED, "/v1/models", host, ("Authorization", "Bearer sk-first")) == 200
    assert status(ServerSettings(host="0.0.0.0", insecure=True), "/v1/models", host) == 200


def test_a_page_of_another_origin_is_403_unless_it_is_listed() -> None:
    page = ("Origin", "https://page.example")
    assert status(ServerSettings(), "/v1/models", page, method="POST") == 403
    assert status(ServerSettings(), "/v1/models", ("Origin", "null"), method="POST") == 403
    assert status(ServerSettings(), "/v1/models", ("Origin", "http://127.0.0.1:8000"), method="POST") == 200
    assert status(ServerSettings(), "/v1/models", ("Origin", "http://127.0.0.1:9000"), method="POST") == 403
    listed = ServerSettings(allowed_origins=("https://page.example",))
    code, headers, _ = ask(listed, "/v1/models", page, method="POST")
    assert (code, headers["access-control-allow-origin"]) == (200, "https://page.example")
    assert status(listed, "/v1/models", ("Origin", "https://other.example"), method="POST") == 403
    assert status(ServerSettings(allowed_origins=("*",)), "/v1/models", page, method="POST") == 200


def test_a_preflight_of_a_listed_page_is_answered_without_a_key_and_its_request_needs_one() -> None:
    settings = ServerSettings(keys=KEYS, allowed_origins=("https://page.example",))
    page = ("Origin", "https://page.example")
    wish = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")]
    code, headers, body = ask(settings, "/v1/chat/completions", page, *wish, method="OPTIONS")
    assert (code, headers["access-control-allow-headers"]) == (200, "authorization")
    assert b"inside" not in body
    code, headers, body = ask(settings, "/v1/chat/completions", page, method="POST")
    assert (code, headers["access-control-allow-origin"]) == (401, "https://page.example")


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n\n sk-first \nsk-second\r\n")
    assert read_keys(path) == ("sk-first", "sk-second")


@pytest.mark.parametrize("content", [b"", b"# none\n", b"\xff\xfe", b"k\n" * 1025, None])
def test_a_file_without_keys_is_refused_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="keys") as refused:
        read_keys(path)
    assert "\n" not in str(refused.value)
