"""OpenAI's batch format: the same requests get the same answers as from the server, in any order and each once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from ridgeline.engine.async_llm import AsyncLLM, EngineDied, EngineRestarting
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.setup import LoadedEngine
from ridgeline.server.openai_batch import AHEAD, BatchRunner
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running

SETTINGS = ServerSettings(models=("tales",))
PROMPT = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4, "temperature": 0}


def line(custom_id: object, body: object, url: str = "/v1/completions", **more: object) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body} | more).encode()


async def given(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for each in lines:
        yield each


def outputs(llm: Any, lines: Sequence[bytes], **earlier: Any) -> dict[Any, Any]:
    """What a batch writes, by id (that of a line which is no request is its number)."""
    written: list[bytes] = []
    batch = BatchRunner(llm, SETTINGS, written.append, **earlier)
    asyncio.run(batch.run(given(lines)))
    assert all(each.endswith(b"\n") and each.count(b"\n") == 1 for each in written)
    records = [json.loads(each) for each in written]
    assert batch.tally.done == len(records)
    assert len({record["id"] for record in records}) == len(records)
    return {record["custom_id"] or record["error"]["line"]: record for record in records}


@pytest.fixture(scope="module")
def llm(tales: LoadedEngine) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(tales)
    yield llm
    llm.close()


BODIES: list[tuple[str, Any]] = [
    ("/v1/completions", PROMPT),
    ("/v1/completions", PROMPT | {"n": 2, "temperature": 1, "seed": 3, "logprobs": 2, "echo": True}),
    ("/v1/completions", PROMPT | {"prompt": ["Once", [1, 2, 3]], "stop": "."}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"model": "tales", "logprobs": True, "top_logprobs": 2, "user": "me"}),
    ("/v1/chat/completions", CHAT | {"messages": []}),
    ("/v1/chat/completions", CHAT | {"messages": 3}),
    ("/v1/completions", PROMPT | {"n": 10**6}),
    ("/v1/completions", PROMPT | {"max_tokens": 10**9}),
    ("/v1/completions", PROMPT | {"best_of": 3}),
    ("/v1/completions", PROMPT | {"model": "gpt-4o"}),
    ("/v1/completions", {"prompt": "x" * 3000}),
    ("/v1/completions", {}),
    ("/v1/completions", [1]),
    ("/v1/completions", {"prompt": json.loads("[" * 90 + "]" * 90)}),
]


def lasting(answer: Any) -> Any:
    """What of an answer depends neither on the moment nor on chance."""
    return {name: value for name, value in answer.items() if name not in ("id", "created", "timings")}


def test_answers_and_refusals_are_the_servers(server: Running, llm: AsyncLLM) -> None:
    """Status and body of every request, through HTTP and through a batch that has them all side by side."""
    told = outputs(llm, [line(f"request {i}", body, url) for i, (url, body) in enumerate(BODIES)])
    assert len(told) == len(BODIES)
    for i, (url, body) in enumerate(BODIES):
        reply, record = server.post(url, body), told[f"request {i}"]
        assert record["error"] is None
        assert record["response"]["status_code"] == reply.status, (body, record)
        answer = record["response"]["body"]
        got, expected = lasting(answer), lasting(reply.json())
        if reply.status == 200:
            assert record["response"]["request_id"] == answer["id"]
            for usage in (got, expected):
                usage["usage"].pop("prompt_tokens_details", None)  # what another request left in the cache
        assert got == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"nonsense", "it is not valid JSON: "),
        (b"[1]", "it is not a valid request: the body is a list; give an object"),
        (b"\xff\xfe", "it is not valid JSON: "),
        (b'{"custom_id": "x", "url": "/v1/completions"}', "it is not a valid request: body is missing"),
        (line(3, PROMPT), "custom_id is a number; give a string"),
        (line("", PROMPT), "its custom_id is empty"),
        (line("x", PROMPT, "/v1/embeddings"), "its url is '/v1/embeddings'; give /v1/chat/completions or /v1/comp"),
        (line("x", PROMPT, "/v1/completions?x=1"), "its url is"),
        (line("x", PROMPT, method="GET"), "its method is 'GET'; give POST"),
        (line("x", PROMPT | {"stream": True}), "its body sets stream to true"),
        (line("before", PROMPT), "its custom_id is already used in line 1"),
        (b"[" * 100_000, "it is not "),
    ],
)
def test_a_line_that_is_no_request(llm: AsyncLLM, text: bytes, says: str) -> None:
    """It gets an error with its number, and stops nothing else. An empty line is none, but counts."""
    told = outputs(llm, [line("before", PROMPT), b"", text, line("after", PROMPT)])
    assert set(told) == {"before", 3, "after"}
    assert told[3]["response"] is None
    assert told[3]["error"]["code"] == "invalid_line"
    assert says in told[3]["error"]["message"]
    assert told["before"]["response"]["status_code"] == told["after"]["response"]["status_code"] == 200


def test_what_an_earlier_run_has_answered(llm: AsyncLLM) -> None:
    """It is not asked again; nor is a line that was none said to be none again."""
    lines = [line("a", PROMPT), b"nonsense", line("b", PROMPT)]
    assert set(outputs(llm, lines)) == {"a", 2, "b"}
    assert set(outputs(llm, lines, done=frozenset({"a"}), wrong=frozenset({2}))) == {"b"}
    assert outputs(llm, lines, done=frozenset({"a", "b"}), wrong=frozenset({2})) == {}


class Watched:
    """An AsyncLLM that notes how many requests it has at a time, and that may die, or have no memory for them."""

    def __init__(
        self, llm: AsyncLLM, dies_at: int | None = None, poor: bool = False, dead: type[EngineDied] = EngineDied
    ) -> None:
        self.texts, self.info, self.observers = llm.texts, llm.info, llm.observers
        self._llm, self._dies_at, self._poor, self._dead = llm, dies_at, poor, dead
        self.begun = self.under_way = self.most = 0

    def submit(self, spec: GenerationRequest, take: Callable[[Event], None], **more: Any) -> Any:
        self.begun += 1
        if self._dies_at is not None and self.begun > self._dies_at:
            raise self._dead("it died")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        loop = asyncio.get_running_loop()
        loop.call_soon(take, Event(1, 0, text="x"))
        if self._poor:
            loop.call_soon(take, Event(1, 0, finish=FinishReason.ERROR, error="why", out_of_memory=True))
            return self.leave
        loop.call_soon(take, Event(1, 0, finish=FinishReason.LENGTH, output_tokens=0, timing=Timing(0, 1, 2, 3)))
        return self.leave

    def leave(self) -> None:
        self.under_way -= 1


def test_the_window_is_bounded(llm: AsyncLLM) -> None:
    """A line is read when there is a place for it: a file of any length takes the memory of a few requests."""
    watched, written = Watched(llm), list[bytes]()
    window = llm.info.requests + AHEAD
    ahead = []

    def lines() -> Iterator[bytes]:
        for number in range(3 * window):
            ahead.append(number - len(written))
            yield line(str(number), PROMPT)

    asyncio.run(BatchRunner(watched, SETTINGS, written.append).run(given(lines())))  # type: ignore[arg-type]
    assert len(written) == 3 * window
    assert {json.loads(each)["response"]["status_code"] for each in written} == {200}
    assert max(ahead) == window
    assert window / 2 < watched.most <= window


@pytest.mark.parametrize("dead", [EngineDied, EngineRestarting])
def test_an_engine_that_dies(llm: AsyncLLM, dead: type[EngineDied]) -> None:
    """What was answered is written, what was not is left to the next run."""
    written: list[bytes] = []
    batch = BatchRunner(Watched(llm, dies_at=2, dead=dead), SETTINGS, written.append)  # type: ignore[arg-type]
    with pytest.raises(EngineDied):
        asyncio.run(batch.run(given(line(str(number), PROMPT) for number in range(5))))
    assert {json.loads(each)["response"]["status_code"] for each in written} <= {200}
    done = frozenset(json.loads(each)["custom_id"] for each in written)
    rest = outputs(llm, [line(str(number), PROMPT) for number in range(5)], done=done)
    assert done | set(rest) == set("01234")
    assert done.isdisjoint(rest)


def test_a_request_for_which_there_is_no_memory_is_refused_and_the_others_go_on(llm: AsyncLLM) -> None:
    written: list[bytes] = []
    batch = BatchRunner(Watched(llm, poor=True), SETTINGS, written.append)  # type: ignore[arg-type]
    asyncio.run(batch.run(given([line("a", PROMPT), line("b", PROMPT)])))
    responses = {each["custom_id"]: each["response"] for each in map(json.loads, written)}
    assert {name: one["status_code"] for name, one in responses.items()} == {"a": 503, "b": 503}
    assert responses["a"]["body"]["error"]["code"] == "out_of_memory"
