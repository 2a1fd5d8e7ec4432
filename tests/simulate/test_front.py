"""A server's core before the engines, held against a queue counted by hand, and costs between steps."""

import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.serving_overhead import (
    ApiServerCore,
    ApiServerOverhead,
    HostOverhead,
    parse_api_server_overhead,
    parse_host_overhead,
)
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Fixed, Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import machine, simulated

COSTS = ApiServerOverhead(request=2_000_000, step=30_000, token=10_000, answer=500_000)


def through(requests: list[TraceRequest], costs: ApiServerOverhead = COSTS, replicas: int = 1) -> Columns:
    return Columns(run(machine(), OpenLoop(requests), fleet=SimulatedFleet(replicas, api_server=costs)))


def test_one_request_alone_meets_each_cost_once() -> None:
    """Its first token later by a request, a step and a token; the others, whose steps are longer than what they cost,
    by no more."""
    one = TraceRequest(7_000, 300, 5)
    without, found = Columns(simulated([one])), through([one])
    assert found.scheduled[0] - without.scheduled[0] == COSTS.request
    assert found.first[0] - without.first[0] == COSTS.request + COSTS.step + COSTS.token
    assert found.last[0] - without.last[0] == COSTS.request + COSTS.step + COSTS.token


def test_requests_are_read_one_after_the_other() -> None:
    """As Lindley's queue has it: what comes together waits for what came before, and a closed answer holds up too."""
    together = [TraceRequest(0, 20, 1) for _ in range(4)]
    read = through(together, ApiServerOverhead(request=2_000_000)).scheduled
    assert read.tolist() == [2_000_000, 4_000_000, 6_000_000, 8_000_000]
    core = ApiServerCore(COSTS)
    assert core.parse_request(100) == 2_000_100
    core.handle_step(2_500_000)
    assert [core.write_token(), core.write_token()] == [2_540_000, 2_550_000]
    core.finish_response()
    assert core.parse_request(2_600_000) == pytest.approx(
        2_550_000 + 500_000 + 2_000_000, abs=2_000
    )  # and a message's share


def test_what_a_request_takes_is_stretched_by_what_else_comes() -> None:
    """Where messages take a third of the core, a request has two thirds of it, and so has the first token of an answer;
    messages are as fast as ever. One that has ended a while ago is of no account."""
    core = ApiServerCore(ApiServerOverhead(request=2_000_000, step=250_000, token=50_000, first=1_000_000))
    for step in range(1_000):
        core.handle_step(step * 900_000)
        assert core.write_token() == step * 900_000 + 300_000
    now = 1_000 * 900_000
    assert core.parse_request(now) - now == pytest.approx(3_000_000, rel=0.02)
    core.handle_step(now + 10_000_000)
    assert core.write_token(first=True) - now - 10_300_000 == pytest.approx(1_500_000, rel=0.05)
    assert core.parse_request(now + 2_000_000_000) == now + 2_002_000_000


def test_costs_of_nothing_change_nothing() -> None:
    """A core that takes no time, to the nanosecond; with preemptions, and several replicas."""
    requests = list(bounded(draw_requests(poisson(900.0, 3), Uniform(20, 300), Uniform(1, 60), 3), 300, None))
    small = machine(Limits(tokens=256, requests=16), pages=120)
    for fleet in (SimulatedFleet(), SimulatedFleet(3, "least")):
        logs = [
            Columns(
                run(small, OpenLoop(requests), fleet=SimulatedFleet(fleet.replicas, fleet.router, api_server=front))
            )
            for front in (None, ApiServerOverhead())
        ]
        for name in ("scheduled", "first", "last", "made", "worst_gap", "outcome"):
            assert (getattr(logs[0], name) == getattr(logs[1], name)).all(), name


def test_users_ask_again_when_the_client_has_the_answer() -> None:
    """And a core that is too slow is what limits: so many users are under way there."""
    asked = bounded(draw_requests(iter(lambda: 0, 1), Fixed(60), Fixed(6), 1), 60, None)
    found = Columns(run(machine(), ClosedLoop(3, ThinkTime(), asked, None, 4), fleet=SimulatedFleet(api_server=COSTS)))
    assert found.ok.all()
    assert set(found.arrived[3:].tolist()) <= set(found.last.tolist())
    assert found.last.max() >= 60 * COSTS.request


