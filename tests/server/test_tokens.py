"""/tokenize, /detokenize, /v1/models and /version."""

from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec import structs

from engine.folders import CHAT, write_model
from ridgeline import __version__
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.llm import LLM
from ridgeline.engine.setup import load_engine
from ridgeline.engine.text_processor import load_text_processor
from ridgeline.server.app import text_cards
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running
from server.scripted import INFO

TEXT = "Once upon a </s> time"


def test_a_text_becomes_ids_and_comes_back(server: Running, llm: LLM) -> None:
    told = server.post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json()
    ids = llm.encode(TEXT)
    assert (told["tokens"], told["count"], told["max_model_len"]) == (ids, len(ids), 512)
    assert "".join(told["token_strs"]) == f"<s>{TEXT}"
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": f"<s>{TEXT}"}
    bare = server.post("/tokenize", {"prompt": TEXT, "add_special_tokens": False}).json()
    assert (bare["tokens"], bare["token_strs"]) == (ids[1:], None)
    assert server.post("/tokenize", {"prompt": ""}).json()["tokens"] == ids[:1]


def test_a_conversation_becomes_the_ids_that_would_run(server: Running, llm: LLM) -> None:
    messages: Any = [{"role": "system", "content": "A story."}, {"role": "user", "content": "Once"}]
    ids = llm.encode_chat(messages)
    assert server.post("/tokenize", {"messages": messages}).json()["tokens"] == ids
    rendered = server.post("/v1/chat/completions/render", {"messages": messages}).json()
    assert rendered == {
        "prompt": "<s>A story.\nOnce",
        "prompt_token_ids": ids,
        "count": len(ids),
        "max_model_len": 512,
    }
    assert server.service.llm.stats.running == 0


def test_the_tokenizers_own_tokens_are_added_where_a_request_wants_them(server: Running, llm: LLM) -> None:
    """By default to a prompt and not to a conversation, as in vLLM; token ids stay as they are."""
    bos, *bare = llm.encode(TEXT)
    ids = llm.encode_chat(messages := [{"role": "user", "content": "Once"}])

    def prompts(route: str, **body: Any) -> list[list[int]]:
        reply = server.post(route, {"max_tokens": 1, "return_token_ids": True, **body})
        assert reply.status == 200, reply.data
        assert "x-ridgeline-ignored-fields" not in reply.headers
        told = reply.json()
        return (
            [told["prompt_token_ids"]]
            if "message" in told["choices"][0]
            else [choice["prompt_token_ids"] for choice in told["choices"]]
        )

    completions, chat = "/v1/completions", "/v1/chat/completions"
    assert prompts(completions, prompt=TEXT) == [[bos, *bare]]
    assert prompts(completions, prompt=TEXT, add_special_tokens=True) == [[bos, *bare]]
    assert prompts(completions, prompt=TEXT, add_special_tokens=False) == [bare]
    assert prompts(completions, prompt=[TEXT, TEXT], add_special_tokens=False) == [bare, bare]
    for special in (True, False):
        assert prompts(completions, prompt=bare, add_special_tokens=special) == [bare]
        wanted = [bos, *ids] if special else ids
        assert prompts(chat, messages=messages, add_special_tokens=special) == [wanted]
        for route, name in (("/tokenize", "tokens"), (f"{chat}/render", "prompt_token_ids")):
            reply = server.post(route, {"messages": messages, "add_special_tokens": special}).json()
            assert reply[name] == wanted
    assert prompts(chat, messages=messages) == [ids]
    streamed = server.post(
        completions,
        {"prompt": TEXT, "add_special_tokens": False, "echo": True, "max_tokens": 1, "stream": True},
    )
    assert b'"text":"Once upon' in streamed.data
    empty = server.post(completions, {"prompt": "", "add_special_tokens": False})
    assert (empty.status, empty.json()["error"]["param"]) == (400, "prompt")
    server.idle()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 3}),
        ("/tokenize", {"prompt": "x" * 100_000}),
        ("/detokenize", {"tokens": [2048]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [2**40]}),
    ],
)
def test_what_is_neither_is_refused(server: Running, path: str, body: Any) -> None:
    reply = server.post(path, body)
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("definition", ["", "OlmoeForCausalLM of transformers 5.24"])
def test_models_name_the_class_that_defines_them(definition: str) -> None:
    texts, info = load_text_processor("tales"), structs.replace(INFO, definition=definition)
    card = text_cards(ServedModel(("tales",), texts, info), ServerSettings())["tales"]
    assert card.get("definition", "") == definition


