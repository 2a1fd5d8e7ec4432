"""Load: many requests, sent when they are intended to be (open loop) or when their user is free again (closed loop)."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ridgeline.insight.bench.job import LoadJob, LoadPattern
from ridgeline.insight.bench.prompt_sources import PromptSource, Session, body_of
from ridgeline.insight.bench.request_sender import RequestSender
from ridgeline.insight.traffic import arrivals
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.insight.traffic.series import ttfts_by_arrival, under_way
from ridgeline.insight.traffic.stationarity import judge_stationarity
from ridgeline.insight.traffic.workload_trace import TraceRequest

_TICK = 1.0  # seconds between two looks at what became of requests
_ENOUGH_TO_FAIL = 20  # requests over before their failures end a run
_ENOUGH_TO_OVERLOAD = 10.0  # seconds before a server is said to fall behind
_LOOKS = 3  # in a row that must find it so: a server that keeps up has a bad moment too
Watch = Callable[[list[RequestRecord]], None]


class LoadGenerator:
    """A process's part of a job. records: of all that was sent or was to be, in the order of their moments. stopped:
    why it was given up, empty where it was not.
    """

    def __init__(self, job: LoadJob, source: PromptSource, asker: RequestSender) -> None:
        self.job, self.source, self.asker = job, source, asker
        self.records: list[RequestRecord] = []
        self.stopped = ""
        self._behind = 0  # looks in a row that found the server falling behind
        self._places = None if job.load.most_under_way is None else asyncio.Semaphore(_share(job, "most_under_way"))

    async def run(self, watch: Watch | None = None) -> None:
        """Send everything and wait for the answers. watch: called with the records every second; raising StopRun in it
        gives the run up. Raises ValueError for data that turn out to be none.
        """
        sending = asyncio.create_task(self._open() if self.job.load.users is None else self._closed())
        try:
            while not (await asyncio.wait([sending], timeout=_TICK))[0] and not self.stopped:
                self.stopped = self._reason_to_stop()
                if watch is not None:
                    watch(self.records)
        except StopRun as stop:
            self.stopped = stop.reason
        finally:
            sending.cancel()  # of no effect where it is done
            await asyncio.wait([sending])
        if not sending.cancelled() and isinstance(error := sending.exception(), BaseExceptionGroup):
            raise error.exceptions[0]

    # -- open loop ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Each session at its own moment, whatever became of those before it."""
        async with asyncio.TaskGroup() as tasks:
            for index, intended, item in self._schedule():
                session = self.source.session(index, item)  # before its moment, so that it takes no time then
                body = body_of(self.job.target, [], session.turns[0])
                begun = await self.asker.aim(intended)
                tasks.create_task(self._hold(index, session, body, intended, begun))

    def _schedule(self) -> Iterator[tuple[int, int, TraceRequest | None]]:
        """This process's sessions with their moments: of the one schedule that all of them go through."""
        items = self.source.items()
        for index, (moment, item) in enumerate(arrival_times(self.job.load, items)):
            if index == self.job.load.requests or moment / 1e9 >= (self.job.load.seconds or float("inf")):
                return
            if index % self.job.processes == self.job.process:
                yield index, moment, item

    # -- closed loop --------------------------------------------------------------------------------------------------

    async def _closed(self) -> None:
        """Users who ask again when they have their answer."""
        sessions = islice(enumerate(self.source.items()), self.job.process, self.job.load.requests, self.job.processes)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_share(self.job, "users")):
                tasks.create_task(self._user(sessions))

    async def _user(self, sessions: Iterator[tuple[int, TraceRequest | None]]) -> None:
        await self.asker.clock.until(self.asker.start)
        for index, item in sessions:
            session = self.source.session(index, item)
            body = body_of(self.job.target, [], session.turns[0])
            now = self.asker.now()
            if now / 1e9 >= (self.job.load.seconds or float("inf")):
                return
            await self._hold(index, session, body, now)

    # -- both ---------------------------------------------------------------------------------------------------------

    async def _hold(self, index: int, session: Session, body: bytes, intended: int, begun: int | None = None) -> None:
        """A conversation, its first turn being `body`. Its later turns are intended when the user has thought about the
        answer before. begun: as Asker.ask.
        """
        said: list[dict[str, Any]] = []
        for place, turn in enumerate(session.turns):
            record = RequestRecord(index, intended, intended, session=index, turn=place, process=self.job.process)
            self.records.append(record)
            body = body_of(self.job.target, said, turn) if place else body
            text = await self._in_place(body, record, begun if place == 0 else None)
            if self.job.load.users is not None and record.sent is not None:
                record.intended = record.sent  # nothing was scheduled: until then the user was thinking
            if record.outcome != "ok" or place + 1 == len(session.turns):
                return
            said += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": text}]
            intended = self.asker.now() + round(self.job.data.think * 1e9)
            await self.asker.clock.until(self.asker.start + intended)

    async def _in_place(self, body: bytes, record: RequestRecord, begun: int | None) -> str:
        """Ask when there is a free place, where places are limited."""
        if self._places is None:
            return await self.asker.ask(body, record, begun)
        async with self._places:
            record.ready = max(record.intended, self.asker.now())
            return await self.asker.ask(body, record)

    def _reason_to_stop(self) -> str:
        over = [record for record in self.records if record.ended is not None]
        failed = sum(record.outcome == "failed" for record in over)
        if len(over) >= _ENOUGH_TO_FAIL and failed > self.job.load.most_failed * len(over):
            return f"{failed} of the first {len(over)} requests failed"
        if self.job.load.stop_overloaded:
            self._behind = self._behind + 1 if self._overloaded() else 0
        return "the server falls behind" if self._behind >= _LOOKS else ""

    def _overloaded(self) -> bool:
        now = self.asker.now()
        if now / 1e9 < _ENOUGH_TO_OVERLOAD:
            return False
        rate = len(self.records) / (now / 1e9)
        found = judge_stationarity(under_way(self.records, now), ttfts_by_arrival(self.records), rate)
        return found is not None and found.overloaded


class StopRun(Exception):
    """Somebody who watches a run wants it given up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def arrival_times(load: LoadPattern, items: Iterator[TraceRequest | None]) -> Iterator[tuple[int, TraceRequest | None]]:
    """What is asked with the moment at which it is: of a trace as recorded, else as the arrivals are drawn."""
    if load.arrivals == "trace":
        return _replayed(items, load.speed)
    if load.arrivals == "gamma":
        return zip(arrivals.gamma(load.rate, load.burstiness, load.seed), items, strict=False)
    drawn = arrivals.poisson(load.rate, load.seed) if load.arrivals == "poisson" else arrivals.constant(load.rate)
    return zip(drawn, items, strict=False)


def _replayed(items: Iterator[TraceRequest | None], speed: float) -> Iterator[tuple[int, TraceRequest | None]]:
    for item in items:
        assert item is not None, "only a trace has moments of its own"
        yield round(item.at / speed), item


def _share(job: LoadJob, name: str) -> int:
    """This process's share of a number: they differ by one at most, and add up."""
    whole = getattr(job.load, name)
    return len(range(job.process, whole, job.processes))
