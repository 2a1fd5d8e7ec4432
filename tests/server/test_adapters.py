"""Adapters as models: listed beside their parent, chosen by `model`, run in one batch with it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import load_engine
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from server.conftest import running
from support.adapters import own_widths, write_adapter

PROMPT = "Once upon a time there was a little dog who lived"
GREEDY = SamplingParams(temperature=0, max_tokens=12)
NAMES = ("tales", "loud", "quiet")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    folder, widths = tmp_path_factory.mktemp("adapters"), own_widths("tales")
    loud = write_adapter(folder / "loud", widths, ["q_proj", "up_proj", "gate_proj", "down_proj"], std=0.2)
    quiet = write_adapter(folder / "quiet", widths, ["v_proj"], std=0.3, seed=1)
    return EngineSettings(adapters={"loud": str(loud), "quiet": str(quiet)})


@pytest.fixture(scope="module")
def url(settings: EngineSettings) -> Iterator[str]:
    llm = AsyncLLM(load_engine("tales", settings))
    served = ServerSettings(models=("tales",))
    try:
        with running(build_service(llm, RequestQueue(llm.info, served), served), served) as up:
            yield f"{up.url}/v1"
    finally:
        llm.close()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_they_are_listed_with_their_parent(client: openai.OpenAI) -> None:
    cards = [card.model_dump() for card in client.models.list().data]
    assert [(card["id"], card["parent"]) for card in cards] == [("tales", None), ("loud", "tales"), ("quiet", "tales")]
    assert client.models.retrieve("loud").model_dump()["root"] == "tales"


def test_requests_choose_by_model(client: openai.OpenAI, settings: EngineSettings) -> None:
    """Together in one batch each says what it says alone, and the answer names it."""
    llm = LLM("tales", settings, threads=1)
    expected = {name: llm.generate(PROMPT, GREEDY, adapter="" if name == "tales" else name)[0].text for name in NAMES}
    assert len(set(expected.values())) == 3

    def ask(name: str) -> tuple[str, str, str]:
        answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=12, temperature=0)
        return name, answer.model, answer.choices[0].text

    with ThreadPoolExecutor(9) as threads:
        for asked, named, text in threads.map(ask, NAMES * 3):
            assert (named, text) == (asked, expected[asked])
    together = llm.generate([PROMPT] * 3, GREEDY, adapter=["", "loud", "quiet"])
    assert [each.text for each in together] == list(expected.values())
    talk = [{"role": "user", "content": PROMPT}]  # whose template leaves the text as it is
    assert llm.chat(talk, GREEDY, adapter="loud").text == expected["loud"]
    assert [each.text for each in llm.chat([talk] * 3, GREEDY, adapter=["", "loud", "quiet"])] == [*expected.values()]
    with pytest.raises(ValueError, match="2 prompts have 3 adapters"):
        llm.generate([PROMPT] * 2, GREEDY, adapter=["", "loud", "quiet"])


def test_chat_and_streams(client: openai.OpenAI) -> None:
    asked = {"messages": [{"role": "user", "content": "Tell me a story"}], "temperature": 0, "max_tokens": 10}
    whole = client.chat.completions.create(model="loud", **asked)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(model="loud", stream=True, **asked))  # type: ignore[call-overload]
    assert {chunk.model for chunk in chunks} == {whole.model} == {"loud"}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text != client.chat.completions.create(model="tales", **asked).choices[0].message.content  # type: ignore[call-overload]


def test_prefixes_are_apart(client: openai.OpenAI) -> None:
    """What one has computed of a prompt is of no use to another."""
    prompt = "The king and the queen went to the sea one day and " + PROMPT

    def cached(name: str) -> int:
        usage = client.completions.create(model=name, prompt=prompt, max_tokens=1, temperature=0).usage
        assert usage is not None
        return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0

    assert [cached(name) for name in NAMES] == [0, 0, 0]
    assert all(cached(name) >= 16 for name in NAMES)


def test_an_adapter_that_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="the models of this server are tales, loud, quiet"):
        client.completions.create(model="other", prompt=PROMPT)


def test_in_a_process_of_its_own(settings: EngineSettings) -> None:
    """As `serve` runs them: settings and names go there and back as messages."""

    async def asked() -> tuple[tuple[str, ...], str]:
        async with await AsyncLLM.start("tales", settings, threads=1) as llm:
            return llm.info.adapters, (await llm.generate(PROMPT, GREEDY, adapter="loud")).text

    names, text = asyncio.run(asked())
    assert names == ("loud", "quiet")
    assert text == LLM("tales", settings, threads=1).generate(PROMPT, GREEDY, adapter="loud")[0].text


def test_an_adapter_with_the_name_of_the_model(settings: EngineSettings, tmp_path: Path) -> None:
    llm = AsyncLLM(load_engine("tales", settings))
    served = ServerSettings(models=("quiet",))
    try:
        with (
            pytest.raises(ValueError, match="'quiet' is both the name of the model and of an adapter"),
            running(build_service(llm, RequestQueue(llm.info, served), served), served),
        ):
            pass
    finally:
        llm.close()