def test_models_say_what_is_served_and_within_which_limits(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve("tales").id == "tales"
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == 512
    assert model.model_extra["dtype"] == "bfloat16"
    assert "/v1/chat/completions" in model.model_extra["routes"]
    assert model.model_extra["sampling"] == {"temperature": 0.8, "top_k": 0, "top_p": 0.9, "min_p": 0.0}
    assert model.model_extra["limits"]["choices"] == 8
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/one")


@pytest.mark.parametrize(
    ("generation", "served", "generated"),
    [
        (None, 1.0, 0.0),
        ({}, 1.0, 0.0),
        ({"do_sample": None, "temperature": None, "max_new_tokens": 9}, 1.0, 0.0),
        ({"temperature": 0.6, "top_p": 0.9}, 0.6, 0.0),
        ({"temperature": 0.0}, 0.0, 0.0),
        ({"do_sample": True}, 1.0, 1.0),
        ({"do_sample": True, "temperature": 0.7}, 0.7, 0.7),
        ({"do_sample": False}, 0.0, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.0, 0.0),
    ],
)
def test_a_request_that_says_nothing_is_sampled_as_openais_is(
    tmp_path: Path, generation: dict[str, Any] | None, served: float, generated: float
) -> None:
    """At the temperature that generation_config.json states, or else 1, as in vLLM. What the file has as greedy stays
    so, and so does a request that says so; commands and `LLM` read the file as transformers does."""
    llm = AsyncLLM(load_engine(str(write_model(tmp_path, template=CHAT, generation=generation))))
    try:
        with running(Service(llm, Everybody()), ServerSettings(models=("m",))) as up:
            assert up.get("/v1/models/m").json()["sampling"]["temperature"] == served
            ask = {"input": "Hi", "max_output_tokens": 1}
            assert up.post("/v1/responses", ask).json()["temperature"] == served
            assert up.post("/v1/responses", {**ask, "temperature": 0}).json()["temperature"] == 0
            drawn = {
                choice["text"] for choice in up.post("/v1/completions", {"prompt": "Hi", "n": 8}).json()["choices"]
            }
            assert (len(drawn) > 1) == (served > 0)
        assert llm.texts.defaults.temperature == generated
    finally:
        llm.close()


def test_the_version_says_what_there_is_to_ask(server: Running) -> None:
    told = server.get("/version").json()
    assert told["version"] == __version__
    assert {"/v1/chat/completions", "/v1/chat/completions/render", "/tokenize", "/health"} < set(told["routes"])
    for path in set(told["routes"]) - {"/page/{name}", "/page/trace"}:
        reply = server.get(path)
        assert reply.status != 404 or reply.json()["error"]["code"] == "model_not_found", path
    assert server.get("/ping").data == server.get("/health").data == b'{"status":"ready"}'


def test_an_unknown_model_is_404_and_an_unknown_route_too(server: Running) -> None:
    reply = server.post("/v1/completions", {"model": "gpt-4o\n\x1b[31m", "prompt": "x"})
    assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")
    message = reply.json()["error"]["message"]
    assert message.isprintable(), "the name in it is escaped"
    assert message.startswith(r"no model 'gpt-4o\n\x1b[31m' is served here; "), message
    for method, path, status in (("GET", "/v1/chat/completions", 405), ("POST", "/v1/model", 404), ("GET", "/v2", 404)):
        reply = server.request(method, path)
        assert (reply.status, set(reply.json()["error"])) == (status, {"message", "type", "param", "code"})
