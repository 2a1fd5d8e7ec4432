"""Fleet: one job, in this process or shared between several that start at the same moment."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from ridgeline.insight.bench.clock import WallClock
from ridgeline.insight.bench.job import LoadJob
from ridgeline.insight.bench.load_generator import LoadGenerator
from ridgeline.insight.bench.prompt_sources import open_prompts
from ridgeline.insight.bench.request_sender import RequestSender
from ridgeline.insight.bench.transport import HttpTransport
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.util.frames import MessageCodec

_HEAD_START = 100_000_000  # nanoseconds that all processes have to hear when the run starts
_READ = 1 << 16
M = TypeVar("M")


class ClientResult(msgspec.Struct, tag=True):
    """What a process did of a job. stopped: why it gave up, empty where it did not. cpu: seconds of processor that it
    took, wall: seconds that went by.
    """

    records: list[RequestRecord]
    stopped: str
    cpu: float
    wall: float


class ClientProgress(msgspec.Struct, tag=True):
    """How far a process is: requests sent, and over, and of those the ones that failed or were rejected."""

    sent: int
    over: int
    bad: int


OnProgress = Callable[[ClientProgress], None]


async def run(job: LoadJob, processes: int, told: OnProgress) -> list[ClientResult]:
    """Do a job with so many processes. told: called every second with how far all of them are.

    Raises ValueError for data that cannot be read, and where a process dies.
    """
    if processes == 1:
        return [await run_part(job, time.perf_counter_ns(), lambda records: told(progress_of(records)))]
    open_prompts(job.data)  # data that cannot be read are refused once, and not by each process
    jobs = [msgspec.structs.replace(job, process=rank, processes=processes) for rank in range(processes)]
    workers = await asyncio.gather(*(ClientWorker.start() for _ in jobs))
    try:
        await asyncio.gather(*(worker.prepare(part) for worker, part in zip(workers, jobs, strict=True)))
        start = time.perf_counter_ns() + _HEAD_START
        return await asyncio.gather(*(worker.run(start, workers, told) for worker in workers))
    finally:
        await asyncio.gather(*(worker.end() for worker in workers))


async def run_part(job: LoadJob, start: int, watch: Callable[[list[RequestRecord]], None]) -> ClientResult:
    """Do this process's part of a job, from a moment of the machine's clock on."""
    clock = WallClock()
    transport = HttpTransport(job.target.url, job.target.headers, clock)
    load = LoadGenerator(job, open_prompts(job.data), RequestSender(transport, clock, start, job.target.timeout))
    await clock.until(start)
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        await load.run(watch)
    finally:
        await transport.close()
    return ClientResult(load.records, load.stopped, time.process_time() - cpu, time.perf_counter() - wall)


def progress_of(records: Sequence[RequestRecord]) -> ClientProgress:
    """How far a run is."""
    over = [record for record in records if record.ended is not None]
    return ClientProgress(len(records), len(over), sum(record.outcome != "ok" for record in over))


# -- processes --------------------------------------------------------------------------------------------------------


class ClientReady(msgspec.Struct, tag=True):
    """A process has read its job."""


class ClientStart(msgspec.Struct, tag=True):
    """A process is to begin at a moment of the machine's clock, in nanoseconds."""

    at: int


ToWorker = LoadJob | ClientStart
FromWorker = ClientReady | ClientProgress | ClientResult


class Inbox(Generic[M]):
    """The messages that come over a stream, one after another. types: theirs."""

    def __init__(self, stream: asyncio.StreamReader, types: Any) -> None:
        self.stream = stream
        self._frames: MessageCodec[M] = MessageCodec(types)
        self._messages: deque[M] = deque()

    async def next(self) -> M | None:
        """The next one; None where the stream has ended."""
        while not self._messages:
            data = await self.stream.read(_READ)
            if not data:
                return None
            self._messages += self._frames.feed(data)
        return self._messages.popleft()


class ClientWorker:
    """Another process that does a part of a job (`client_worker.py`), and how far it was when it said so last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._into = process, process.stdin
        self._inbox: Inbox[FromWorker] = Inbox(process.stdout, FromWorker)
        self._orders: MessageCodec[ToWorker] = MessageCodec(ToWorker)
        self.progress = ClientProgress(0, 0, 0)

    @classmethod
    async def start(cls) -> "ClientWorker":
        """A process without a job."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ridgeline.insight.bench.client_worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def prepare(self, job: LoadJob) -> None:
        """Give it its job, and wait until it has read that. Raises ValueError where it dies."""
        self._into.write(self._orders.encode(job))
        assert isinstance(await self._next(), ClientReady)

    async def run(self, start: int, all_workers: "Sequence[ClientWorker]", told: OnProgress) -> ClientResult:
        """Let it begin at a moment, and wait for what it did. Where it gives up, the others are told to.

        Raises ValueError where it dies.
        """
        self._into.write(self._orders.encode(ClientStart(start)))
        while not isinstance(message := await self._next(), ClientResult):
            assert isinstance(message, ClientProgress)
            self.progress = message
            told(_added([worker.progress for worker in all_workers]))
        if message.stopped:
            for worker in all_workers:
                worker.stop()
        return message

    async def _next(self) -> FromWorker:
        message = await self._inbox.next()
        if message is None:
            code = await self._process.wait()
            raise ValueError(f"a client process ended too early (exit code {code}); try fewer --processes")
        return message

    def stop(self) -> None:
        """Tell it to give up, by closing its standard input."""
        self._into.close()

    async def end(self) -> None:
        """Let it go; one that does not is killed."""
        self.stop()
        with suppress(ProcessLookupError):
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def _added(parts: Sequence[ClientProgress]) -> ClientProgress:
    return ClientProgress(sum(p.sent for p in parts), sum(p.over for p in parts), sum(p.bad for p in parts))
