"""The simulated replicas of a plan: against long runs, a scan over replicas, and a brute-force closed loop."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cli.simulate_traffic import TrafficFlags
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate import demand_simulation, tail_latency
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.demand_simulation import simulate_demand
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.tail_latency import TailEstimate, tail_of
from ridgeline.price.plan.demand import Demand, ReplicaCount, fleet_for, fleet_of
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from support.planned import LLAMA_3_8B, card, case

WORKLOAD = PlanWorkload(200, 40, ttft=1.0, tpot=0.05)


def serving_of(workload: PlanWorkload) -> LoadEstimator:
    return LoadEstimator(case(LLAMA_3_8B, card()), workload)


def even(serving: LoadEstimator, demand: Demand) -> ReplicaCount:
    found = fleet_for(serving, demand)
    assert found is not None
    return found


def means(found: TailEstimate) -> tuple[float, float]:
    ttft, tpot = found.mean("TTFT"), found.mean("TPOT")
    assert ttft is not None
    assert tpot is not None
    return ttft, tpot


def test_times_of_a_closed_loop_are_in_proportion_to_its_steps() -> None:
    """Check against a run at the upper end of the interval, as `ridgeline simulate` makes it."""
    serving, demand = serving_of(WORKLOAD), Demand(users=5)
    around = serving.case.intervals["load"]
    found, slow = (tail_of(serving, demand, even(serving, demand), factor=factor) for factor in (1.0, around.high))
    assert means(slow) == pytest.approx([around.high * mean for mean in means(found)], rel=1e-4)
    assert found.around_mean("TPOT") == around.around_time(means(found)[1], serving.itl(1).floor)
    assert tail_latency.with_range(found, serving, demand, even(serving, demand)) is found


def test_times_of_random_arrivals_are_simulated_at_both_ends() -> None:
    """Check that a queue amplifies slow steps, and has no upper end if these overload the replica."""
    serving = serving_of(WORKLOAD)
    most = serving.capacity.load.requests_per_second.expected
    high = serving.case.intervals["load"].high
    for share, overloaded in ((0.5 / high, False), (0.9, True)):
        demand = Demand(rate=share * most)
        fleet = even(serving, demand)
        found = tail_latency.with_range(tail_of(serving, demand, fleet), serving, demand, fleet)
        ends, (mean, _) = found.around_mean("TTFT"), means(found)
        assert ends is not None
        assert ends[0] < mean
        assert math.isinf(ends[1]) == overloaded
        assert overloaded or ends[1] > high * mean
        assert ends[0] > serving.prefill.floor
        assert (" .. unbounded]" in str(found)) == overloaded


@pytest.mark.parametrize(("users", "rounds"), [(5, 250), (30, 110)])
def test_short_steady_states_agree_with_a_long_run(users: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check against a loop of the simulator's own whose users start at once and fall out of step in 50 rounds."""
    serving, demand = serving_of(WORKLOAD), Demand(users=users)
    machine = machine_of(serving.case, Limits(tokens=WORKLOAD.step_tokens, requests=256))
    traffic = TrafficFlags(users=users, requests=rounds * users, input="200", output="40", seed=5)
    log = Columns(run(machine, traffic.offered()()))
    late = slice(50 * users, (rounds - 1) * users)
    ttft, tpot = ((log.first - log.arrived)[late] / 1e9).mean(), (log.tpot[late] / 1e9).mean()
    rate = (rounds - 51) * users / ((log.arrived[late.stop] - log.arrived[late.start]) / 1e9)
    found = []
    for seed in range(6):
        monkeypatch.setattr(tail_latency, "_SEED", seed)
        found.append(tail_of(serving, demand, even(serving, demand)))
    assert np.mean([means(each)[0] for each in found]) == pytest.approx(ttft, rel=0.05)
    for each in found:
        assert means(each)[1] == pytest.approx(tpot, rel=0.01)
        assert each.metrics.requests_per_second == pytest.approx(rate, rel=0.02)
        assert abs(means(each)[0] / ttft - 1) < 2 * each.errors["ttft"] < 0.3
        assert each.errors["tpot"] < 0.02


def test_the_first_and_last_requests_do_not_count() -> None:
    serving, demand = serving_of(WORKLOAD), Demand(users=30)
    found = tail_of(serving, demand, even(serving, demand)).metrics
    assert (found.left_out, found.total - found.left_out) == (60, 210)
    assert found.steps.batch == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize("demand", [Demand(users=60), Demand(rate=60.0)])
def test_the_fewest_replicas_that_meet_the_targets(demand: Demand) -> None:
    """Compare with one number of replicas after the other, each judged by the same runs."""
    first = even(serving_of(PlanWorkload(200, 40, ttft=None, tpot=None)), Demand(users=1)).load.ttft.expected
    serving = serving_of(PlanWorkload(200, 40, ttft=first * 1.35, tpot=None))
    planned = even(serving, demand)
    found = simulate_demand(serving, demand, planned)
    assert found.queue.missed == ()
    assert found.queue.even == planned
    assert found.queue.fleet.replicas > planned.replicas

    def settled(replicas: int) -> bool:
        fleet = fleet_of(serving, demand, replicas)
        short = tail_of(serving, demand, fleet)
        tail = short if short.is_clear(serving.workload) else tail_of(serving, demand, fleet, long=True)
        return tail.serves(serving.workload)

    assert [settled(n) for n in range(found.queue.fleet.replicas - 2, found.queue.fleet.replicas + 1)][-2:] == [
        False,
        True,
    ]


