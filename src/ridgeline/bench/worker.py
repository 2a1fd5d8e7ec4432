"""Worker: a process of a fleet. Its job comes in by standard input, what became of it goes out by standard output."""

import asyncio
import signal
import sys
from typing import IO

import msgspec

from ridgeline.bench.fleet import framed, progress_of, read_message, run_part
from ridgeline.bench.job import Job
from ridgeline.bench.load import StopRun
from ridgeline.traffic.record import Record


async def _work(out: IO[bytes]) -> None:
    """Read the job, say that it is read, begin when told to; give up when standard input ends."""
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    job = msgspec.msgpack.decode((await read_message(reader))[1], type=Job)
    _tell(out, b".")
    start = msgspec.msgpack.decode((await read_message(reader))[1], type=int)

    def watch(records: list[Record]) -> None:
        if reader.at_eof():
            raise StopRun("another process gave up")
        _tell(out, framed(b"p", progress_of(records)))

    _tell(out, framed(b"r", await run_part(job, start, watch)))


def _tell(out: IO[bytes], message: bytes) -> None:
    out.write(message)
    out.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides
    asyncio.run(_work(sys.stdout.buffer))
