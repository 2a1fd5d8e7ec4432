"""Capacity by bisection on the same requests, and the tail of a plan's demand."""

import math
from dataclasses import replace
from functools import partial

import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate import tail_latency
from ridgeline.insight.simulate.capacity import SimulatedCapacity, capacity
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_export import findings_json
from ridgeline.insight.simulate.simulation_findings import simulate
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.simulate.simulation_report import answer, document
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.plan.demand import Demand, fleet_for
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.html import html
from ridgeline.util.json_data import json_data
from simulate.machines import machine, simulated
from support.exact_prices import EXACT
from support.planned import LLAMA_3_8B, card, case

ONE = machine(Limits(tokens=512, requests=1), prefix_cache=False)
SERVICE = simulated([TraceRequest(0, 256, 1)], ONE).end / 1e9
SLO = parse_slo(f"ttft={SERVICE * 1e6 * 4:.0f}us")  # three others before one's own


def offered(rate: float) -> OpenLoop:
    return OpenLoop(bounded(draw_requests(poisson(rate, 2), Fixed(256), Fixed(1), 2), 250, None))


def at(rate: float, factor: float) -> SimulationMetrics:
    return measure(run(ONE, offered(rate), factor), SLO, open_loop=True)


@pytest.fixture(scope="module")
def found() -> SimulatedCapacity:
    return capacity(at, 1 / SERVICE, (0.9, 1.1), attain=0.9)


def test_capacity_is_between_what_is_good_and_what_is_not(found: SimulatedCapacity) -> None:
    """Looked for from above here; below the rate at which one after the other is served, by what a queue takes."""
    assert 0.3 / SERVICE < found.rate.mid < 1 / SERVICE
    (best,) = [level for level in found.levels if level.rate == found.rate.mid]
    assert best.good
    assert best.metrics.good_share >= 0.9
    assert found.above is not None
    assert not found.above.good
    assert found.above.rate <= found.rate.mid * 1.03
    assert [level.rate for level in found.levels] == sorted(level.rate for level in found.levels)


def test_a_price_that_is_off_moves_it(found: SimulatedCapacity) -> None:
    """Where nothing but seconds matter, and the objective is one of seconds, by a little more than the price."""
    assert found.rate.mid * 1.05 < found.rate.high < found.rate.mid * 1.3
    assert found.rate.mid / 1.3 < found.rate.low < found.rate.mid / 1.05


def test_where_no_rate_is_good() -> None:
    impossible = parse_slo("ttft=1us")
    none = capacity(
        lambda rate, factor: measure(run(ONE, offered(rate), factor), impossible, open_loop=True), 50.0, (0.9, 1.1)
    )
    assert (none.rate.low, none.rate.mid, none.rate.high) == (0, 0, 0)
    assert none.above is none.levels[0]


def test_capacity_is_told_and_drawn(found: SimulatedCapacity) -> None:
    asked = SimulationQuery("tiny", ONE, "a test", True, partial(offered, found.rate.mid), SLO, EXACT, 2)
    findings = replace(simulate(asked), capacity=found)
    first, *_ = answer(findings)
    assert first[0] == "capacity"
    assert "90% of the requests within ttft" in first[1]
    result = findings_json(findings)["capacity"]
    assert [level["good"] for level in result["levels"]] == [level.good for level in found.levels]
    page = html(document(findings, with_charts=True))
    assert "Goodput by rate" in page
    assert "TPOT by the load law" not in page, "requests of one token have no TPOT"


# -- the tail of a plan -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("demand", [Demand(rate=25.0), Demand(users=40)])
def test_the_tail_of_a_demand(demand: Demand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the plan's closed form: medians near it, tails beyond."""
    monkeypatch.setattr(tail_latency, "TOKENS", 16_000)
    serving = LoadEstimator(case(LLAMA_3_8B, card()), PlanWorkload(200, 40, ttft=1.0, tpot=0.05))
    fleet = fleet_for(serving, demand)
    assert fleet is not None
    found = tail_latency.tail_of(serving, demand, fleet)
    metrics = found.metrics
    rounds = math.ceil(200 / fleet.load.users)
    assert metrics.counts["ok"] == metrics.total == (rounds + 2) * fleet.load.users
    assert metrics.left_out == 2 * fleet.load.users
    tpot, ttft = metrics.latencies["TPOT"], metrics.latencies["TTFT"]
    assert tpot is not None
    assert ttft is not None
    assert tpot.mean == pytest.approx(fleet.load.tpot.expected, rel=0.25)
    median, late = ttft.percentiles[50], ttft.percentiles[95]
    assert median is not None
    assert late is not None
    assert late.mid > 1.1 * median.mid
    assert "p95" in str(found)
    assert json_data(found)["metrics"]["latencies"]["ttft"]["p95"]["mid"] == late.mid
    assert json_data(found)["verdict"] == ("closed loop" if demand.users else "steady")
