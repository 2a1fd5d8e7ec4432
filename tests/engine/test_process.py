"""The engine in a process of its own: the same answers, its death, its second life, and what crosses the socket."""

import asyncio
import dataclasses
import os
import signal
import socket
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.folders import write_model
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.models import ModelRefused
from ridgeline.engine import LLM, AsyncLLM, Completion, EngineSettings, SamplingParams
from ridgeline.engine.async_llm import EngineDied, EngineRestarting
from ridgeline.engine.events import Stats, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import LogitBias
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.sampling import PromptLogprob, Sampled
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.text_processor import load_text_processor
from ridgeline.engine.worker.engine_messages import (
    AddRequest,
    FromEngine,
    PageChange,
    RequestAdded,
    Stepped,
    StepReport,
    ToEngine,
)
from ridgeline.engine.worker.engine_process import EngineProcess, EngineStart
from ridgeline.engine.worker.process_handle import ChildProcess, NewLine
from ridgeline.price.devices import load_device
from ridgeline.util.frames import MessageCodec

SETTINGS = EngineSettings(kv_bytes=4e6, limits=Limits(tokens=64, requests=8))
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PATIENCE = 60


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[tuple[AsyncLLM, EngineProcess]]:
    llm = await AsyncLLM.start(str(folder), SETTINGS, threads=1, **options)
    async with asyncio.timeout(PATIENCE), llm:
        assert isinstance(llm.host, EngineProcess)
        yield llm, llm.host


def pid_of(process: EngineProcess) -> int:
    assert isinstance(process.handle, ChildProcess)
    return process.handle.pid


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def said_by(completion: Completion) -> object:
    """What does not depend on who else was in a step, as the last bits of a log-probability do."""
    return [(c.text, c.token_ids, c.finish, len(c.tokens[0].top_raw)) for c in completion.choices]


async def until_idle(llm: AsyncLLM) -> Stats:
    while llm.stats.running or llm.stats.waiting or llm.num_awaited:
        await asyncio.sleep(0.002)
    return llm.stats


def test_a_process_says_what_a_script_gets_dies_and_lives_again(folder: Path) -> None:
    """One process for all of it, as each costs an import of torch."""
    llm = LLM(str(folder), SETTINGS, threads=1)
    prompts = ["abc", "d", "abc", "a much longer prompt than the others, in several chunks" * 2]
    params = [
        GREEDY,
        dataclasses.replace(GREEDY, n=3, temperature=0.8, seed=3),
        SamplingParams(temperature=0.9, seed=5, stop=("a", "e"), logprobs=2, max_tokens=40),
        dataclasses.replace(GREEDY, prompt_logprobs=1, logit_bias={5: 1.5}, seed=2**64 - 1),
    ]
    wanted = llm.generate(prompts, params)

    async def run() -> None:
        loads: list[tuple[int, int]] = []
        device = load_device("h100-sxm")
        async with served(folder, device=device, progress=lambda *part: loads.append(part)) as (server, process):
            assert loads[-1][0] == loads[-1][1] > 0
            assert dataclasses.asdict(llm.engine.stats).keys() == dataclasses.asdict(server.stats).keys()
            reports: list[StepReport] = []
            server.observers.append(lambda report, _: reports.append(report))
            got = await asyncio.gather(*map(server.generate, prompts, params))
            assert list(map(said_by, got)) == list(map(said_by, wanted))
            assert got[3].prompt_logprobs is not None
            assert len(got[3].prompt_logprobs) == len(got[3].prompt_ids)
            check_reports(reports, llm, device)
            for bad in ("", [999], [1] * 300):
                with pytest.raises(ValueError, match=r"prompt|token id"):
                    await server.generate(bad, GREEDY)
            await leave_early(server)
            pages = await watch(server)
            await die(server, process)
            pages.clear()
            assert said_by(await server.generate("abc", GREEDY)) == said_by(wanted[0]), "the second is another"
            assert pages, "the second engine is watched as the first was"
            os.kill(pid_of(process), signal.SIGKILL)
            assert await asyncio.wrap_future(server.ended) == "its process was killed by signal 9"
            with pytest.raises(EngineDied, match="the engine is closed"):
                await server.generate("abc", GREEDY)
        assert subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True,
                              check=False).stdout.count("ridgeline.engine.worker.engine_child") == 0  # fmt: skip

    asyncio.run(run())


def check_reports(reports: list[StepReport], llm: LLM, device: object) -> None:
    """Each is priced as the model's price prices it, and together they ran every position."""
    assert [report.step for report in reports] == list(range(len(reports)))
    for report in reports:
        assert report.started < report.finished
        assert report.predicted is not None
        assert report.floor is not None
        assert 0 < report.floor <= report.predicted
        assert report.flops > 0 < report.nbytes
        assert report.decodes_only == all(count == 1 for *_, count in report.items)
    ran = sum(count for report in reports for *_, count in report.items)
    assert ran == llm.engine.stats.computed_tokens


async def leave_early(server: AsyncLLM) -> None:
    """A caller who leaves frees the pages at once; one who leaves before the engine has answered too."""
    async with aclosing(server.stream("leaving", dataclasses.replace(GREEDY, max_tokens=200))) as stream:
        async for _ in stream:
            break
    for delay in (0, 0, 0.001, 0.01):
        task = asyncio.create_task(server.generate("gone", dataclasses.replace(GREEDY, max_tokens=240)))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await server.generate("d", GREEDY)
    stats = await until_idle(server)
    assert stats.held_pages == 0


