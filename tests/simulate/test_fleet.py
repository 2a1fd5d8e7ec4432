"""Several replicas: nothing is lost between them, and routers do there what they are known for."""

import numpy as np
import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_export import per_second
from ridgeline.insight.simulate.simulation_metrics import measure
from ridgeline.insight.traffic.arrivals import constant, poisson
from ridgeline.insight.traffic.lengths import Fixed, LogNormal, Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import machine, simulated
from support.planned import LLAMA_3_8B, case

SMALL = machine(Limits(tokens=512, requests=16), 2000, case(LLAMA_3_8B))


def fleet(router: str, age: float = 0.0, replicas: int = 4, rate: float = 60.0, count: int = 400) -> RunLog:
    """Prompts of very different lengths, at a rate that keeps four busy."""
    requests = bounded(draw_requests(poisson(rate, 2), LogNormal(600, 1.0), Uniform(5, 30), 2), count, None)
    return run(SMALL, OpenLoop(requests), fleet=SimulatedFleet(replicas, router, round(age * 1e9), 1))


def mean_ttft(log: RunLog) -> float:
    found = measure(log, None, open_loop=True).latencies["TTFT"]
    assert found is not None
    return found.mean


@pytest.mark.parametrize("router", ["two", "least", "round-robin", "random", "prefix"])
def test_nothing_is_lost(router: str) -> None:
    """Each request is served once, where it was sent; all memory is given back; equal runs are equal."""
    log = fleet(router, 0.05, count=120)
    found = Columns(log)
    assert found.ok.all()
    assert log.totals is not None
    assert (log.totals.left, log.totals.held) == (0, 0)
    assert set(log.requests.replica) == {0, 1, 2, 3} == set(log.steps.replica)
    for place in range(4):
        own = np.asarray(log.steps.replica) == place
        started, took = np.asarray(log.steps.started)[own], np.asarray(log.steps.took)[own]
        assert (started[1:] >= (started + took)[:-1]).all(), "a replica takes one step at a time"
    assert list(fleet(router, 0.05, count=120).requests.last) == list(log.requests.last)


def test_a_fleet_of_one_is_a_replica() -> None:
    requests = [TraceRequest(at * 10**7, 200, 20) for at in range(30)]
    one = run(SMALL, OpenLoop(requests), fleet=SimulatedFleet(1, "least", 10**6, 1))
    assert list(one.requests.last) == list(simulated(requests, SMALL).requests.last)


def test_old_news_make_the_best_router_the_worst() -> None:
    """Where signals are fresh the least loaded is best; half a second old, all go to one until the next: two choices
    take a fraction of its wait."""
    fresh, two = mean_ttft(fleet("least")), mean_ttft(fleet("two"))
    assert fresh < two < mean_ttft(fleet("random"))
    stale, stale_two = mean_ttft(fleet("least", 0.5)), mean_ttft(fleet("two", 0.5))
    assert stale > 3 * fresh
    assert stale > 1.5 * stale_two


def test_prefixes_are_found_where_they_were_sent() -> None:
    """Eight system prompts over four replicas: affinity computes each once, random choice on every replica."""
    asked = [
        TraceRequest(at * 3 * 10**7, 480, 4, tuple(f"{at * 7 % 8}/{block}" for block in range(28)), 16)
        for at in range(80)
    ]
    hits = {
        router: sum(run(SMALL, OpenLoop(asked), fleet=SimulatedFleet(4, router, 0, 1)).requests.cached)
        for router in ("prefix", "random")
    }
    assert hits["prefix"] == (80 - 8) * 448
    assert hits["random"] < hits["prefix"]


def test_users_are_dealt_too_and_seconds_add_up() -> None:
    asked = draw_requests(constant(1.0), Fixed(100), Fixed(10), 1)
    log = run(
        SMALL,
        ClosedLoop(8, ThinkTime(), bounded(asked, 80, None), None, 1),
        fleet=SimulatedFleet(2, "round-robin", 0, 1),
    )
    metrics = measure(log, None, open_loop=False)
    assert metrics.counts["ok"] == 80
    assert 0.5 < metrics.steps.busy <= 1
    seconds = per_second(log)
    assert sum(seconds["tokens"]) == 800
    assert max(seconds["running"]) == pytest.approx(8, rel=0.15)
