"""/v1/embeddings and /v1/rerank: by OpenAI's client and by hand, and what is refused."""

import asyncio
import base64
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.embedding_llm import EmbeddingLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.routes.request_fields import NEUTRAL, REFUSED
from ridgeline.server.routes.vectors import EmbeddingFields, encoded, parts
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.observability import observe_one_engine
from server.conftest import Running, running
from support.checkpoints import edit_config
from support.embedders import TEXTS, state_pooling, write_bert


@contextmanager
def served(folder: Path, engine: EngineSettings | None = None) -> Iterator[Running]:
    """A server of a folder, with what observes it."""
    llm, settings = AsyncLLM(load_engine(str(folder), engine)), ServerSettings(models=("vectors",))
    service = build_service(llm, RequestQueue(llm.info, settings), settings)
    watching = observe_one_engine(service, llm, settings, "vectors")
    try:
        with running(service, settings, routes=watching.routes(), observers=[watching.metrics.exchanged]) as up:
            yield up
    finally:
        llm.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    write_bert(folder)
    state_pooling(folder, "mean_tokens", "Normalize", prompts={"query": "the dog "})
    edit_config(folder, is_matryoshka=True)
    return folder


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Running]:
    with served(folder) as up:
        yield up


@pytest.fixture(scope="module")
def embedder(folder: Path) -> EmbeddingLLM:
    return EmbeddingLLM(str(folder))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker")
    write_bert(folder, labels=1)
    return folder


def test_openais_client_embeds(up: Running, embedder: EmbeddingLLM) -> None:
    """One text, several (which it asks for in base64), ids, fewer dimensions; more texts than run together."""
    wanted = embedder.embed(TEXTS)
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client:
        one = client.embeddings.create(model="vectors", input=TEXTS[0])
        assert one.data[0].embedding == pytest.approx(wanted[0].values, abs=1e-6)
        assert one.usage.prompt_tokens == one.usage.total_tokens == wanted[0].tokens
        several = client.embeddings.create(model="vectors", input=list(TEXTS) * 40)
        for index, (each, vector) in enumerate(zip(several.data, wanted * 40, strict=True)):
            assert each.index == index
            assert each.embedding == pytest.approx(vector.values, abs=1e-6)
        ids = [embedder.texts.tokenizer.encode(text) for text in TEXTS]
        asked: tuple[Any, ...] = (ids, ids[0])
        for given, vectors in zip(asked, (wanted, wanted[:1]), strict=True):
            answer = client.embeddings.create(model="vectors", input=given, encoding_format="float")
            assert len(answer.data) == len(vectors)
            assert answer.data[0].embedding == pytest.approx(vectors[0].values, abs=1e-6)
        shorter = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=5, user="me").data[0].embedding
        assert shorter == pytest.approx(wanted[0].values[:5] / np.linalg.norm(wanted[0].values[:5]), abs=1e-6)
    up.idle()


def test_a_request_of_more_texts_than_the_queue_takes(folder: Path, embedder: EmbeddingLLM) -> None:
    """Goes through it in parts: a server of two places has eight more to wait in."""
    wanted = embedder.embed(TEXTS)
    with served(folder, EngineSettings(limits=Limits(requests=2))) as up:
        reply = up.post("/v1/embeddings", {"input": list(TEXTS) * 5})
        assert reply.status == 200, reply.data
        assert reply.json()["data"][17]["embedding"] == pytest.approx(wanted[1].values, abs=1e-6)


def test_many_short_texts_do_not_hold_up_the_event_loop() -> None:
    """They are encoded beside it as a long one is; few are not worth a thread. Their order is kept."""
    texts = [f"{number:04}" * 500 for number in range(50)]
    where: set[int] = set()

    def ids(text: str) -> list[int]:
        where.add(threading.get_ident())
        return [int(text[:4])]

    async def run(given: list[str]) -> bool:
        where.clear()
        assert await encoded(given, len, ids) == [[int(text[:4])] for text in given]
        return threading.get_ident() in where

    assert not asyncio.run(run(texts))
    assert asyncio.run(run(texts[:3]))


def test_parts_of_a_request() -> None:
    """No more of them, and no more in all, than are given; what alone is more is a part."""
    assert list(parts([3, 3, 3, 9, 1, 1, 1, 1], int, 7, 3)) == [[3, 3], [3], [9], [1, 1, 1], [1]]
    assert list(parts([3, 3, 3], int, 9)) == [[3, 3, 3]]
    assert list(parts([], int, 7, 3)) == []


def test_base64_and_prompts(up: Running, embedder: EmbeddingLLM) -> None:
    """Little-endian fp32; a prompt of the model's before each text."""
    body = {"input": TEXTS[1], "encoding_format": "base64", "prompt_name": "query"}
    answer = up.post("/v1/embeddings", body).json()
    assert answer["object"] == "list"
    data = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert data == pytest.approx(embedder.embed(TEXTS[1:2], "query")[0].values, abs=1e-6)


def test_the_tokenizers_own_tokens_may_be_left_out(up: Running, embedder: EmbeddingLLM) -> None:
    ids = up.service.llm.texts.tokenizer.encode(TEXTS[1], add_special=False)
    bare = up.post("/v1/embeddings", {"input": [TEXTS[1], ids], "add_special_tokens": False}).json()["data"]
    assert bare[0]["embedding"] == pytest.approx(bare[1]["embedding"], abs=1e-6)
    assert bare[0]["embedding"] != pytest.approx(embedder.embed(TEXTS[1:2])[0].values, abs=1e-3)
    reply = up.post("/v1/embeddings", {"input": " ", "add_special_tokens": False})
    assert (reply.status, reply.json()["error"]["param"]) == (400, "input")


