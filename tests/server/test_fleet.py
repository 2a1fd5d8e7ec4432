"""A fleet's own decisions, its engines scripted: who gets a request, what is tried again, who comes and goes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from ridgeline.engine.async_llm import EngineDied, EngineRestarting
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason
from ridgeline.engine.worker.engine_messages import EngineInfo, first_of, replica_of
from ridgeline.insight.traffic.routers import REQUEST_TOKENS, router_named
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.server.replicas.engine_fleet import EngineFleet, EngineReplica, sum_stats
from ridgeline.server.replicas.replica_supervisor import ReplicaSupervisor
from server.scripted import INFO

PARAMS = SamplingParams(max_tokens=4)
SECOND = 1_000_000_000


class Texts:
    """Ids are ids."""

    def check_request(self, spec: GenerationRequest) -> None: ...


@dataclass(eq=False)
class Engine:
    """An AsyncLLM as a fleet sees it: it does with requests what the test says. asked: of each, how it is told of."""

    info: EngineInfo = INFO
    alive: bool = True
    death_reason: str = ""
    messages_received: int = 0
    num_awaited: int = 0
    restarts: int = 0
    stats: Stats = field(default_factory=Stats)
    texts: Texts = field(default_factory=Texts)
    observers: list[Any] = field(default_factory=list)
    asked: list[Callable[[Event | Exception], None]] = field(default_factory=list)
    left: int = 0
    closed: bool = False

    def submit(self, spec: GenerationRequest, take: Any, **more: Any) -> Callable[[], None]:
        if not self.alive:
            raise EngineRestarting("scripted")
        self.asked.append(take)
        return self._leave

    def _leave(self) -> None:
        self.left += 1

    def close(self) -> None:
        self.closed = True

    def die(self) -> None:
        """As AsyncLLM does: first it is gone, then all hear of it."""
        self.alive, asked, self.asked = False, self.asked, []
        for take in asked:
            take(EngineDied("it was killed"))


def fleet_of(engines: Sequence[Engine], router: str = "least") -> EngineFleet:
    replicas = [EngineReplica(number, engine) for number, engine in enumerate(engines)]  # type: ignore[arg-type]
    return EngineFleet(replicas, lambda: router_named(router, 0))


def submit(fleet: EngineFleet, prompt: Sequence[int] = (1, 2, 3), **more: Any) -> tuple[list[Event | Exception], Any]:
    """What a request is told, and what to call when nobody waits for it."""
    told = list[Event | Exception]()
    return told, fleet.submit(GenerationRequest(prompt, PARAMS, **more), told.append)


def test_the_least_loaded_gets_it_by_prompt_and_choices() -> None:
    first, second = Engine(), Engine()
    fleet = fleet_of([first, second])
    _, leave = submit(fleet, [1] * (2 * REQUEST_TOKENS))
    assert (len(first.asked), fleet.replicas[0].load) == (1, 3 * REQUEST_TOKENS)
    for _ in range(3):
        submit(fleet, [1])
    assert len(second.asked) == 3, "three short ones come to as much"
    submit(fleet)
    assert len(first.asked) == 2
    leave()
    assert (first.left, fleet.replicas[0].load) == (1, 3 + REQUEST_TOKENS)
    second.asked[0](Event(1, 0, finish=FinishReason.STOP))
    assert len(fleet.replicas[1].live) == 2, "an end makes room"


def test_a_prefix_goes_where_it_was_unless_it_is_another_tenants() -> None:
    engines = [Engine(), Engine(), Engine()]
    fleet, page = fleet_of(engines, "prefix"), list(range(INFO.page_size))
    for tail in range(2):
        submit(fleet, [*page, tail])
    with_page = [engine for engine in engines if engine.asked]
    assert [len(engine.asked) for engine in with_page] == [2]
    chosen = {tuple(sent.request.blocks) for replica in fleet.replicas.values() for sent in replica.live}
    submit(fleet, page, cache_salt=b"another")
    submit(fleet, page, adapter="another")
    submit(fleet, page[:-1])
    every = {tuple(sent.request.blocks) for replica in fleet.replicas.values() for sent in replica.live}
    assert len(chosen) == 1
    assert len(every) == 4
    assert () in every, "a prompt of less than a page has no name"


def test_a_request_is_tried_again_once_and_only_before_it_told_anything() -> None:
    engines = [Engine(), Engine(), Engine()]
    fleet = fleet_of(engines)
    quiet, _ = submit(fleet)
    begun, _ = submit(fleet)
    engines[1].asked[0](Event(first_of(1), 0, text="a"))
    engines[1].die()
    assert [type(each) for each in begun] == [Event, EngineDied]
    assert (fleet.retried, len(engines[2].asked)) == (0, 0)
    engines[0].die()
    assert (quiet, fleet.retried, len(engines[2].asked)) == ([], 1, 1)
    engines[2].die()
    assert [type(each) for each in quiet] == [EngineDied], "what kills engines does not kill them all"
    assert fleet.retried == 1
    assert all(replica.load == 0 and not replica.live for replica in fleet.replicas.values())


def test_it_waits_for_an_engine_where_there_is_none_and_may_leave() -> None:
    engine = Engine()
    fleet = fleet_of([engine])
    stays, _ = submit(fleet)
    _, leave = submit(fleet)
    engine.die()
    with pytest.raises(EngineRestarting, match="all engines"):
        submit(fleet)
    leave()
    engine.alive = True
    fleet.deal()
    assert (len(engine.asked), stays) == (1, [])
    engine.asked[0](Event(1, 0, finish=FinishReason.LENGTH))
    assert len(stays) == 1


def test_a_replica_that_drains_gets_nothing_and_goes_when_it_is_empty() -> None:
    async def run() -> None:
        engines = [Engine(), Engine()]
        fleet = fleet_of(engines)
        changes = list[int]()
        fleet.changed.append(lambda: changes.append(fleet.info.requests))
        watch = ReplicaSupervisor(fleet, _never, 30.0)
        submit(fleet)
        _, leave = submit(fleet)
        watch.shrink()
        assert [each.taking for each in fleet.replicas.values()] == [True, False], "of equals the newest"
        for _ in range(4):
            submit(fleet)
        assert [len(engine.asked) for engine in engines] == [5, 1]
        watch.look(0.2)
        assert len(fleet.replicas) == 2
        leave()
        watch.look(0.2)
        assert (list(fleet.replicas), changes) == ([0], [INFO.requests])
        await asyncio.sleep(0.01)
        assert engines[1].closed
        watch.shrink()
        assert [each.taking for each in fleet.replicas.values()] == [True], "the last one stays"

    asyncio.run(run())


async def _never(number: int) -> EngineReplica:
    raise AssertionError(f"nobody asked for replica {number}")


def test_the_law_of_scaling_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up at a look, to where each has its share; down one at a time, after it was calm."""

    async def run() -> None:
        engine, now = Engine(), [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        fleet, started = fleet_of([engine]), list[int]()

        async def start(number: int) -> EngineReplica:
            started.append(number)
            return EngineReplica(number, Engine())  # type: ignore[arg-type]

        watch = ReplicaSupervisor(fleet, start, 30.0, Scaling(1, 3, 2, 10 * SECOND, 60 * SECOND, 0))
        leaves = [submit(fleet)[1] for _ in range(5)]
        watch.look(0.2)
        assert watch.starting == 0, "it is not time to look"
        now[0] += 10
        watch.look(0.2)
        assert watch.starting == 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (started, list(fleet.replicas), watch.starting) == ([1, 2], [0, 1, 2], 0)
        for leave in leaves:
            leave()
        now[0] += 50
        watch.look(0.2)
        assert all(each.taking for each in fleet.replicas.values()), "it is not calm yet"
        for left in (2, 1):
            now[0] += 60
            watch.look(0.2)
            watch.look(0.2)
            assert len(fleet.replicas) == left
        now[0] += 60
        watch.look(0.2)
        assert list(fleet.replicas) == [0]

    asyncio.run(run())


def test_one_that_cannot_be_started_is_told_of_and_tried_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        now = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        fleet, tries = fleet_of([Engine()]), list[int]()

        async def start(number: int) -> EngineReplica:
            tries.append(number)
            raise RuntimeError("there is no room")

        watch = ReplicaSupervisor(fleet, start, 30.0, Scaling(1, 2, 1, SECOND, SECOND, 0))
        for _ in range(3):
            submit(fleet)
        for _ in range(20):
            now[0] += 2
            watch.look(0.2)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert tries == [1, 1], "in 40 seconds"
        assert watch.starting == 0

    asyncio.run(run())
    assert "replica 1 did not start: there is no room" in caplog.text


def test_one_that_died_goes_before_one_that_answers() -> None:
    """The other way round, nobody took requests until it was back."""

    async def run() -> None:
        engines = [Engine(), Engine(), Engine()]
        fleet = fleet_of(engines)
        watch = ReplicaSupervisor(fleet, _never, 30.0)
        engines[0].die()
        watch.look(0.2)
        watch.shrink()
        assert [each.taking for each in fleet.replicas.values()] == [False, True, True]
        watch.look(0.2)
        watch.shrink()
        watch.look(0.2)
        engines[1].die()
        assert (list(fleet.replicas), fleet.alive) == ([1], False)

    asyncio.run(run())


def test_one_that_is_back_gets_requests_at_once() -> None:
    """They were dealt to the others alone until the watch had looked, though it was said to be ready."""
    fleet = fleet_of(engines := [Engine(), Engine()])
    engines[1].die()
    submit(fleet)
    engines[1].alive = True
    assert fleet.replicas[1].state == "ready"
    submit(fleet)
    assert [len(engine.asked) for engine in engines] == [1, 1]


def test_a_fleet_takes_requests_while_one_does_that_stays() -> None:
    fleet = fleet_of(engines := [Engine(), Engine()])
    fleet.replicas[1].taking = False
    fleet.deal()
    assert fleet.alive
    engines[0].die()
    assert not fleet.alive, "the other one finishes what it has"
    with pytest.raises(EngineRestarting):
        submit(fleet)


def test_what_waits_for_an_engine_is_under_way() -> None:
    fleet = fleet_of([engine := Engine()])
    _, leave = submit(fleet)
    submit(fleet)
    assert fleet.under_way == 2
    engine.die()
    assert fleet.under_way == 2
    leave()
    assert fleet.under_way == 1


def test_why_one_cannot_be_started_again_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    watch = ReplicaSupervisor(fleet_of([engine, Engine()]), _never, 30.0)
    engine.alive, engine.death_reason = False, "its process has ended"
    watch.look(0.2)
    engine.death_reason = "it could not be restarted: the folder is gone"
    for _ in range(3):
        watch.look(0.2)
    assert [record.getMessage() for record in caplog.records] == [
        "replica 0 died: its process has ended; it is restarting",
        "replica 0: it could not be restarted: the folder is gone; the server tries again",
    ]


def test_numbers_of_requests_say_whose_they_are() -> None:
    assert [replica_of(first_of(replica)) for replica in (0, 1, 4095)] == [0, 1, 4095]
    assert replica_of(first_of(3) + 10**9) == 3
    assert first_of(4096) < 2**53, "a page reads them as numbers"


def test_stats_add_up() -> None:
    one = Stats(running=1, output_tokens=5, grammar_seconds=0.5, accepted_tokens=3, accepted_at=(2, 1))
    other = Stats(running=2, output_tokens=7, accepted_tokens=4, accepted_at=(4,))
    assert sum_stats([one, other]) == Stats(
        running=3, output_tokens=12, grammar_seconds=0.5, accepted_tokens=7, accepted_at=(6, 1)
    )
    assert sum_stats([]) == Stats()
