"""Replicas for the slow end of the interval: the fewest that serve a load if every time is multiplied by its factor."""

import itertools
import math
from dataclasses import replace

import pytest

from ridgeline.price.plan.batch_job import JobEstimator
from ridgeline.price.plan.demand import Demand, fleet_for, fleet_of
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from support.planned import LLAMA_3_8B, card, case

WORKLOAD = PlanWorkload(1000, 100, ttft=2.0, tpot=0.12)


@pytest.fixture(scope="module")
def serving() -> LoadEstimator:
    return LoadEstimator(case(LLAMA_3_8B, card(host_link=32e9)), WORKLOAD)


def slow_serves(serving: LoadEstimator, users: int, factor: float) -> bool:
    load, workload = serving.load(users), serving.workload
    assert workload.ttft is not None
    assert workload.tpot is not None
    meets = load.ttft.expected * factor <= workload.ttft and load.tpot.expected * factor <= workload.tpot
    return meets and users <= serving.memory.users


@pytest.mark.parametrize("users", [1, 30, 500])
def test_users(serving: LoadEstimator, users: int) -> None:
    factor = serving.case.intervals["load"].high
    found = fleet_for(serving, Demand(users=users, pessimistic=True))
    assert found is not None
    least = next(n for n in itertools.count(1) if slow_serves(serving, math.ceil(users / n), factor))
    assert found.replicas == least
    assert found == fleet_of(serving, Demand(users=users), least)


@pytest.mark.parametrize("rate", [0.1, 8.0, 50.0])
def test_a_rate(serving: LoadEstimator, rate: float) -> None:
    factor = serving.case.intervals["load"].high
    found = fleet_for(serving, Demand(rate=rate, pessimistic=True))
    assert found is not None
    rates = [
        serving.load(users).requests_per_second.expected / factor
        for users in range(1, serving.memory.users + 1)
        if slow_serves(serving, users, factor)
    ]
    assert found.replicas == math.ceil(rate / max(rates))
    assert found.requests_per_second == rate


def test_a_batch_job(serving: LoadEstimator) -> None:
    free = LoadEstimator(serving.case, replace(WORKLOAD, ttft=None, tpot=None))
    factor, job = serving.case.intervals["load"].high, JobEstimator(free, 50_000, 900.0)
    found, middle = (fleet_for(free, Demand(requests=50_000, within=900.0, pessimistic=each)) for each in (True, False))
    assert found is not None
    assert middle is not None
    slow = (n for n in itertools.count(1) if job.start + job.on(n).run * factor <= 900)
    assert found.replicas == next(slow) > middle.replicas
    assert found.job == replace(job.on(found.replicas), dollars=None)


def test_targets_that_one_user_misses_at_the_slow_end(serving: LoadEstimator) -> None:
    factor, alone = serving.case.intervals["load"].high, serving.load(1).tpot.expected
    for above, served in ((1.01, True), (0.99, False)):
        held = LoadEstimator(serving.case, replace(WORKLOAD, tpot=alone * factor * above))
        assert (fleet_for(held, Demand(users=2, pessimistic=True)) is not None) == served
        assert fleet_for(held, Demand(users=2)) is not None


def test_there_is_a_load() -> None:
    with pytest.raises(ValueError, match="--pessimistic is for the number of replicas; give the load too"):
        Demand(pessimistic=True)
