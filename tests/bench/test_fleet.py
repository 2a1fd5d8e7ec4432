"""Client processes: how many there are, and what becomes of a job when one of them does not live to do its part."""

import asyncio

import pytest

from bench.test_load import job
from ridgeline.insight.bench import client_pool
from ridgeline.insight.bench.bench_run import run
from ridgeline.insight.bench.client_pool import ClientResult, ClientWorker, OnProgress
from ridgeline.insight.bench.job import LoadJob, LoadPattern


@pytest.mark.parametrize(
    ("processes", "cores", "load", "counts"),
    [
        (2, 1, LoadPattern(), [2]),
        (3, 8, LoadPattern(users=2), [2]),
        (3, 8, LoadPattern(most_under_way=1), [1]),
        (None, 8, LoadPattern(), [1, 8]),
        (None, 8, LoadPattern(users=3), [1, 3]),
        (None, 1, LoadPattern(), [1]),
    ],
)
def test_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch, processes: int | None, cores: int, load: LoadPattern, counts: list[int]
) -> None:
    """As many as are asked for, each with a user or a place; else one, and where that was busy again with more, one a
    core at most."""
    ran = []

    async def busy(job: LoadJob, count: int, told: OnProgress) -> list[ClientResult]:
        ran.append(count)
        return [ClientResult([], "", 4.0, 1.0)]

    monkeypatch.setattr(client_pool, "run", busy)
    asyncio.run(run(job(load), processes, cores, None, lambda text: None))
    assert ran == counts


def test_a_process_that_dies_is_said_in_a_line() -> None:
    async def scene() -> None:
        worker = await ClientWorker.start()
        try:
            worker._process.kill()
            await worker.prepare(job(LoadPattern(users=1, requests=1)))
        finally:
            await worker.end()

    with pytest.raises(ValueError, match=r"ended unexpectedly \(exit code -9\)"):
        asyncio.run(scene())
