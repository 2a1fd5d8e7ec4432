"""Fleet: one job, in this process or shared between several that start at the same moment."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from ridgeline.bench.ask import Asker
from ridgeline.bench.clock import WallClock
from ridgeline.bench.job import Job
from ridgeline.bench.load import LoadRun
from ridgeline.bench.prompts import source_of
from ridgeline.bench.transport import HttpTransport
from ridgeline.traffic.record import Record

_HEAD_START = 100_000_000  # nanoseconds that all processes have to hear when the run starts


class Part(msgspec.Struct):
    """What a process did of a job. stopped: why it gave up, empty where it did not. cpu: seconds of processor that it
    took, wall: seconds that went by."""

    records: list[Record]
    stopped: str
    cpu: float
    wall: float


class Progress(msgspec.Struct):
    """How far a process is: requests sent, and over, and of those the ones that failed or were rejected."""

    sent: int
    over: int
    bad: int


Told = Callable[[Progress], None]


async def run(job: Job, processes: int, told: Told) -> list[Part]:
    """Do a job with so many processes. told: called every second with how far all of them are.

    Raises ValueError for data that cannot be read.
    """
    if processes == 1:
        return [await run_part(job, time.perf_counter_ns(), lambda records: told(progress_of(records)))]
    source_of(job.data)  # what is wrong with it is said by this process
    jobs = [msgspec.structs.replace(job, process=rank, processes=processes) for rank in range(processes)]
    workers = await asyncio.gather(*(Worker.start(one) for one in jobs))
    try:
        start = time.perf_counter_ns() + _HEAD_START
        return await asyncio.gather(*(worker.run(start, workers, told) for worker in workers))
    finally:
        await asyncio.gather(*(worker.end() for worker in workers))


async def run_part(job: Job, start: int, watch: Callable[[list[Record]], None]) -> Part:
    """Do this process's part of a job, from a moment of the machine's clock on."""
    clock = WallClock()
    transport = HttpTransport(job.target.url, job.target.headers, clock)
    load = LoadRun(job, source_of(job.data), Asker(transport, clock, start, job.target.timeout))
    await clock.until(start)
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        await load.run(watch)
    finally:
        await transport.close()
    return Part(load.records, load.stopped, time.process_time() - cpu, time.perf_counter() - wall)


def progress_of(records: Sequence[Record]) -> Progress:
    """How far a run is."""
    over = [record for record in records if record.ended is not None]
    return Progress(len(records), len(over), sum(record.outcome != "ok" for record in over))


# -- processes --------------------------------------------------------------------------------------------------------

_KINDS: dict[bytes, type[Progress] | type[Part]] = {b"p": Progress, b"r": Part}


def framed(kind: bytes, value: object) -> bytes:
    """A message between processes: a letter, the length, the value as msgpack."""
    body = msgspec.msgpack.encode(value)
    return kind + len(body).to_bytes(8, "little") + body


async def read_message(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The letter and the value of the next message. Raises asyncio.IncompleteReadError where there is none."""
    kind = await stream.readexactly(1)
    return kind, await stream.readexactly(int.from_bytes(await stream.readexactly(8), "little"))


class Worker:
    """Another process that does a part of a job (`worker.py`), and what it said last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._into, self._out = process, process.stdin, process.stdout
        self.progress = Progress(0, 0, 0)

    @classmethod
    async def start(cls, job: Job) -> "Worker":
        """A process that has read its job and is ready to begin."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ridgeline.bench.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        worker = cls(process)
        worker._into.write(framed(b"j", job))
        await worker._out.readexactly(1)
        return worker

    async def run(self, start: int, all_workers: "Sequence[Worker]", told: Told) -> Part:
        """Let it begin at a moment, and wait for what it did. Where it gives up, the others are told to."""
        self._into.write(framed(b"s", start))
        while True:
            kind, body = await read_message(self._out)
            found = msgspec.msgpack.decode(body, type=_KINDS[kind])
            if isinstance(found, Part):
                if found.stopped:
                    for worker in all_workers:
                        worker.stop()
                return found
            self.progress = found
            told(_added([worker.progress for worker in all_workers]))

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


def _added(parts: Sequence[Progress]) -> Progress:
    return Progress(sum(p.sent for p in parts), sum(p.over for p in parts), sum(p.bad for p in parts))
