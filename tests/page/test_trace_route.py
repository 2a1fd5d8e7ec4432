"""POST /page/trace: what it gives, what it refuses, and that nobody else's request is touched."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from page.conftest import PATIENCE, apart, saying
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.learn.page.recorder import INSPECTOR, MOST_TOKENS
from ridgeline.price.devices import load_device
from ridgeline.server.errors import ApiError
from ridgeline.server.http.auth import check_client
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running

ASKED = {"prompt": "Once upon a time", "seed": 2, "temperature": 0.9, "top_k": 5}


def test_one_text_is_traced_at_a_time(tales_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused until the first is done, what is wrong with it at once."""
    inspect = tales_server.service.llm.inspect
    begun, goes_on = threading.Event(), threading.Event()

    async def waiting(question: bytes) -> bytes:
        begun.set()
        await asyncio.to_thread(goes_on.wait)
        return await inspect(question)

    monkeypatch.setattr(tales_server.service.llm, "inspect", waiting)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(tales_server.post, "/page/trace", ASKED)
        assert begun.wait(PATIENCE)
        try:
            reply = tales_server.post("/page/trace", ASKED)
            assert (reply.status, reply.json()["error"]["code"]) == (429, "busy")
            assert tales_server.post("/page/trace", {**ASKED, "prompt": "x " * 99}).status == 400
        finally:
            goes_on.set()
        assert first.result().status == 200
    tales_server.check()


def test_it_answers_with_a_recording_and_leaves_others_alone(tales_server: Running) -> None:
    """A completion beside it is what it is without it."""
    completion = {"prompt": "The bear", "max_tokens": 60, "seed": 1, "temperature": 0.8}
    alone = tales_server.post("/v1/completions", completion).json()["choices"]
    replies: list[Any] = []
    told = tales_server.post("/page/trace", ASKED).json()
    assert told["text"] == ASKED["prompt"]
    assert told["pause"] > 0
    assert told["pause_expected"] > 0
    assert told["rules"] == {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.0, "seed": 2}
    assert [step["name"] for step in told["steps"]] == ["prefill", "decode"]
    assert [draw["taken"]["id"] for draw in told["draws"]] == [token["id"] for token in told["written"][:2]]
    beside = threading.Thread(target=lambda: replies.append(tales_server.post("/page/trace", ASKED)))
    beside.start()
    assert tales_server.post("/v1/completions", completion).json()["choices"] == alone
    beside.join()
    assert replies[-1].status == 200
    tales_server.check()


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({}, 400, "missing_field"),
        ({"prompt": ""}, 400, "missing_field"),
        ({"prompt": "a bear " * MOST_TOKENS}, 400, "context_length_exceeded"),
        ({"prompt": 3}, 400, "invalid_value"),
        ({"prompt": "x", "temperature": -1}, 400, "invalid_value"),
        ({"prompt": "x", "top_p": 0}, 400, "invalid_value"),
        ({"prompt": "x", "max_pause": 0}, 400, "invalid_value"),
        ({"prompt": "x", "model": "another"}, 404, "model_not_found"),
    ],
)
def test_what_cannot_be_traced_is_refused(tales_server: Running, fields: Any, status: int, code: str) -> None:
    reply = tales_server.post("/page/trace", fields)
    assert (reply.status, reply.json()["error"]["code"]) == (status, code)


def test_what_would_hold_others_for_too_long_is_refused(tales_server: Running) -> None:
    """Once its first steps have said how long that would be; the engine goes on."""
    reply = tales_server.post("/page/trace", {**ASKED, "max_pause": 1e-3})
    assert reply.status == 400
    assert re.search(r"for about [\d.]+ s, but max_pause is 0\.001 s: give", reply.json()["error"]["message"])
    tales_server.check()


def test_it_wants_the_key() -> None:
    with saying("x", keys=("sk-right",)) as up:
        assert up.post("/page/trace", ASKED).status == 401
        reply = up.post("/page/trace", ASKED, {"authorization": "Bearer sk-right"})
        assert reply.status == 400
        assert reply.json()["error"]["message"] == "this engine cannot trace a text"


@pytest.mark.parametrize(
    ("host", "keys", "allowed"), [("127.0.0.1", (), True), ("10.0.0.9", (), False), ("10.0.0.9", ("k",), True)]
)
def test_without_a_key_only_this_machine_asks(host: str, keys: tuple[str, ...], allowed: bool) -> None:
    request, settings = Request({"type": "http", "client": (host, 1)}), ServerSettings(keys=keys)
    if allowed:
        check_client(request, settings, "ask")
    else:
        with pytest.raises(ApiError, match="only clients on this machine may ask") as error:
            check_client(request, settings, "ask")
        assert (error.value.status, error.value.code) == (403, "key_needed")


def test_an_engine_in_a_process_of_its_own_answers_too() -> None:
    """Its refusals are the asker's, and it goes on."""

    async def run() -> None:
        settings = EngineSettings(kv_bytes=4e6)
        device = load_device("h100-sxm")
        async with await AsyncLLM.start("tales", settings, threads=1, device=device, inspector=INSPECTOR) as llm:
            with pytest.raises(ValueError, match="JSON is malformed"):
                await llm.inspect(b"x")
            question = b'{"name":"t","text":"x","ids":[5,6],"temperature":0,"top_k":0,"top_p":1,"min_p":0,"seed":0}'
            asked, completed = await asyncio.gather(llm.inspect(question), llm.generate("Once upon"))
            assert b'"steps":[{"name":"prefill"' in asked
            assert completed.choices[0].error is None

    apart(lambda: asyncio.run(run()))
