"""`serve --split`: engines for prompts and for answers behind one front, the answers of one, an engine that dies."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp

from ridgeline.cli.serve_split import SplitFlags, served_split
from ridgeline.engine.llm import LLM
from ridgeline.engine.worker.engine_process import EngineProcess
from ridgeline.engine.worker.process_handle import ChildProcess
from ridgeline.server.disaggregated import DisaggregatedEngines
from ridgeline.server.http.http_server import http_server, listen, url_of
from ridgeline.server.lifecycle import ServedLLM, Server
from ridgeline.server.replicas.served_replicas import ServedReplicas
from server.fleets import ENGINE, SETTINGS

ANIMALS = ("cat", "dog", "bird", "frog")
PROMPTS = [f"Once upon a time there was a {animal} who lived in a tree near the sea with his dad" for animal in ANIMALS]
PATIENCE = 300


@asynccontextmanager
async def served(split: str) -> AsyncIterator[tuple[str, DisaggregatedEngines, aiohttp.ClientSession]]:
    """All that `ridgeline serve --split` has, but signals."""
    apart = served_split(SplitFlags(split=split), ServedLLM("tales", "tales", ENGINE, threads=1))
    ready: asyncio.Future[DisaggregatedEngines] = asyncio.get_running_loop().create_future()
    with listen(SETTINGS) as listener:
        server = Server(SETTINGS)
        http = http_server(server.app, SETTINGS, server.observers)
        serving = asyncio.create_task(http.serve([listener]))
        running = asyncio.create_task(
            server.run(apart, url_of(listener), lambda url, started: ready.set_result(started))
        )
        async with aiohttp.ClientSession() as client:
            await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield url_of(listener), await ready, client
        server.interrupt()
        await running
        http.end()
        await serving


async def texts(url: str, client: aiohttp.ClientSession, prompts: Sequence[str], **fields: Any) -> list[str]:
    async def one(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, **fields}
        async with client.post(f"{url}/v1/completions", json=body) as response:
            return str((await response.json())["choices"][0]["text"])

    return list(await asyncio.gather(*map(one, prompts)))


async def metric(url: str, client: aiohttp.ClientSession, name: str, engine: int) -> float:
    async with client.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    label = f'ridgeline:{name}{{engine="{engine}"'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(label))


def computing(apart: DisaggregatedEngines) -> int:
    """The process of the engine that computes prompts."""
    assert isinstance(apart.answering, ServedReplicas)
    (engine,) = apart.answering.one.prefill_engines
    assert isinstance(engine.host, EngineProcess)
    assert isinstance(engine.host.handle, ChildProcess)
    return engine.host.handle.pid


def test_prompts_on_an_engine_of_their_own(llm: LLM) -> None:
    """Greedy and with a seed; the engine for prompts is killed, prompts run where answers do, and it is back."""
    greedy, seeded = {"temperature": 0.0}, {"temperature": 0.8, "seed": 7}
    params = replace(llm.loaded.defaults, max_tokens=16, ignore_eos=True)  # as a server has them

    def wanted(**sampling: Any) -> list[str]:
        return [llm.generate(prompt, replace(params, **sampling))[0].text for prompt in PROMPTS]

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), served("1:2") as (url, apart, client):
            assert apart.engines.info.replicas == 2
            assert await texts(url, client, PROMPTS, **greedy) == wanted(**greedy)
            came = [await metric(url, client, "kv_transfers_total", engine) for engine in (0, 1)]
            assert sum(came) == len(PROMPTS)
            assert min(came) > 0, "both engines for answers ask"
            nbytes = [await metric(url, client, "kv_transfer_bytes_total", engine) for engine in (0, 1)]
            assert sum(nbytes) > 0
            assert await metric(url, client, "kv_transfer_predicted_seconds_count", 0) == came[0]
            positions = await metric(url, client, "iteration_tokens_total_sum", 2)
            assert positions >= sum(nbytes) / 2e3, "the engine for prompts has series of its own"
            os.kill(computing(apart), signal.SIGKILL)
            assert await texts(url, client, PROMPTS, **seeded) == wanted(**seeded)
            while await metric(url, client, "engine_restarts_total", 2) < 1:
                await asyncio.sleep(0.1)
            others = [prompt.replace("sea", "hill") for prompt in PROMPTS]
            while sum([await metric(url, client, "kv_transfers_total", engine) for engine in (0, 1)]) <= sum(came):
                await texts(url, client, others, cache_salt=os.urandom(8).hex(), **greedy)

    asyncio.run(run())
