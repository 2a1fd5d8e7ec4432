"""A client process of a benchmark, which receives its job on standard input and reports on standard output."""

import asyncio
import signal
import sys
from typing import IO

from ridgeline.insight.bench.client_pool import (
    ClientReady,
    ClientStart,
    FromWorker,
    Inbox,
    ToWorker,
    progress_of,
    run_part,
)
from ridgeline.insight.bench.job import LoadJob
from ridgeline.insight.bench.load_generator import StopRun
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.util.frames import MessageCodec


async def _work(out: IO[bytes]) -> None:
    """Read a benchmark job from standard input, run it once the start message arrives, stop early if input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    orders: Inbox[ToWorker] = Inbox(reader, ToWorker)
    frames: MessageCodec[FromWorker] = MessageCodec(FromWorker)

    def send(message: FromWorker) -> None:
        out.write(frames.encode(message))
        out.flush()

    def watch(records: list[RequestRecord]) -> None:
        if reader.at_eof():
            raise StopRun("another client process ended")
        send(progress_of(records))

    job = await orders.next()
    if not isinstance(job, LoadJob):  # the run was stopped before it started
        return
    send(ClientReady())
    start = await orders.next()
    if isinstance(start, ClientStart):
        send(await run_part(job, start.at, watch))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    asyncio.run(_work(sys.stdout.buffer))
