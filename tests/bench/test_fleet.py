"""Client processes: what becomes of a job when one of them does not live to do its part."""

import asyncio

import pytest

from bench.test_load import job
from ridgeline.bench.fleet import Worker
from ridgeline.bench.job import Load


def test_a_process_that_dies_is_said_in_a_line() -> None:
    async def scene() -> None:
        worker = await Worker.start()
        try:
            worker._process.kill()
            await worker.prepare(job(Load(users=1, requests=1)))
        finally:
            await worker.end()

    with pytest.raises(ValueError, match=r"ended too early \(exit code -9\)"):
        asyncio.run(scene())
