"""AsyncLLM: many callers at a time, those who leave, and an engine that dies."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing

import pytest

from engine.scripted import GREEDY, text_of
from ridgeline.engine import LLM, AsyncLLM
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.worker.engine_messages import StepReport


def run_async(llm: LLM, use: Callable[[AsyncLLM], object]) -> object:
    """Runs `use` over an AsyncLLM, with an end to patience."""

    async def run() -> object:
        async with AsyncLLM(llm.loaded) as server:
            return await asyncio.wait_for(use(server), timeout=60)  # type: ignore[arg-type]

    return asyncio.run(run())


async def until_idle(engine: Engine) -> None:
    """An abort takes effect between two steps of another thread."""
    for _ in range(2000):
        if not engine.has_work:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("a request that nobody waits for is still there")


def test_many_callers_get_what_each_would_get_alone(llm: LLM) -> None:
    prompts = ["abc", "d", "abc", "a much longer prompt than the others, in several chunks" * 2, "zz"]
    params = [
        dataclasses.replace(GREEDY, n=n, max_tokens=count, temperature=0.8, seed=3)
        for n, count in ((1, 12), (3, 4), (1, 30), (2, 7), (1, 1))
    ]
    wanted = llm.generate(prompts, params)

    async def use(server: AsyncLLM) -> None:
        got = await asyncio.gather(*map(server.generate, prompts, params))
        assert got == wanted
        events = [event async for event in server.stream("abc", params[0])]
        assert text_of(events) == wanted[0].text

    run_async(llm, use)


def test_one_caller_leaves_and_the_others_do_not_notice(llm: LLM) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=60)
    wanted = llm.generate(["abc", "de"], params)

    async def leave(server: AsyncLLM) -> None:
        async with aclosing(server.stream("leaving", dataclasses.replace(GREEDY, max_tokens=200))) as stream:
            seen = 0
            async for _ in stream:
                seen += 1
                if seen == 5:
                    return

    async def use(server: AsyncLLM) -> None:
        stays = [asyncio.create_task(server.generate(prompt, params)) for prompt in ("abc", "de")]
        cancelled = asyncio.create_task(server.generate("cancelled", dataclasses.replace(GREEDY, max_tokens=200)))
        await leave(server)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await asyncio.gather(*stays) == wanted
        await until_idle(llm.engine)

    run_async(llm, use)


def test_a_caller_that_is_cancelled_at_once_leaves_no_request(llm: LLM) -> None:
    """Whether it goes before the engine has its request, with that, or some steps after; another one goes on."""
    gone = dataclasses.replace(GREEDY, max_tokens=240)
    positions: Counter[int] = Counter()  # that each request ran

    def count(report: StepReport, stats: Stats) -> None:
        for request, _, _, ran in report.items:
            positions[request] += ran
        time.sleep(0.002)  # in the engine's thread: a request that goes on takes far longer than callers do to leave

    async def use(server: AsyncLLM) -> None:
        server.observers.append(count)
        stays = asyncio.create_task(server.generate("abc", dataclasses.replace(GREEDY, max_tokens=100)))
        for delay in (0, 0, 0.001, 0.003, 0.01):
            task = asyncio.create_task(server.generate("gone", gone))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await stays
        await until_idle(llm.engine)

    run_async(llm, use)
    # all tokens of a prompt, which are its bytes, and all of an answer but the last, which is never run
    assert 3 + 100 - 1 in positions.values(), "the request of the caller who stayed did not go on"
    assert 4 + 240 - 1 not in positions.values(), "the request of a caller who had gone went on"


def test_a_new_caller_does_not_wait_for_those_who_came_before(llm: LLM) -> None:
    """Its first token comes while the others are still under way: nothing starves at the engine's door."""

    async def use(server: AsyncLLM) -> None:
        first = asyncio.create_task(server.generate("abc", dataclasses.replace(GREEDY, max_tokens=230)))
        while not llm.engine.requests:
            await asyncio.sleep(0.001)
        await server.generate("de", dataclasses.replace(GREEDY, max_tokens=2))
        assert not first.done()
        await first

    run_async(llm, use)


def test_what_cannot_run_is_told_to_who_asked(llm: LLM) -> None:
    async def use(server: AsyncLLM) -> None:
        for bad in ("", [999], [1] * 300, [1.5]):
            with pytest.raises(ValueError, match=r"prompt|token id"):
                await server.generate(bad, GREEDY)
        assert (await server.generate("abc", GREEDY)).done

    run_async(llm, use)


def test_to_close_ends_what_is_under_way_and_refuses_what_comes(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def slow() -> list[Event]:
        time.sleep(0.01)  # so that the request is under way when the engine is closed, however late that is
        return step()

    monkeypatch.setattr(llm.engine, "step", slow)

    async def run() -> None:
        server = AsyncLLM(llm.loaded)
        task = asyncio.create_task(server.generate("abc", dataclasses.replace(GREEDY, max_tokens=230)))
        while not llm.engine.requests:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.close)
        with pytest.raises(RuntimeError, match="the engine stopped"):
            await task
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await server.generate("abc", GREEDY)
        server.close()

    asyncio.run(run())
    for request in list(llm.engine.requests):
        llm.engine.abort(request)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_engine_is_told_to_all_who_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Event]:
        if len(llm.engine.requests) == 2:  # both are there to be told; until then nothing moves
            raise AssertionError("a bug of ours")
        return []

    monkeypatch.setattr(llm.engine, "step", broken)

    async def use(server: AsyncLLM) -> None:
        results = await asyncio.gather(*(server.generate(p, GREEDY) for p in ("abc", "de")), return_exceptions=True)
        assert [str(result) for result in results] == ["the engine stopped: a bug of ours"] * 2
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await server.generate("abc", GREEDY)

    run_async(llm, use)
    for request in list(llm.engine.requests):
        llm.engine.abort(request)


def test_an_event_loop_that_is_gone_takes_only_its_own_requests(llm: LLM) -> None:
    server = AsyncLLM(llm.loaded)
    loop = asyncio.new_event_loop()
    stream = server.stream("abc", dataclasses.replace(GREEDY, max_tokens=230))
    loop.run_until_complete(anext(stream))
    loop.close()
    completion = asyncio.run(server.generate("de", GREEDY))
    assert completion.done
    asyncio.run(until_idle(llm.engine))
    server.close()


def test_an_async_llm_is_shown_as_short(llm: LLM) -> None:
    async def use(server: AsyncLLM) -> None:
        info = server.info
        assert repr(server) == f"AsyncLLM(context 256, KV cache: {info.held}, threads {info.threads})"
        await asyncio.to_thread(server.close)
        assert repr(server).endswith(", closed)")

    run_async(llm, use)