def test_a_slow_core_is_what_limits() -> None:
    """800 requests a second of 2.6 ms each: the core is at it for as long as that takes, the engine keeps up. What
    closes answers comes after tokens that clients have."""
    requests = list(bounded(draw_requests(poisson(800.0, 3), Fixed(40), Fixed(4), 3), 600, None))
    fast, slow = (
        Columns(run(machine(), OpenLoop(requests), fleet=SimulatedFleet(api_server=front))) for front in (None, COSTS)
    )
    work = 600 * (COSTS.request + COSTS.answer + 4 * COSTS.token)
    assert fast.last.max() < requests[-1].at + 10_000_000
    assert work - 600 * COSTS.answer < slow.last.max() - requests[0].at < 1.2 * work
    assert (
        work
        < run(machine(), OpenLoop(requests), fleet=SimulatedFleet(api_server=COSTS)).end - requests[0].at
        < 1.2 * work
    )
    assert slow.scheduled[599] - slow.arrived[599] > 100 * (fast.scheduled[599] - fast.arrived[599])


def test_what_passes_between_steps_depends_on_what_is_in_them() -> None:
    """Two requests together: both new in the first step, then two sequences in each, to the end of the shorter."""
    both = [TraceRequest(0, 50, 3), TraceRequest(0, 50, 2)]
    between = HostOverhead(step=1_000, sequence=200, request=70_000)
    without, found = simulated(both), simulated(both, machine(between=between))
    more = [after - before for before, after in zip(without.steps.took, found.steps.took, strict=True)]
    assert more == [1_000 + 2 * 200 + 2 * 70_000, 1_000 + 2 * 200, 1_000 + 200]


def test_steps_after_none_and_after_prompts_take_longer() -> None:
    """The first one, for which the engine waited; the one after the second request's prompt, but not that with the
    prompt, which follows one too; nor one whose requests are all new while nothing waits."""
    asked = [TraceRequest(0, 50, 4), TraceRequest(1, 50, 2)]
    costs = machine(between=HostOverhead(idle=500_000, after=30_000))
    without, found = simulated(asked), simulated(asked, costs)
    assert len(without.steps.took) == 4
    more = [after - before for before, after in zip(without.steps.took, found.steps.took, strict=True)]
    assert more == [500_000, 0, 30_000, 0]
    one_after_the_other = [TraceRequest(0, 50, 1), TraceRequest(1, 50, 1), TraceRequest(10**9, 50, 1)]
    without, found = simulated(one_after_the_other), simulated(one_after_the_other, costs)
    more = [after - before for before, after in zip(without.steps.took, found.steps.took, strict=True)]
    assert more == [500_000, 0, 500_000]


def test_requests_are_handed_on_in_the_order_in_which_they_came() -> None:
    """While the core is full one takes long, which a later one does not overtake when it is free again."""
    core = ApiServerCore(ApiServerOverhead(request=5_000_000, step=900_000))
    for step in range(400):
        core.handle_step(step * 1_000_000)
    first = core.parse_request(400_000_000)
    assert first > 430_000_000
    assert core.parse_request(420_000_000) >= first
    assert core.free >= first


def test_costs_are_read_as_written() -> None:
    assert parse_host_overhead("300us") == HostOverhead(step=300_000)
    assert parse_host_overhead("110us+20us/sequence + 0.33ms/request") == HostOverhead(110_000, 20_000, 330_000)
    assert parse_host_overhead("1us+0.4ms/idle+3us/after") == HostOverhead(1_000, idle=400_000, after=3_000)
    assert parse_api_server_overhead("2ms/request+1us/token+1ms/first") == ApiServerOverhead(
        request=2_000_000, token=1_000, first=1_000_000
    )
    for text in ("", "5", "5us/step+5us", "-5us", "5us/tick", "1us+", "3601s"):
        with pytest.raises(ValueError, match=r"--between-steps (has|says)"):
            parse_host_overhead(text)
    for text in ("", "5us", "5us/sequence", "1us/token+2us/token"):
        with pytest.raises(ValueError, match=r"--front (has|says)"):
            parse_api_server_overhead(text)
