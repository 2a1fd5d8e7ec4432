"""A pool of client processes that share one benchmark job and start at the same time."""

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

_HEAD_START = 100_000_000  # nanoseconds in which all processes receive the start time
_READ = 1 << 16
M = TypeVar("M")


class ClientResult(msgspec.Struct, tag=True):
    """The result of one client process's part of a job."""

    records: list[RequestRecord]
    stopped: str
    """The reason why the process stopped early; empty if it did not."""
    cpu: float
    """The seconds of CPU time that the client process used."""
    wall: float
    """The seconds of wall time that the client process took."""


class ClientProgress(msgspec.Struct, tag=True):
    """The progress of a client process: requests due, ended, and failed."""

    sent: int
    """The number of requests that the process has sent or is about to send once there is a free slot."""
    over: int
    """The number of these requests that have ended."""
    bad: int
    """The number of ended requests that failed or were rejected."""


OnProgress = Callable[[ClientProgress], None]


async def run(job: LoadJob, processes: int, on_progress: OnProgress) -> list[ClientResult]:
    """Run a benchmark job with a number of client processes and return their results.

    Args:
        job: The job.
        processes: The number of processes.
        on_progress: Called with the progress of all processes together, every second and for each process.

    Raises:
        ValueError: If the prompt data cannot be read, or a process dies.
    """
    if processes == 1:
        return [await run_part(job, time.perf_counter_ns(), lambda records: on_progress(progress_of(records)))]
    open_prompts(job.data)  # reports unreadable data once, not in each process
    jobs = [msgspec.structs.replace(job, process=rank, processes=processes) for rank in range(processes)]
    workers = await asyncio.gather(*(ClientWorker.start() for _ in jobs))
    try:
        await asyncio.gather(*(worker.prepare(part) for worker, part in zip(workers, jobs, strict=True)))
        start = time.perf_counter_ns() + _HEAD_START
        return await asyncio.gather(*(worker.run(start, workers, on_progress) for worker in workers))
    finally:
        await asyncio.gather(*(worker.end() for worker in workers))


async def run_part(job: LoadJob, start: int, watch: Callable[[list[RequestRecord]], None]) -> ClientResult:
    """Run this process's part of a benchmark job, starting at a given time of the machine's clock."""
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
    """Return how many requests were due, ended, and failed or were rejected, counted from their records."""
    over = [record for record in records if record.ended is not None]
    return ClientProgress(len(records), len(over), sum(record.outcome != "ok" for record in over))


# -- processes --------------------------------------------------------------------------------------------------------


class ClientReady(msgspec.Struct, tag=True):
    """The message by which a client process reports that it has read its benchmark job."""


class ClientStart(msgspec.Struct, tag=True):
    """The message that makes a client process start its job at a time of the machine's clock, in nanoseconds."""

    at: int


ToWorker = LoadJob | ClientStart
FromWorker = ClientReady | ClientProgress | ClientResult


class Inbox(Generic[M]):
    """A stream of framed messages, whose types are those of the union `types`."""

    def __init__(self, stream: asyncio.StreamReader, types: Any) -> None:
        self.stream = stream
        self._frames: MessageCodec[M] = MessageCodec(types)
        self._messages: deque[M] = deque()

    async def next(self) -> M | None:
        """Wait for the next message and return it; None if the stream has ended."""
        while not self._messages:
            data = await self.stream.read(_READ)
            if not data:
                return None
            self._messages += self._frames.feed(data)
        return self._messages.popleft()


class ClientWorker:
    """A client process that runs a part of a job (`client_worker.py`), with its last reported progress."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._into = process, process.stdin
        self._inbox: Inbox[FromWorker] = Inbox(process.stdout, FromWorker)
        self._orders: MessageCodec[ToWorker] = MessageCodec(ToWorker)
        self.progress = ClientProgress(0, 0, 0)

    @classmethod
    async def start(cls) -> "ClientWorker":
        """Start a client process without a job."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ridgeline.insight.bench.client_worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def prepare(self, job: LoadJob) -> None:
        """Send the process its job, and wait until it has read it.

        Raises:
            ValueError: If the process dies.
        """
        self._into.write(self._orders.encode(job))
        assert isinstance(await self._next(), ClientReady)

    async def run(self, start: int, all_workers: "Sequence[ClientWorker]", on_progress: OnProgress) -> ClientResult:
        """Start the job at a given time and wait for its result; if this process stops early, stop all others.

        Raises:
            ValueError: If the process dies.
        """
        self._into.write(self._orders.encode(ClientStart(start)))
        while not isinstance(message := await self._next(), ClientResult):
            assert isinstance(message, ClientProgress)
            self.progress = message
            on_progress(_added([worker.progress for worker in all_workers]))
        if message.stopped:
            for worker in all_workers:
                worker.stop()
        return message

    async def _next(self) -> FromWorker:
        message = await self._inbox.next()
        if message is None:
            code = await self._process.wait()
            raise ValueError(f"a client process ended unexpectedly (exit code {code}); try fewer --processes")
        return message

    def stop(self) -> None:
        """Stop a client process's benchmark run early, by closing the process's standard input."""
        self._into.close()

    async def end(self) -> None:
        """Stop the client process, and kill it if it does not exit within 5 s."""
        self.stop()
        with suppress(ProcessLookupError):
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def _added(parts: Sequence[ClientProgress]) -> ClientProgress:
    return ClientProgress(sum(p.sent for p in parts), sum(p.over for p in parts), sum(p.bad for p in parts))
