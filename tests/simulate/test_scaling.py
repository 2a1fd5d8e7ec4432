"""Unequal replicas, and replicas that come and go."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.advice import advice
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_export import per_second
from ridgeline.insight.simulate.simulation_findings import SimulationFindings, simulate
from ridgeline.insight.simulate.simulation_metrics import measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.simulate.simulation_report import answer
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Uniform
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.device import HourlyPrice
from ridgeline.price.devices import load_device
from ridgeline.price.plan.scenario import Deployment, ModelCache
from simulate.machines import machine
from support.exact_prices import EXACT
from support.planned import LLAMA_3_8B, card, case, fields

SECOND = 10**9
ON = machine(Limits(tokens=512, requests=16), 2000, case(LLAMA_3_8B))
WAVE = [TraceRequest(round(at * SECOND / 80), 400, 40) for at in range(320)]  # four seconds, eighty a second
LATER = [TraceRequest(20 * SECOND + at * 2 * SECOND, 400, 10) for at in range(20)]  # one in two seconds


def scaled(start_up: float = 1.0, calm: float = 5.0) -> RunLog:
    scaling = Scaling(1, 4, 8, SECOND // 2, round(calm * SECOND), round(start_up * SECOND))
    return run(ON, OpenLoop([*WAVE, *LATER]), fleet=SimulatedFleet(1, "least", scaling=scaling))


@pytest.fixture(scope="module")
def usual() -> RunLog:
    return scaled()


def there(log: RunLog, at: float) -> int:
    return sum(since <= at * SECOND < until for since, until in log.lives)


def test_replicas_come_with_a_wave_and_go_after_it(usual: RunLog) -> None:
    assert Columns(usual).ok.all()
    assert (there(usual, 0), there(usual, 55)) == (1, 1)
    assert max(there(usual, at / 10) for at in range(100)) > 2
    assert measure(usual, None, open_loop=True).replicas == pytest.approx(
        sum(until - since for since, until in usual.lives) / usual.end
    )
    assert usual.totals is not None
    assert (usual.totals.left, usual.totals.held) == (0, 0)


def test_a_run_ends_with_its_last_token_whoever_still_starts() -> None:
    """Replicas that would have taken requests minutes later were paid for until then, on average too."""
    log = scaled(start_up=300.0)
    assert max(log.requests.last) == log.end
    assert there(log, log.end / SECOND - 1) > 1


def test_nobody_is_sent_to_one_that_starts_or_leaves(usual: RunLog) -> None:
    """First steps come a start-up after the replica was asked for; the last before it is gone."""
    steps, started = np.asarray(usual.steps.replica), np.asarray(usual.steps.started)
    ends = started + np.asarray(usual.steps.took)
    for place, (since, until) in enumerate(usual.lives):
        own = steps == place
        assert (ends[own] <= until).all()
        assert (started[own] >= since + SECOND * (place > 0)).all()
    assert len(set(steps)) > 2


def test_one_may_be_up_before_a_step_is_over() -> None:
    """A step that lasts longer than a start-up, and than the time from one look to the next, holds nobody up."""
    scaling = Scaling(1, 4, 1, 100_000, SECOND, 1)
    first = [TraceRequest(0, 500, 2), *(TraceRequest(1, 500, 2) for _ in range(4))]
    later = [TraceRequest(500_000, 500, 2) for _ in range(4)]  # within its first step
    log = run(ON, OpenLoop([*first, *later]), fleet=SimulatedFleet(1, "least", scaling=scaling))
    assert log.steps.took[0] > 10 * scaling.period
    assert Columns(log).ok.all()
    assert max(there(log, at / 1e9) for at in range(0, log.end, scaling.period)) == 4
    started = np.asarray(log.steps.started)[np.asarray(log.steps.replica) > 0]
    assert started.min() < log.steps.took[0]


def test_second_by_second_it_is_of_those_that_are_there(usual: RunLog) -> None:
    """The load of a second is a share of the replicas of that second, and so are the pages that are held."""
    found = per_second(usual)
    quiet = next(at for at in range(20, len(found["second"])) if there(usual, at) == there(usual, at + 1) == 1)
    assert found["replicas"][quiet] == 1
    assert found["pool"][quiet] == 2000
    took, started = np.asarray(usual.steps.took), np.asarray(usual.steps.started) // SECOND
    assert found["busy"][quiet] == pytest.approx(took[started == quiet].sum() / SECOND)
    assert sum(found["replicas"]) * SECOND == pytest.approx(sum(until - since for since, until in usual.lives))
    assert max(found["replicas"]) > 2
    assert max(found["busy"]) <= 1


def test_a_slow_start_is_paid_in_first_tokens(usual: RunLog) -> None:
    waits = []
    for log in (usual, scaled(start_up=30.0)):
        found = Columns(log)
        waits.append(float((found.first - found.arrived)[: len(WAVE)].mean()))
    assert waits[1] > 1.5 * waits[0]


def test_none_goes_before_it_is_calm(usual: RunLog) -> None:
    """And sooner where less calm is wanted, so that fewer are paid for."""
    last = max(since for since, _ in usual.lives)
    assert last > 0
    assert min(until for _, until in usual.lives) >= last + 5 * SECOND
    hasty = scaled(calm=0.5)
    paid = [measure(log, None, open_loop=True).replicas for log in (hasty, usual)]
    assert paid[0] < paid[1]


def test_bounds_are_kept(usual: RunLog) -> None:
    scaling = Scaling(2, 3, 8, SECOND, SECOND, SECOND)
    assert [scaling.wanted(under_way) for under_way in (0, 16, 17, 24, 25, 999)] == [2, 2, 3, 3, 3, 3]
    assert max(there(usual, at / 10) for at in range(600)) <= 4


def test_none_goes_while_others_start() -> None:
    """Two at least take requests, though six that were asked for are not there for 20 s, and calm came sooner."""
    scaling = Scaling(2, 8, 4, SECOND // 2, SECOND, 20 * SECOND)
    log = run(ON, OpenLoop([*WAVE, *LATER]), fleet=SimulatedFleet(2, "least", scaling=scaling))
    assert len(log.lives) > 4
    assert min(until for since, until in log.lives if since == 0) > 20 * SECOND


@pytest.fixture(scope="module")
def unequal() -> dict[str, float]:
    """Three H100 and an A100 under 100 requests a second: the share of good ones by router."""
    models = ModelCache(fields(LLAMA_3_8B))
    fast, slow = (
        machine_of(models.scenario(Deployment(load_device(name))), Limits()) for name in ("h100-sxm", "a100-sxm-80gb")
    )
    slo = SLO(ttft=SECOND, tpot=50_000_000)
    found = {}
    for router in ("round-robin", "two"):
        asked = bounded(draw_requests(poisson(100.0, 5), Uniform(830, 1020), Uniform(100, 140), 5), 500, None)
        log = run(fast, OpenLoop(asked), fleet=SimulatedFleet(3, router, 50_000_000, 1, (slow,)))
        assert len(log.lives) == 4
        found[router] = measure(log, slo, open_loop=True).good_share
    return found


def test_round_robin_drowns_the_slow_one(unequal: dict[str, float]) -> None:
    assert unequal["round-robin"] <= 0.85
    assert unequal["two"] >= 0.95


def test_dollars_are_of_all_cards() -> None:
    """Of those that come and go for as long as they were there; of none where one has no price."""
    price = HourlyPrice(3.0, "as given", "test")
    case = replace(ON.case, setup=replace(ON.case.setup, device=replace(ON.case.setup.device, price=price)))
    priced = replace(ON, case=case)
    asked = SimulationQuery("8b", priced, "", True, lambda: OpenLoop([]), None, EXACT, 0, SimulatedFleet(2))
    assert asked.dollars_of(2.5) == 7.5
    assert replace(asked, fleet=SimulatedFleet(2, others=(priced,))).dollars_per_hour == 9.0
    assert replace(asked, fleet=SimulatedFleet(2, others=(ON,))).dollars_per_hour is None


def test_other_cards_count_for_what_they_answer() -> None:
    """A card and one with a tenth of its speed want as many more as the card alone, or one less; so many keep up. Who
    deals blindly is told so first, and each card's price is told."""
    fast = card(price=HourlyPrice(3.0, "2026", "test"))
    slow = card(
        title="a tenth card", price=HourlyPrice(0.5, "2026", "test"), peaks={"bf16": 31.2e12}, bandwidth=0.2039e12
    )
    on, other = (machine(Limits(), 4000, case(LLAMA_3_8B, each)) for each in (fast, slow))

    def offered() -> OpenLoop:
        return OpenLoop(bounded(draw_requests(poisson(450.0, 5), Uniform(80, 120), Uniform(15, 25), 5), 1800, None))

    def found(replicas: int, router: str, *others: Machine) -> SimulationFindings:
        fleet = SimulatedFleet(replicas, router, 0, 1, others)
        return simulate(SimulationQuery("8b", on, "", True, offered, SLO(SECOND), EXACT, 0, fleet))

    def advised(run: SimulationFindings) -> int:
        match = re.search(r"use --replicas (\d+)", advice(run))
        assert match is not None, advice(run)
        return int(match[1])

    alone, beside = found(1, "two"), found(1, "two", other)
    assert 2 <= advised(alone) - 1 <= advised(beside) <= advised(alone)
    assert found(advised(beside), "two", other).verdict == "steady"
    assert "--router two" not in advice(beside)
    assert "--router two" in advice(found(1, "round-robin", other))
    said = "$3.00 per hour for A100 of the texts (test, 2026), $0.50 per hour for a tenth card"
    assert said in dict(answer(beside))["cost"]
