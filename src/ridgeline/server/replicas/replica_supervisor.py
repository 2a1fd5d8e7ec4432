"""The supervision of a fleet: it starts and ends engines, logs deaths, and kills engines that hang."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ridgeline.engine.request import NANOSECONDS
from ridgeline.engine.worker.engine_process import EngineProcess
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.server.replicas.engine_fleet import EngineFleet, EngineReplica

LOOK_SECONDS = 0.2
_PAUSE = 30.0  # seconds after a failed start until the next attempt

logger = logging.getLogger("ridgeline.server")

Start = Callable[[int], Awaitable[EngineReplica]]
"""A function that starts the replica with a number; it raises ValueError or RuntimeError with a one-line message."""


@dataclass(slots=True)
class _ReplicaSnapshot:
    """The state of a replica at the supervisor's last check."""

    alive: bool
    """Whether the replica's engine was alive."""
    why: str
    """Why the replica's engine died, or could not be restarted; "" if neither."""
    messages_received: int
    """The number of messages from the replica's engine."""
    still: float = 0.0
    """The seconds for which the replica's engine has been silent although it has unfinished requests."""


class ReplicaSupervisor:
    """A supervisor that checks the engines of a fleet five times a second.

    It logs deaths, kills engines that hang so that they restart, removes drained replicas, and scales their number.
    """

    def __init__(
        self, fleet: EngineFleet, start: Start, stalled_seconds: float, scaling: Scaling | None = None
    ) -> None:
        """Supervise a fleet; `run` performs the checks.

        Args:
            fleet: The replicas.
            start: Starts a further replica.
            stalled_seconds: The silence after which an engine with unfinished requests is killed.
            scaling: The autoscaling rule; None for a fixed number of replicas.
        """
        self.fleet, self._start, self._stalled_seconds, self._scaling = fleet, start, stalled_seconds, scaling
        self._seen: dict[EngineReplica, _ReplicaSnapshot] = {}
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._looked = self._changed = time.monotonic()
        self._not_before = 0.0

    @property
    def starting(self) -> int:
        """The number of replicas that are still starting."""
        return len(self._starting)

    async def run(self) -> None:
        """Check the replicas for ever; on cancellation, end those that are still starting."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self.look(LOOK_SECONDS)
        finally:
            for task in self._starting.values():
                task.cancel()
            await asyncio.gather(*self._starting.values(), return_exceptions=True)

    def look(self, seconds: float) -> None:
        """Check all replicas, `seconds` after the last check, and scale their number."""
        for replica in list(self.fleet.replicas.values()):
            self._look_at(
                replica, self._seen.setdefault(replica, _ReplicaSnapshot(True, replica.llm.death_reason, 0)), seconds
            )
        self._seen = {replica: seen for replica, seen in self._seen.items() if replica.number in self.fleet.replicas}
        self._scale()

    def _look_at(self, replica: EngineReplica, seen: _ReplicaSnapshot, seconds: float) -> None:
        llm = replica.llm
        if llm.alive != seen.alive:
            seen.alive = llm.alive
            if llm.alive:
                logger.warning("replica %d is running again, %s", replica.number, replica.where())
            else:
                logger.warning("replica %d died: %s; it is restarting", replica.number, llm.death_reason)
            self.fleet.deal()
        elif not llm.alive and llm.death_reason != seen.why:
            logger.error("replica %d: %s; the server tries again", replica.number, llm.death_reason)
        seen.why = llm.death_reason
        waits = llm.num_awaited > 0 and llm.alive and llm.messages_received == seen.messages_received
        seen.messages_received, seen.still = llm.messages_received, seen.still + seconds if waits else 0.0
        if seen.still >= self._stalled_seconds:
            seen.still = 0.0
            logger.error(
                "replica %d has run no step for %g s, so the server ends and restarts it",
                replica.number,
                self._stalled_seconds,
            )
            end(replica)
        if not replica.taking and not replica.live:
            self.fleet.remove(replica)
            logger.info("replica %d is removed", replica.number)
            asyncio.get_running_loop().run_in_executor(None, llm.close)

    # -- scaling ------------------------------------------------------------------------------------------------------

    def _scale(self) -> None:
        scaling, now = self._scaling, time.monotonic()
        if scaling is None or now - self._looked < scaling.period * NANOSECONDS:
            return
        self._looked = now
        replicas = self.fleet.replicas.values()
        taking, still = sum(each.taking for each in replicas), round((now - self._changed) / NANOSECONDS)
        change = scaling.change(self.fleet.under_way, taking, len(self._starting), still)
        if change > 0 and now >= self._not_before:
            self.grow(change)
        elif change < 0:
            self.shrink()

    def grow(self, count: int) -> None:
        """Start this many further replicas, with the lowest free numbers."""
        self._changed = time.monotonic()
        for _ in range(count):
            number = next(n for n in range(1 << 12) if n not in self.fleet.replicas and n not in self._starting)
            logger.info("replica %d is starting", number)
            self._starting[number] = asyncio.create_task(self._start_one(number))

    async def _start_one(self, number: int) -> None:
        try:
            replica = await self._start(number)
        except (ValueError, RuntimeError) as error:
            self._not_before = time.monotonic() + _PAUSE
            logger.error("replica %d did not start: %s", number, error)
        else:
            self.fleet.add(replica)
            logger.info("replica %d accepts requests, %s", number, replica.where())
        finally:
            del self._starting[number]

    def shrink(self) -> None:
        """Drain one replica, which is removed once it has no requests.

        It is one whose engine is restarting, else the one with the fewest requests, and the newest among equals. The
        last replica stays.
        """
        taking = [each for each in self.fleet.replicas.values() if each.taking]
        if len(taking) < 2:
            return
        self._changed = time.monotonic()
        least = min(reversed(taking), key=lambda each: (each.llm.alive, len(each.live)))
        least.taking = False
        logger.info(
            "replica %d accepts no more requests; requests still running on it: %d", least.number, len(least.live)
        )
        self.fleet.deal()


def end(replica: EngineReplica) -> None:
    """Kill a replica's process, which is then started again."""
    process = replica.llm.host
    assert isinstance(process, EngineProcess)
    if process.handle is not None:
        process.handle.end(at_once=True)
