"""The knee, of a server whose knee is known: requests of 100 ms, one at a time, in virtual time."""

from collections.abc import Coroutine
from typing import Any

import pytest

from bench.test_load import always, job, played
from bench.virtual import MS, tokens
from ridgeline.insight.bench.bench_run import BenchRun, run_of
from ridgeline.insight.bench.client_pool import ClientResult
from ridgeline.insight.bench.job import LoadPattern
from ridgeline.insight.bench.sweep import Sweep, sweep
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.insight.traffic.slo import SLO, parse_slo

EVERY = parse_slo("ttft=101ms")


def at_once(found: Coroutine[Any, Any, Sweep]) -> Sweep:
    """What a sweep found that has nothing to wait for: its runs have loops of their own."""
    with pytest.raises(StopIteration) as ended:
        found.send(None)
    sweep: Sweep = ended.value.value
    return sweep


def swept(start: float, slo: SLO | None = EVERY, requests: int = 200) -> Sweep:
    async def measure(rate: float) -> BenchRun:
        load = LoadPattern(arrivals="constant", rate=rate, requests=requests, stop_overloaded=True)
        return played(job(load), lambda fields, number: (200, tokens(1, 99 * MS, MS)), at_once=1, slo=slo)[0]

    return at_once(sweep(start, measure))


@pytest.mark.parametrize("start", [0.5, 3.0, 9.0])
def test_the_knee_is_found_within_a_tenth(start: float) -> None:
    """Evenly spaced requests of 100 ms all keep to 101 ms up to ten a second, and none for long beyond it."""
    found = swept(start)
    assert found.knee is not None
    assert 9.0 <= found.knee.rate <= 10.0
    rates = [level.rate for level in found.levels]
    assert rates == sorted(rates)
    assert all(bool(level.why) == (level.rate > 10.0) for level in found.levels)
    assert found.shown is found.knee.run
    assert found.reached


def test_without_objectives_the_knee_is_where_it_falls_behind() -> None:
    found = swept(4.0, None, 600)
    assert found.knee is not None
    assert 9.0 <= found.knee.rate <= 10.5
    assert found.ended == "the server falls behind"


def test_a_start_above_the_knee_has_none() -> None:
    found = swept(40.0)
    assert found.knee is None
    assert len(found.levels) == 1
    assert found.shown is found.levels[0].run


def test_a_busy_client_ends_a_sweep() -> None:
    """Of a client at 90 % of a core nobody knows whose latencies it saw."""

    async def measure(rate: float) -> BenchRun:
        moments = [1000 * MS * second for second in range(20)]
        records = [
            RequestRecord(i, at, at, sent=at, chunks=[at + MS], ended=at + MS, output=1, outcome="ok")
            for i, at in enumerate(moments)
        ]
        return run_of(job(LoadPattern(rate=rate)), [ClientResult(records, "", 0.9 if rate > 5 else 0.1, 1.0)], None)

    found = at_once(sweep(1.0, measure))
    assert [level.rate for level in found.levels] == [1.0, 2.0, 4.0, 8.0]
    assert found.ended == "the load generator is the limit"
    assert found.knee is not None
    assert found.knee.rate == 4.0
    assert not found.reached
    assert found.above is found.levels[-1]


def test_a_rate_that_the_clients_lateness_decides_is_undecided() -> None:
    """5 ms late of 103: under 5 %, and yet it is the load generator that keeps nobody within 101 ms."""

    async def measure(rate: float) -> BenchRun:
        load = LoadPattern(arrivals="constant", rate=rate, requests=30)
        return played(job(load), always(first=98 * MS), handing_over=5 * MS, slo=EVERY)[0]

    found = at_once(sweep(1.0, measure))
    assert found.undecided
    assert "the requests that decide" in found.ended
    assert not swept(40.0).undecided


def test_a_burst_is_no_rate_that_a_server_keeps_up() -> None:
    """20 requests of 60 ms, answered all at once: at 64 a second the last came 0.3 s after the first; at 256 all were
    under way together, and nobody knows what would have become of more."""

    async def measure(rate: float) -> BenchRun:
        return played(job(LoadPattern(arrivals="constant", rate=rate, requests=20)), always())[0]

    found = at_once(sweep(16.0, measure))
    assert [level.rate for level in found.levels] == [16.0, 32.0, 64.0, 128.0, 256.0]
    assert "too short to tell" in found.ended
    assert found.knee is not None
    assert found.knee.rate == 128.0
    assert not found.reached
    assert at_once(sweep(1000.0, measure)).undecided


def test_rejections_are_no_good_answers() -> None:
    async def measure(rate: float) -> BenchRun:
        answers = always() if rate < 3 else always(status=429)
        return played(job(LoadPattern(arrivals="constant", rate=rate, requests=50)), answers)[0]

    found = at_once(sweep(2.0, measure))
    assert found.levels[-1].why == "0.0% answered"
    assert found.knee is not None
