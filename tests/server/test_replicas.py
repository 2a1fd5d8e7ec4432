"""Several engines behind one front: the answers of one, deaths under load, replicas that come and go, what is told."""

import asyncio
import signal
from dataclasses import replace

from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from server.fleets import SETTINGS, Running, Stream, kill, process_of, served

PROMPTS = [f"Once upon a time there was a {animal} who" for animal in ("cat", "dog", "bird", "frog", "bear", "fox")]
PATIENCE = 600  # seconds until a test that hangs ends


def wanted(llm: LLM, tokens: int) -> dict[str, str]:
    """What one engine says to each prompt."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return {prompt: llm.generate(prompt, params)[0].text for prompt in PROMPTS}


def test_two_replicas_under_load(llm: LLM) -> None:
    """One fleet for all of it, as each engine costs an import of torch."""
    short, long = wanted(llm, 8), wanted(llm, 200)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), served(2) as up:
            await answers(up, short)
            await told(up)
            await one_dies(up, long)
            await all_die(up, short)
            await one_hangs(up, long)

    asyncio.run(run())


async def answers(up: Running, short: dict[str, str]) -> None:
    """They are those of one engine, whole or streamed, and both engines have made some."""
    many = [prompt for prompt in PROMPTS for _ in range(4)]
    whole = await asyncio.gather(*(up.complete(prompt, 8) for prompt in many))
    assert [each["choices"][0]["text"] for each in whole] == [short[prompt] for prompt in many]
    streamed = await asyncio.gather(*(up.stream(prompt, 8, Stream()) for prompt in many))
    assert [each.text for each in streamed] == [short[prompt] for prompt in many]
    made = [await up.metric("generation_tokens_total", engine=engine) for engine in "01"]
    assert sum(made) == 2 * 8 * len(many)
    assert min(made) > 0.3 * sum(made), "the router deals to both"


async def told(up: Running) -> None:
    """Counts of each are its own, the sum is of all, a request's trace has the steps of its engine."""
    for engine, replica in up.fleet.replicas.items():
        label = {"engine": str(engine)}
        assert await up.metric("generation_tokens_total", **label) == replica.llm.stats.output_tokens
        assert await up.metric("iteration_tokens_total_sum", **label) == replica.llm.stats.computed_tokens
        ended = await up.metric("request_success_total", finished_reason="length", **label)
        assert ended == replica.llm.stats.output_tokens / 8
    said = await up.get("/v1/replicas")
    assert [each["state"] for each in said["replicas"]] == ["ready", "ready"]
    assert said["replicas"][1]["where"] == f"process {process_of(up.fleet.replicas[1])}"
    assert said["sum"]["output_tokens"] == sum(each["stats"]["output_tokens"] for each in said["replicas"]) == 384
    assert await up.metric("replicas", state="ready") == 2
    both = await asyncio.gather(*(up.complete(prompt, 8) for prompt in PROMPTS[:2]))
    traces = [await up.get(f"/v1/trace/{each['id']}") for each in both]
    assert [(each["state"], each["output_tokens"], len(each["ledger"])) for each in traces] == [("finished", 8, 8)] * 2
    states = [await up.get(f"/v1/engine/state?replica={number}") for number in (0, 1)]
    assert [each["counters"]["output_tokens"] for each in states] == [
        each.llm.stats.output_tokens for each in up.fleet.replicas.values()
    ]
    assert "the replicas 0, 1" in (await up.get("/v1/engine/state?replica=2"))["error"]["message"]


