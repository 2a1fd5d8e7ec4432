"""Batch jobs: the fewest replicas in time, against a search one by one; their duration, against a simulated run."""

import math
from dataclasses import replace

import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.arrivals import constant
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import ClosedLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.price.device import HourlyPrice
from ridgeline.price.devices import load_device
from ridgeline.price.plan.batch_job import JobEstimator
from ridgeline.price.plan.demand import Demand, fleet_for
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from support.planned import LLAMA_3_8B, card, case

WORKLOAD = PlanWorkload(1000, 100)
PRICED = card(price=HourlyPrice(2.0, "2026", "test"), host_link=32e9, watts=400)


@pytest.fixture(scope="module")
def serving() -> LoadEstimator:
    return LoadEstimator(case(LLAMA_3_8B, PRICED), WORKLOAD)


@pytest.mark.parametrize("requests", [1, 7, 1000, 50_000])
@pytest.mark.parametrize("within", [12.0, 60.0, 900.0, 36_000.0])
def test_the_fewest_replicas_in_time(serving: LoadEstimator, requests: int, within: float) -> None:
    """Try all numbers of replicas, one by one."""
    job = JobEstimator(serving, requests, within)
    least = next((n for n in range(1, requests + 1) if job.on(n).seconds <= within), None)
    assert job.fewest_replicas() == least
    fleet = fleet_for(serving, Demand(requests=requests, within=within))
    assert fleet is not None
    assert fleet.replicas == least
    assert fleet.job is not None
    assert fleet.load.users == min(serving.capacity.users, math.ceil(requests / fleet.replicas))
    assert fleet.dollars_per_hour == 2.0 * fleet.replicas
    assert fleet.job.dollars == pytest.approx(2.0 * fleet.replicas * fleet.job.seconds / 3600)
    assert fleet.dollars_per_million == pytest.approx(fleet.job.dollars / (100 * requests) * 1e6)
    assert fleet.tokens_per_second == pytest.approx(100 * requests / fleet.job.run)
    kwh = 0.4 * fleet.replicas * fleet.job.seconds / 3600
    assert fleet.kwh_per_million_tokens == pytest.approx(kwh / (100 * requests) * 1e6)


def test_weights_are_loaded_before(serving: LoadEstimator) -> None:
    """Check that the disk decides here, at 6.8 GB/s; each of two devices gets its half over a link of its own."""
    start = JobEstimator(serving, 1, 60.0).start
    assert start == pytest.approx(serving.memory.weights / 6.8e9)
    slow = LoadEstimator(case(LLAMA_3_8B, replace(PRICED, host_link=1e9), devices=2), WORKLOAD)
    assert JobEstimator(slow, 1, 60.0).start == pytest.approx(slow.memory.weights / 1e9)


def test_a_job_that_no_number_of_replicas_does_in_time(serving: LoadEstimator) -> None:
    single = JobEstimator(serving, 1, 1.0).on(1).seconds
    assert fleet_for(serving, Demand(requests=1000, within=single * 0.99)) is None
    found = fleet_for(serving, Demand(requests=1000, within=single * 1.01))
    assert found is not None
    assert found.replicas > 500


def test_targets_limit_how_full_replicas_are(serving: LoadEstimator) -> None:
    free = fleet_for(serving, Demand(requests=10_000, within=320.0))
    held = LoadEstimator(serving.case, replace(WORKLOAD, tpot=serving.load(20).tpot.expected * 1.001))
    kept = fleet_for(held, Demand(requests=10_000, within=320.0))
    assert free is not None
    assert kept is not None
    assert (held.capacity.users, kept.load.users) == (20, 20)
    assert kept.replicas > free.replicas


@pytest.mark.parametrize("name", ["h100-sxm", "l4"])
def test_full_replicas_have_the_most_throughput(name: str) -> None:
    full = LoadEstimator(case(LLAMA_3_8B, load_device(name), weights="int8"), WORKLOAD)
    rates = [full.load(users).requests_per_second.expected for users in range(1, full.capacity.users + 1)]
    assert max(rates) == pytest.approx(rates[-1], rel=0.005)


@pytest.mark.parametrize(
    ("given", "made", "utilization", "rounds"),
    [(2048, 100, 0.5, 6), (2048, 100, 0.5, 2.5), (300, 300, 0.35, 1), (300, 300, 0.35, 5), (1000, 50, 0.4, 4)],
)
def test_the_duration_is_that_of_a_simulated_run(given: int, made: int, utilization: float, rounds: float) -> None:
    """Compare with the engine's own scheduler in a closed loop of as many users, whose lengths vary by up to 10 %.

    The scheduler mixes prompts into decode steps, so most runs are somewhat shorter than by the formulas.
    """
    workload = PlanWorkload(given, made)
    serving = LoadEstimator(case(LLAMA_3_8B, load_device("h100-sxm"), utilization=utilization), workload)
    users = serving.capacity.users
    requests = round(users * rounds)
    drawn = draw_requests(constant(1.0), jittered(Fixed(given)), jittered(Fixed(made)), 0)
    machine = machine_of(serving.case, Limits(tokens=2048, requests=users), page_size=16, prefix_cache=False)
    log = Columns(run(machine, ClosedLoop(users, ThinkTime(), bounded(drawn, requests, None), None, 0)))
    simulated = float(log.last.max() - log.arrived.min()) / 1e9
    assert JobEstimator(serving, requests, 1e6).on(1).run == pytest.approx(simulated, rel=0.1)


@pytest.mark.parametrize(
    ("users", "rate", "requests", "within", "says"),
    [
        (3, None, 9, 60.0, "leave out --users and --rate, or --within"),
        (None, 2.0, 9, 60.0, "leave out --users and --rate, or --within"),
        (None, None, None, 60.0, "give its size too"),
        (None, None, 0, 60.0, "--requests is 0"),
    ],
)
def test_a_job_has_a_size_and_a_deadline(
    users: int | None, rate: float | None, requests: int | None, within: float, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Demand(users, rate, requests, within)
