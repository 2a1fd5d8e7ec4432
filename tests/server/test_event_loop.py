"""Long work leaves the event loop to others: it is done in slices or in a thread, and gives what it gives at once."""

import asyncio
import json
import random
import sys
import threading
from collections.abc import Coroutine
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from ridgeline.core.text import TokenOffsets
from ridgeline.engine.llm import LLM
from ridgeline.engine.sampling.sample_row import PromptLogprob, Sampled
from ridgeline.server.event_loop import LONG, SLICE, SWITCH_SECONDS, offload_if_long, responsive_event_loop, slices
from ridgeline.server.routes import long_response
from ridgeline.server.routes.logprobs import (
    CompletionLogprobs,
    PromptScores,
    TokenNames,
    chat_logprobs,
    long_chat_logprobs,
    prompt_logprobs,
)
from ridgeline.server.routes.long_response import LongResponse


def while_counting(work: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """What a piece of work gives, and how often other work had its turn meanwhile."""

    async def main() -> tuple[Any, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        try:
            return await work, turns
        finally:
            task.cancel()

    return asyncio.run(main())


def sampled(count: int) -> list[Sampled]:
    random_ = random.Random(3)
    return [
        Sampled(
            random_.randrange(2048),
            -random_.random(),
            None,
            tuple((random_.randrange(2048), -random_.random()) for _ in range(20)),
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def names(llm: LLM) -> TokenNames:
    return TokenNames(llm.tokenizer)


@pytest.mark.parametrize("count", [0, 1, SLICE, 10 * SLICE + 7])
def test_slices_are_the_list_and_others_have_their_turns_between(count: int) -> None:
    async def taken() -> list[list[int]]:
        return [list(part) async for part in slices(range(count))]

    parts, turns = while_counting(taken())
    assert [each for part in parts for each in part] == list(range(count))
    assert max(map(len, parts), default=0) <= SLICE
    assert turns >= len(parts) - 1


def test_log_probabilities_of_a_long_answer_are_written_in_slices(names: TokenNames) -> None:
    tokens = sampled(10 * SLICE + 7)
    found, turns = while_counting(long_chat_logprobs(tokens, names))
    assert json.loads(msgspec.json.encode(found)) == json.loads(msgspec.json.encode(chat_logprobs(tokens, names)))
    assert turns >= 10


@pytest.mark.parametrize("sizes", [[300], [1, 255, 40, 4], [7] * 40 + [20]])
def test_what_is_said_of_a_prompt_is_the_same_however_it_is_cut(names: TokenNames, sizes: list[int]) -> None:
    rows = sampled(300)
    scores = [PromptLogprob(one.token, one.logprob_raw or 0.0, one.top_raw) for one in rows]
    prompt = [one.token for one in rows]
    told = [None, *scores[1:]]
    answer = PromptScores(prompt, names, listed=True, echoed=True)
    assert sum(sizes) == 300
    for start, end in zip([0, *accumulate(sizes)], accumulate(sizes), strict=False):
        answer.take(told[start:end])
    assert json.loads(msgspec.json.encode(answer.response_fields)) == {"prompt_logprobs": prompt_logprobs(told, names)}
    places = TokenOffsets(names.tokenizer)
    offsets = [places.push(token) for token in [*prompt, *prompt[:5]]]
    whole = CompletionLogprobs(names)
    whole.add_prompt(prompt, told, offsets[:300])
    whole.add_output(rows[:5], offsets[300:])
    for _ in range(2):  # of each choice
        continued = answer.continued()
        continued.add_output(rows[:5], offsets[300:])
        assert continued.json() == whole.copy().json()
    columns = {name: json.loads(bytes(column)) for name, column in whole.json().items()}
    assert columns["tokens"] == [names.text(token) for token in [*prompt, *prompt[:5]]]
    assert columns["text_offset"] == offsets
    assert columns["token_logprobs"][1:] == [score.logprob for score in [*scores[1:], *scores[:5]]]


def test_a_long_response_is_handed_over_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_response, "_SENT_BYTES", 100)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    body = json.dumps(list(range(200))).encode()
    asyncio.run(LongResponse(body, 201, {"x-a": "b"})({"type": "http"}, None, send))  # type: ignore[arg-type]
    start, *parts = sent
    headers = dict(start["headers"])
    assert start["status"] == 201
    assert (headers[b"content-length"], headers[b"x-a"]) == (str(len(body)).encode(), b"b")
    assert headers[b"content-type"] == b"application/json"
    assert b"".join(part["body"] for part in parts) == body
    assert max(len(part["body"]) for part in parts) == 100
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]


def test_long_work_is_done_in_a_thread() -> None:
    async def main() -> None:
        here = threading.get_ident()
        assert await offload_if_long(LONG - 1, threading.get_ident) == here
        assert await offload_if_long(LONG, threading.get_ident) != here

    asyncio.run(main())


def test_threads_give_way_to_the_event_loop_while_it_serves() -> None:
    before = sys.getswitchinterval()
    with responsive_event_loop():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == before
