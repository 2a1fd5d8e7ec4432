"""A load generator that sends requests at their intended times (open loop) or when a user is free (closed loop)."""

import asyncio
import random
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
from ridgeline.insight.traffic.think_time import parse_think_time
from ridgeline.insight.traffic.workload_trace import TraceRequest

_TICK = 1.0  # seconds between two checks of the requests
_ENOUGH_TO_FAIL = 20  # ended requests before failures stop a run
_ENOUGH_TO_OVERLOAD = 10.0  # seconds before a server can count as falling behind
_LOOKS = 3  # consecutive checks that must agree, because a server that keeps up may be slow for a moment
Watch = Callable[[list[RequestRecord]], None]


class LoadGenerator:
    """A generator that sends one process's part of a benchmark job and records the requests.

    `records` holds all requests that were or should have been sent, in the order in which they became due. `stopped` is
    the reason why the run stopped early, or empty.
    """

    def __init__(self, job: LoadJob, source: PromptSource, sender: RequestSender) -> None:
        self.job, self.source, self.sender = job, source, sender
        self.records: list[RequestRecord] = []
        self.stopped = ""
        self._think = parse_think_time(job.data.think, "--think")
        self._behind = 0  # consecutive checks that found the server falling behind
        self._places = None if job.load.most_under_way is None else asyncio.Semaphore(_share(job, "most_under_way"))

    async def run(self, watch: Watch | None = None) -> None:
        """Send all requests and wait for the responses.

        Args:
            watch: Called with the records every second; it may raise StopRun to stop the run.

        Raises:
            ValueError: If prompt data turns out to be invalid.
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
            sending.cancel()  # has no effect if it is done
            await asyncio.wait([sending])
        if not sending.cancelled() and isinstance(error := sending.exception(), BaseExceptionGroup):
            raise error.exceptions[0]

    # -- open loop ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Start each conversation at its intended time, whether or not earlier ones have ended."""
        async with asyncio.TaskGroup() as tasks:
            for index, intended, item in self._schedule():
                session = self.source.session(index, item)  # built before `aim` waits, to save time afterwards
                body = body_of(self.job.target, [], session.turns[0])
                begun = await self.sender.aim(intended)
                tasks.create_task(self._hold(index, session, body, intended, begun))

    def _schedule(self) -> Iterator[tuple[int, int, TraceRequest | None]]:
        """Yield this process's sessions with their times, from the schedule that all processes share."""
        items = self.source.items()
        for index, (moment, item) in enumerate(arrival_times(self.job.load, items)):
            if index == self.job.load.requests or moment / 1e9 >= (self.job.load.seconds or float("inf")):
                return
            if index % self.job.processes == self.job.process:
                yield index, moment, item

    # -- closed loop --------------------------------------------------------------------------------------------------

    async def _closed(self) -> None:
        """Run users who send their next request after a response."""
        sessions = islice(enumerate(self.source.items()), self.job.process, self.job.load.requests, self.job.processes)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_share(self.job, "users")):
                tasks.create_task(self._user(sessions))

    async def _user(self, sessions: Iterator[tuple[int, TraceRequest | None]]) -> None:
        await self.sender.clock.until(self.sender.start)
        for index, item in sessions:
            session = self.source.session(index, item)
            body = body_of(self.job.target, [], session.turns[0])
            now = self.sender.now()
            if now / 1e9 >= (self.job.load.seconds or float("inf")):
                return
            await self._hold(index, session, body, now)

    # -- both ---------------------------------------------------------------------------------------------------------

    async def _hold(self, index: int, session: Session, body: bytes, intended: int, begun: int | None = None) -> None:
        """Send all turns of a conversation, each after the response to the previous one.

        The intended time of a later turn is the previous response plus the think time.

        Args:
            index: The session's number.
            session: The turns.
            body: The request body of the first turn.
            intended: The intended time of the first turn.
            begun: When sending the first turn began, as for `RequestSender.send`.
        """
        messages: list[dict[str, Any]] = []
        for place, turn in enumerate(session.turns):
            record = RequestRecord(index, intended, intended, session=index, turn=place, process=self.job.process)
            self.records.append(record)
            body = body_of(self.job.target, messages, turn) if place else body
            text = await self._in_place(body, record, begun if place == 0 else None)
            if self.job.load.users is not None and record.sent is not None:
                record.intended = record.sent  # a closed loop schedules nothing: the user was thinking until then
            if record.outcome != "ok" or place + 1 == len(session.turns):
                return
            messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": text}]
            think = self._think.draw(random.Random(f"think/{self.job.data.seed}/{index}/{place}"))
            intended = self.sender.now() + think
            await self.sender.clock.until(self.sender.start + intended)

    async def _in_place(self, body: bytes, record: RequestRecord, begun: int | None) -> str:
        """Send a request once there is a free slot, if concurrency is limited."""
        if self._places is None:
            return await self.sender.send(body, record, begun)
        async with self._places:
            record.ready = max(record.intended, self.sender.now())
            return await self.sender.send(body, record)

    def _reason_to_stop(self) -> str:
        over = [record for record in self.records if record.ended is not None]
        failed = sum(record.outcome == "failed" for record in over)
        if len(over) >= _ENOUGH_TO_FAIL and failed > self.job.load.most_failed * len(over):
            return f"{failed} of the first {len(over)} requests failed"
        if self.job.load.stop_overloaded:
            self._behind = self._behind + 1 if self._overloaded() else 0
        return "the server falls behind" if self._behind >= _LOOKS else ""

    def _overloaded(self) -> bool:
        now = self.sender.now()
        if now / 1e9 < _ENOUGH_TO_OVERLOAD:
            return False
        rate = len(self.records) / (now / 1e9)
        found = judge_stationarity(under_way(self.records, now), ttfts_by_arrival(self.records), rate)
        return found is not None and found.overloaded


class StopRun(Exception):
    """An exception by which the watcher of a run stops it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def arrival_times(load: LoadPattern, items: Iterator[TraceRequest | None]) -> Iterator[tuple[int, TraceRequest | None]]:
    """Return the sessions with their intended times: as recorded in a trace, or drawn from the arrival process."""
    if load.arrivals == "trace":
        return _replayed(items, load.speed)
    if load.arrivals == "gamma":
        return zip(arrivals.gamma(load.rate, load.burstiness, load.seed), items, strict=False)
    drawn = arrivals.poisson(load.rate, load.seed) if load.arrivals == "poisson" else arrivals.constant(load.rate)
    return zip(drawn, items, strict=False)


def _replayed(items: Iterator[TraceRequest | None], speed: float) -> Iterator[tuple[int, TraceRequest | None]]:
    for item in items:
        assert item is not None, "only a trace has arrival times"
        yield round(item.at / speed), item


def _share(job: LoadJob, name: str) -> int:
    """Return this client process's share of the job's users or concurrent requests; shares differ by at most one."""
    whole = getattr(job.load, name)
    return len(range(job.process, whole, job.processes))