def test_without_a_queue_the_replicas_are_those_for_even_arrivals() -> None:
    serving, demand = serving_of(WORKLOAD), Demand(users=8)
    planned = even(serving, demand)
    found = simulate_demand(serving, demand, planned)
    assert found.queue.fleet.replicas == found.queue.even.replicas == planned.replicas == 1
    assert found.queue.fleet.tokens_per_second == found.tail.metrics.tokens_per_second
    assert (found.queue.ttft, found.queue.tpot) == means(found.tail)


@pytest.mark.parametrize(
    ("good", "least", "most", "answer"),
    [(1, 1, 9, 1), (2, 1, 9, 2), (7, 1, 90, 7), (9, 1, 9, 9), (10, 1, 9, None), (40, 16, 900, 40)],
)
def test_the_search_tries_few_numbers(good: int, least: int, most: int, answer: int | None) -> None:
    tried: list[int] = []

    def serves(replicas: int) -> bool:
        tried.append(replicas)
        return replicas >= good

    assert demand_simulation._fewest(serves, least, most) == answer
    assert len(tried) == len(set(tried)) <= 8


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_a_whole_run_is_that_of_the_simulator() -> None:
    """Check against the traffic of `ridgeline simulate --users 6 --requests 50`, over the whole time."""
    serving, demand = serving_of(WORKLOAD), Demand(users=6, requests=50)
    found = simulate_demand(serving, demand, even(serving, demand))
    machine = machine_of(serving.case, Limits(tokens=WORKLOAD.step_tokens, requests=256))
    log = Columns(run(machine, TrafficFlags(users=6, requests=50, input="200", output="40").offered()()))
    assert len(log.arrived) == 50
    assert found.tail.metrics.left_out == 0
    whole = (log.last.max() - log.arrived.min()) / 1e9
    assert found.queue.fleet.tokens_per_second == pytest.approx(log.made.sum() / whole)
    assert found.queue.fleet.requests_per_second == pytest.approx(50 / whole)
    assert means(found.tail) == pytest.approx(
        (((log.first - log.arrived) / 1e9).mean(), (log.tpot / 1e9).mean()),
    )
    steady = simulate_demand(serving, replace(demand, requests=None), even(serving, demand)).queue
    assert found.queue.fleet.tokens_per_second < steady.fleet.tokens_per_second
    assert found.queue.ttft > steady.ttft, "all users start at once"


def test_a_whole_run_is_a_closed_loop_step_by_step() -> None:
    """Check against a loop of ten lines: lengths of four tokens do not vary, and every prompt runs at once."""
    serving, demand = serving_of(PlanWorkload(4, 4, ttft=None, tpot=None)), Demand(users=3, requests=8)
    found = simulate_demand(serving, demand, even(serving, demand))
    price, device, now, left = serving.case.price, serving.case.device, 0.0, 8 - 3
    running, waits, made = [[0.0, 0, 0.0] for _ in range(3)], [], 0  # arrival, tokens, first token
    tpots = []
    while running:
        parts = [StepSegment(1, 4 + tokens) if tokens else StepSegment(4, 4) for _, tokens, _ in running]
        now += price.price_step(device, Work.of(parts, price.reaches, logit_rows=len(parts))).expected
        for request in list(running):
            request[1] += 1
            made += 1
            if request[1] == 1:
                request[2] = now
                waits.append(now - request[0])
            if request[1] == 4:
                tpots.append((now - request[2]) / 3)
                running.remove(request)
                if left:
                    left -= 1
                    running.append([now, 0, 0.0])
    assert made == 32
    assert found.queue.fleet.tokens_per_second == pytest.approx(32 / now, rel=1e-3)
    assert means(found.tail) == pytest.approx((np.mean(waits), np.mean(tpots)), rel=1e-3)


def test_a_whole_run_at_a_rate_is_divided_over_replicas() -> None:
    serving = serving_of(replace(WORKLOAD, tpot=0.03))
    rate = 2.5 * serving.capacity.load.requests_per_second.expected
    demand = Demand(rate=rate, requests=100)
    found = simulate_demand(serving, demand, even(serving, demand))
    replicas = found.queue.fleet.replicas
    assert found.tail.requests == -(-100 // replicas)
    assert found.tail.rate == pytest.approx(rate / replicas)
    own = found.tail.metrics.tokens_per_second
    assert found.queue.fleet.tokens_per_second == pytest.approx(own * 100 / found.tail.requests)


def test_the_drain_of_a_run_at_a_rate_takes_longer_with_slow_steps() -> None:
    """Check against a run at the upper end of the interval; a steady state at this rate has the same tokens at both."""
    serving = serving_of(WORKLOAD)
    around = serving.case.intervals["load"]
    rate = 0.5 / around.high * serving.capacity.load.requests_per_second.expected
    demand = Demand(rate=rate, requests=30)
    found = simulate_demand(serving, demand, even(serving, demand)).queue
    slow = tail_of(serving, demand, even(serving, demand), factor=around.high).metrics.tokens_per_second
    assert found.fleet.replicas == 1
    assert found.tokens_interval is not None
    assert found.tokens_interval[0] == pytest.approx(slow)
    assert slow < 0.99 * found.fleet.tokens_per_second
    steady = Demand(rate=rate)
    assert simulate_demand(serving, steady, even(serving, steady)).queue.tokens_interval is None


def test_a_run_of_too_many_tokens_is_refused() -> None:
    serving, demand = serving_of(WORKLOAD), Demand(users=8, requests=75_001)
    with pytest.raises(ValueError, match=r"are 3,000,040 tokens, but a plan simulates .*; give --requests 75000 or"):
        simulate_demand(serving, demand, even(serving, demand))
