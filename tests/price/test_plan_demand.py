"""Replicas for users and for a rate: the fewest that keep the targets, and Little's law between the two questions."""

import math

import pytest

from ridgeline.price.device import HourlyPrice
from ridgeline.price.plan.demand import Demand, ReplicaCount, fleet_for
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from support.planned import LLAMA_3_8B, card, case

WORKLOAD = PlanWorkload(1000, 200, tpot=0.03)
PRICED = card(price=HourlyPrice(2.0, "2026", "test"))


@pytest.fixture(scope="module")
def serving() -> LoadEstimator:
    return LoadEstimator(case(LLAMA_3_8B, PRICED), WORKLOAD)


def fleet(serving: LoadEstimator, users: int | None = None, rate: float | None = None) -> ReplicaCount:
    found = fleet_for(serving, Demand(users, rate))
    assert found is not None
    return found


def test_there_is_a_limit_to_what_a_replica_serves(serving: LoadEstimator) -> None:
    assert serving.capacity.limit == "tpot"
    assert 20 < serving.capacity.users < serving.memory.users


@pytest.mark.parametrize("times", [0.1, 0.5, 1.0, 1.01, 2.0, 3.7, 12.0])
def test_the_fewest_replicas_serve_a_rate(serving: LoadEstimator, times: float) -> None:
    """Brute force over replicas and users."""
    most = serving.capacity.load.requests_per_second.expected
    rate = most * times
    found = fleet(serving, rate=rate)
    assert found.replicas == next(n for n in range(1, 20) if rate / n <= most * (1 + 1e-6))
    rates = [serving.load(users).requests_per_second.expected for users in range(1, serving.capacity.users + 1)]
    assert found.load.users == 1 + next(i for i, r in enumerate(rates) if r >= rate / found.replicas * (1 - 1e-6))
    assert found.load.tpot.expected <= 0.03
    assert found.share == pytest.approx(rate / (found.replicas * most))
    assert found.share <= 1 + 1e-9
    assert (found.requests_per_second, found.tokens_per_second) == pytest.approx((rate, 200 * rate))
    assert found.dollars_per_hour == 2.0 * found.replicas
    assert found.dollars_per_million == pytest.approx(2.0 * found.replicas / 3600 / (200 * rate) * 1e6)


@pytest.mark.parametrize("more", [0, 1, 7])
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_users_are_dealt_to_the_fewest_replicas(serving: LoadEstimator, replicas: int, more: int) -> None:
    users = serving.capacity.users * replicas - more
    found = fleet(serving, users=users)
    assert found.replicas == found.devices == replicas
    assert found.load.users == math.ceil(users / replicas)
    dealt = [users // replicas + (i < users % replicas) for i in range(replicas)]
    assert sum(dealt) == users
    rate = sum(serving.load(each).requests_per_second.expected for each in dealt)
    assert found.requests_per_second == pytest.approx(rate)


def test_users_and_the_rate_that_follows_from_them_are_one_question(serving: LoadEstimator) -> None:
    of_users = fleet(serving, users=2 * serving.capacity.users)
    of_rate = fleet(serving, rate=of_users.requests_per_second)
    assert (of_rate.replicas, of_rate.load.users) == (of_users.replicas, of_users.load.users)


def test_a_replica_may_be_of_several_cards() -> None:
    serving = LoadEstimator(case(LLAMA_3_8B, PRICED, devices=2), WORKLOAD)
    found = fleet(serving, users=3 * serving.capacity.users)
    assert (found.replicas, found.devices) == (3, 6)
    assert found.dollars_per_hour == 12.0


def test_what_nobody_can_be_served_by_has_no_fleet() -> None:
    assert fleet_for(LoadEstimator(case(LLAMA_3_8B), PlanWorkload(1000, 200, tpot=1e-4)), Demand(users=1)) is None
    assert fleet_for(LoadEstimator(case(LLAMA_3_8B, card(memory=1e9)), WORKLOAD), Demand(rate=1.0)) is None
    unpriced = fleet(LoadEstimator(case(LLAMA_3_8B), WORKLOAD), users=1)
    assert (unpriced.dollars_per_hour, unpriced.dollars_per_million) == (None, None)


@pytest.mark.parametrize(
    ("users", "rate", "says"),
    [
        (1, 1.0, "give one of them"),
        (0, None, "--users is 0"),
        (None, 0.0, "--rate is 0"),
        (None, math.inf, "--rate is"),
    ],
)
def test_a_demand_is_one_figure_above_zero(users: int | None, rate: float | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Demand(users, rate)