async def watch(server: AsyncLLM) -> list[PageChange]:
    """The pages that change from now on; they add up to what a snapshot says."""
    pages, told = list[PageChange](), asyncio.get_running_loop().create_future()
    server.page_observers.append(pages.extend)
    server.watch(True)
    first = asyncio.get_running_loop().create_future()
    server.look(first.set_result)
    before = {page.page: page for page in (await first).pages}
    await server.generate("watched as its pages are taken and let go", GREEDY)
    server.look(told.set_result)
    snapshot = await told
    after = {page.page: page for page in snapshot.pages}
    assert pages
    assert {
        page: one for page, one in (before | {one.page: one for one in pages}).items() if one.state != "free"
    } == after
    assert snapshot.stats == server.stats
    return pages


async def die(server: AsyncLLM, process: EngineProcess) -> None:
    """Those who wait hear of it, new ones are refused until the next process is there."""
    tasks = [asyncio.create_task(server.generate(p, dataclasses.replace(GREEDY, max_tokens=200))) for p in ("a", "b")]
    while server.num_awaited < 2 or server.stats.running < 2:
        await asyncio.sleep(0.001)
    os.kill(pid_of(process), signal.SIGKILL)
    said = [str(error) for error in await asyncio.gather(*tasks, return_exceptions=True)]
    assert said == ["the engine stopped: its process was killed by signal 9"] * 2
    assert not server.alive
    assert (server.stats.running, server.stats.held_pages) == (0, 0)
    with pytest.raises(EngineRestarting, match="the engine is restarting"):
        await server.generate("abc", GREEDY)
    while not server.alive:
        await asyncio.sleep(0.01)
    assert not server.ended.done()


def test_a_model_that_cannot_be_loaded_is_refused_as_it_is_here(folder: Path, tmp_path: Path) -> None:
    (broken := write_model(tmp_path / "broken")).joinpath("model.safetensors").write_bytes(b"no header")

    async def start(model: Path, settings: EngineSettings) -> None:
        await EngineProcess.start(EngineStart(str(model), settings))

    with pytest.raises(ModelRefused, match="no such folder"):
        asyncio.run(start(tmp_path / "absent", SETTINGS))
    with pytest.raises(ModelRefused, match=r"model\.safetensors"):
        asyncio.run(start(broken, SETTINGS))
    with pytest.raises(ValueError, match="does not hold a single page"):
        asyncio.run(start(folder, EngineSettings(kv_bytes=100.0)))


def test_the_socket_is_the_owners_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a process that ends as it begins is said to have."""
    modes: list[str] = []

    def popen(arguments: list[str], **_: object) -> "subprocess.Popen[bytes]":
        path = Path(arguments[-1])
        modes.extend(stat.filemode(place.stat().st_mode) for place in (path, path.parent))
        return real(["false"])

    real = subprocess.Popen
    monkeypatch.setattr("ridgeline.engine.worker.process_handle.subprocess.Popen", popen)
    with pytest.raises(RuntimeError, match="ended at its start, with exit code 1"):
        asyncio.run(EngineProcess.start(EngineStart(str(folder), SETTINGS)))
    assert modes == ["srw-------", "drwx------"]


# -- frames -----------------------------------------------------------------------------------------------------------

MESSAGES: list[object] = [
    AddRequest(
        7,
        GenerationRequest(
            [1, 2, 3],
            SamplingParams(stop=("x",), logit_bias=LogitBias({3: -1.5}), seed=-(2**63), logprobs=0),
            cache_salt=b"\0r",
        ),
    ),
    AddRequest(2**40, GenerationRequest(list(range(1000)), SamplingParams(max_tokens=None))),
]
ANSWERS: list[object] = [
    RequestAdded(7, 1),
    Stepped(
        [
            TokenEvent(1, 0, Sampled(5, -0.5, -0.25, ((5, -0.5),), ()), 12, 3, Timing(1, 2, 3)),
            TokenEvent(
                1, 1, None, 13, 0, Timing(1), FinishReason.ERROR, "why", (None, PromptLogprob(4, -1.0, ((4, -1.0),)))
            ),
        ],
        Stats(running=2),
        StepReport(4, 1, 2, [(1, 0, 0, 3)], 1, False, 0.5, 0.25, 1.0, 2.0),
    ),
]


@pytest.mark.parametrize(("types", "messages"), [(ToEngine, MESSAGES), (FromEngine, ANSWERS)])
def test_frames_cut_anywhere_are_the_same_messages(types: object, messages: list[object]) -> None:
    frames: MessageCodec[object] = MessageCodec(types)
    data = b"".join(map(frames.encode, messages))
    for size in (1, 2, 3, 5, 64, len(data)):
        got = [message for start in range(0, len(data), size) for message in frames.feed(data[start : start + size])]
        assert got == messages, f"cut every {size} bytes"
    assert isinstance(got[0], RequestAdded) or isinstance(got[0].spec.params.logit_bias, LogitBias)  # type: ignore[attr-defined]


class Loading:
    """A place whose process has connected and never says that it is ready."""

    is_remote = False

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        ours, self._theirs = socket.socketpair()
        await asyncio.get_running_loop().create_connection(line, sock=ours)

    def end(self, *, at_once: bool) -> None:
        assert at_once, "it reads weights and would not listen"
        self._theirs.close()

    def exit_reason(self) -> str:
        return "scripted"


def test_a_start_that_is_given_up_says_nothing(folder: Path) -> None:
    """A signal while weights were read printed a traceback: the connection's end asked a cancelled future for its
    error."""
    said = list[dict[str, Any]]()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        texts = load_text_processor(open_source(str(folder)))
        process = EngineProcess(EngineStart(str(folder), SETTINGS), texts, 0, None, Loading)
        begun = asyncio.create_task(process.begin())
        while process._line is None:
            await asyncio.sleep(0)
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun
        while process._line is not None:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert not said