async def one_dies(up: Running, long: dict[str, str]) -> None:
    """Requests of the other go on; its own that had told a token end with an error, the rest another runs."""
    heard = {n: Stream() for n in range(24)}  # eight run, the others wait in the engines' queues
    tasks = [
        asyncio.create_task(up.stream(PROMPTS[number % len(PROMPTS)], 200, stream)) for number, stream in heard.items()
    ]
    while sum(stream.first.is_set() for stream in heard.values()) < 8:
        await asyncio.sleep(0.001)
    victim, before = up.fleet.replicas[0], dict(up.fleet.replicas[0].live)
    begun = sum(sent._was_reported for sent in before)
    assert begun
    assert len(before) > begun
    kill(victim)
    await asyncio.gather(*tasks)
    broken = [stream for stream in heard.values() if stream.error is not None]
    assert [stream.error for stream in broken] == ["engine_died"] * len(broken)
    assert len(broken) == begun, "none but those that had told a token are lost"
    assert up.fleet.retried == len(before) - begun
    for number, stream in heard.items():
        text = long[PROMPTS[number % len(PROMPTS)]]
        assert text.startswith(stream.text) if stream in broken else stream.text == text
    await up.until(2)
    assert (victim.llm.restarts, await up.metric("engine_restarts_total", engine="0")) == (1, 1)
    assert await up.metric("requests_retried_total") == up.fleet.retried
    assert await up.metric("request_success_total", finished_reason="error") == begun


async def all_die(up: Running, short: dict[str, str]) -> None:
    """What has told nothing waits for an engine; what comes while there is none is sent away at once."""
    retried, (first, second) = up.fleet.retried, up.fleet.replicas.values()
    up.may_start.clear()
    kill(second)
    while second.llm.alive:
        await asyncio.sleep(0.001)
    kill(first, signal.SIGSTOP)  # it takes no step any more
    tasks = [asyncio.create_task(up.complete(prompt, 8)) for prompt in PROMPTS]
    while len(first.live) < len(PROMPTS):
        assert not any(task.done() for task in tasks), "somebody let it go on"
        await asyncio.sleep(0.001)
    kill(first)
    while up.fleet.alive:
        await asyncio.sleep(0.001)
    assert (await up.complete("nobody is there", 8))["error"]["code"] == "engine_restarting"
    assert (await up.get("/health/ready"))["status"] == "restarting"
    up.may_start.set()
    answered = await asyncio.gather(*tasks)
    assert [each["choices"][0]["text"] for each in answered] == [short[prompt] for prompt in PROMPTS]
    assert up.fleet.retried == retried + len(PROMPTS)
    await up.until(2)


async def one_hangs(up: Running, long: dict[str, str]) -> None:
    """It is ended and started again; its requests that told nothing do not wait for it."""
    watch, victim = up.watches[0], up.fleet.replicas[1]
    restarts = victim.llm.restarts
    watch._stalled_seconds = 1.0
    kill(victim, signal.SIGSTOP)
    answered = await asyncio.gather(*(up.complete(prompt, 200) for prompt in PROMPTS[:4]))
    assert [each["choices"][0]["text"] for each in answered] == [long[prompt] for prompt in PROMPTS[:4]]
    watch._stalled_seconds = SETTINGS.stalled_seconds
    await up.until(2)
    assert victim.llm.restarts == restarts + 1


def test_replicas_come_and_go(llm: LLM) -> None:
    """No request is lost with it: one that goes finishes what it has, one that comes takes its share."""
    long = wanted(llm, 200)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), served(1, settings=replace(SETTINGS, queued_requests=100)) as up:
            watch = up.watches[0]
            tasks = [asyncio.create_task(up.complete(prompt, 200)) for prompt in PROMPTS * 2]
            watch.grow(1)
            assert watch.starting == 1
            assert await up.metric("replicas", state="starting") == 1
            await up.until(2)
            tasks += [asyncio.create_task(up.complete(prompt, 200)) for prompt in PROMPTS]
            while not (up.fleet.replicas[1].live and up.fleet.replicas[1].llm.stats.running):
                await asyncio.sleep(0.001)
            watch.shrink()
            going = next(each for each in up.fleet.replicas.values() if not each.taking)
            assert going.live, "it has requests, which it finishes"
            tasks += [asyncio.create_task(up.complete(prompt, 200)) for prompt in PROMPTS]
            answered = await asyncio.gather(*tasks)
            assert [each["choices"][0]["text"] for each in answered] == [long[prompt] for prompt in PROMPTS * 4]
            await up.until(1)
            watch.shrink()
            assert [each.state for each in up.fleet.replicas.values()] == ["ready"], "the last one stays"
            assert up.fleet.retried == 0

    asyncio.run(run())