def test_every_field_of_openais_method_is_known() -> None:
    theirs = set(inspect.signature(openai.resources.Embeddings.create).parameters)
    theirs -= {"extra_headers", "extra_query", "extra_body", "timeout", "self"}
    assert len(theirs) == 5
    assert theirs <= {*EmbeddingFields.__struct_fields__, *NEUTRAL, *REFUSED}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input", "invalid_value"),
        ({"input": [[]]}, "input", "invalid_value"),
        ({"input": [[1, "a"]]}, "input", "invalid_value"),
        ({"input": [-1]}, "input", "invalid_value"),
        ({"input": [10**6]}, "input", "invalid_value"),
        ({"input": [True]}, "input", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": "cat " * 80}, "input", "context_length_exceeded"),
        ({"input": [5] * 61}, "input", "context_length_exceeded"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": 37}, "dimensions", "invalid_value"),
        ({"input": "a", "prompt_name": "nobody"}, "prompt_name", "invalid_value"),
        ({"input": "a", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens", "unsupported_field"),
        ({"input": "a", "model": "other"}, "model", "model_not_found"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(up: Running, body: Any, param: str, code: str) -> None:
    reply = up.post("/v1/embeddings", body)
    error = reply.json()["error"]
    assert (reply.status, error["param"], error["code"]) == (404 if code == "model_not_found" else 400, param, code)
    assert "\n" not in error["message"]
    assert not up.service.live


def test_a_model_of_another_kind_says_what_to_ask(up: Running, server: Running) -> None:
    """Vectors of a model that generates, text of one that does not, scores of one that gives vectors."""
    for where, route, body in (
        (server, "/v1/embeddings", {"input": "a"}),
        (server, "/v1/rerank", {"query": "a", "documents": ["b"]}),
        (up, "/v1/rerank", {"query": "a", "documents": ["b"]}),
        (up, "/v1/completions", {"prompt": "a"}),
        (up, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        (up, "/v1/responses", {"input": "a"}),
    ):
        reply = where.post(route, body)
        assert (reply.status, reply.json()["error"]["code"]) == (400, "unsupported_model"), route
    assert up.get("/v1/models").json()["data"][0]["routes"] == ["/v1/embeddings"]
    assert "no modules.json" in server.post("/v1/embeddings", {"input": "a"}).json()["error"]["message"]
    assert "use /v1/embeddings" in up.post("/v1/completions", {"prompt": "a"}).json()["error"]["message"]


def test_documents_are_ranked(reranker: Path) -> None:
    """By their scores, the best first; as texts or objects; so many as were asked for."""
    wanted = EmbeddingLLM(str(reranker)).score(TEXTS[0], TEXTS[1:])
    with served(reranker) as up:
        body = {"model": "vectors", "query": TEXTS[0], "documents": [TEXTS[1], {"text": TEXTS[2]}, TEXTS[3]]}
        answer = up.post("/v1/rerank", body).json()
        results = answer["results"]
        assert [each["index"] for each in results] == sorted(range(3), key=lambda index: -wanted[index])
        for each in results:
            assert each["relevance_score"] == pytest.approx(wanted[each["index"]], rel=1e-5)
            assert each["document"] == {"text": TEXTS[1 + each["index"]]}
        assert answer["usage"]["total_tokens"] > 20
        best = up.post("/v1/rerank", {**body, "top_n": 1, "return_documents": False}).json()["results"]
        assert best == [{key: results[0][key] for key in ("index", "relevance_score")}]
        for wrong, param in (
            ({"query": ""}, "query"),
            ({"documents": []}, "documents"),
            ({"documents": [""]}, "documents"),
            ({"documents": [{"title": "a"}]}, "documents"),
            ({"documents": ["cat " * 70]}, "documents"),
            ({"top_n": 0}, "top_n"),
        ):
            reply = up.post("/v1/rerank", {**body, **wrong})
            assert (reply.status, reply.json()["error"]["param"]) == (400, param)
        refused = up.post("/v1/embeddings", {"input": "a"}).json()["error"]
        assert refused["message"].startswith("the model outputs scores of labels")
        up.idle()


def test_metrics_count_what_was_embedded(up: Running) -> None:
    """Under the names that they have: prompt tokens, requests, how long they took."""

    def sample(name: str) -> float:
        lines = up.get("/metrics").data.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"ridgeline:{name}"))

    names = ("prompt_tokens_total", "request_success_total", "e2e_request_latency_seconds_count")
    before = [sample(name) for name in names]
    used = up.post("/v1/embeddings", {"input": list(TEXTS)}).json()["usage"]["prompt_tokens"]
    assert [sample(name) - was for name, was in zip(names, before, strict=True)] == [used, 4, 4]
    assert sample("generation_tokens_total") == 0


def test_vectors_cross_from_an_engine_in_a_process(folder: Path, embedder: EmbeddingLLM) -> None:
    """As `ridgeline serve` has it."""

    async def asked() -> Any:
        async with await AsyncLLM.start(str(folder), threads=1) as llm:
            ids = embedder.texts.tokenizer.encode(TEXTS[0])
            return [event async for event in llm.stream(ids)]

    (event,) = asyncio.run(asked())
    assert event.hidden.shape == (1, 36)
    assert event.hidden[0] == pytest.approx(embedder.embed(TEXTS[:1])[0].values, abs=1e-6)
