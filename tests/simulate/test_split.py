"""Prompts and answers apart: what is sent, when it is there, and what the same cards do together."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.colocated import run_colocated
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.kv_transfer import KVLink
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulated_fleet import PrefillDecodeSplit, SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_export import _replicas
from ridgeline.insight.simulate.simulation_findings import simulate
from ridgeline.insight.simulate.simulation_metrics import measure, warm_up
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Uniform
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import machine
from support.exact_prices import EXACT
from support.planned import LLAMA_3_8B, TINY_SLIDING, case

CASE = case(LLAMA_3_8B)
ON = machine(Limits(tokens=2048, requests=256), 20_000, CASE)
TOKEN = 131_072  # bytes of keys and values, 32 layers of 8 heads of 128 in bf16
NVLINK, SLOW = 450e9, 5e9 / 8


def apart(rate: float, bandwidth: float, count: int = 500) -> RunLog:
    return run(ON, OpenLoop(offered(rate, count)), fleet=SimulatedFleet(2, split=PrefillDecodeSplit(1, bandwidth)))


def offered(rate: float, count: int) -> "list[TraceRequest]":
    drawing = draw_requests(poisson(rate, 3), Uniform(830, 1020), Uniform(240, 290), 3)
    return list(bounded(drawing, count, None))


def test_one_request_is_its_prompt_the_way_and_its_steps() -> None:
    """To the nanosecond: the prompt's step on one, its keys and values over the link, each step after that on the
    other; the first token comes before the way."""
    log = run(ON, OpenLoop([TraceRequest(0, 1000, 4)]), fleet=SimulatedFleet(2, split=PrefillDecodeSplit(1, 1e9)))
    price, device = CASE.price, CASE.device

    def seconds(count: int, kv_len: int) -> int:
        work = Work.of([StepSegment(count, kv_len)], price.reaches)
        return round(price.price_step(device, work).expected * 1e9)

    first = seconds(1000, 1000)
    there = first + round(1000 * TOKEN / 1e9 * 1e9)
    steps = [seconds(1, known) for known in (1001, 1002, 1003)]
    assert list(log.requests.first) == [first]
    assert list(log.requests.last) == [there + sum(steps)]
    assert list(log.requests.made) == [4]
    assert list(log.requests.worst_gap) == [there + steps[0] - first]
    assert list(log.steps.replica) == [0, 1, 1, 1]
    assert list(log.steps.positions) == [1000, 1, 1, 1]


@pytest.mark.parametrize("context", [None, 900])
def test_one_at_the_edge_of_the_context_ends_where_its_prompt_was(context: int | None) -> None:
    """Apart as together: a single token fits behind it, so that it is cut short, and nothing is sent."""
    on = machine(Limits(tokens=2048, requests=256), 57, CASE, context)  # pages for 912 positions
    edge = TraceRequest(0, 912 - 1 if context is None else context - 1, 20)
    for fleet in (SimulatedFleet(2), SimulatedFleet(2, split=PrefillDecodeSplit(1, 1e9))):
        log = run(on, OpenLoop([edge]), fleet=fleet)
        assert (list(log.requests.made), list(log.requests.limited)) == ([1], [1])
        assert Columns(log).ok.all()
        assert log.requests.last[0] == log.requests.first[0]


def test_of_a_window_what_the_next_position_sees_is_sent() -> None:
    """Two layers whose next position sees 99 before it, and two that see all 400."""
    sliding = case(TINY_SLIDING)
    log = run(
        machine(on=sliding),
        OpenLoop([TraceRequest(0, 400, 2)]),
        fleet=SimulatedFleet(2, split=PrefillDecodeSplit(1, 1e6)),
    )
    layer = 2 * 4 * 32 * 2  # bytes of a position: keys and values, 4 heads of 32 in bf16
    assert log.steps.started[-1] - log.requests.first[0] == (2 * 99 + 2 * 400) * layer * 1000


def test_what_comes_while_all_replicas_fill_is_left_out() -> None:
    """Counted request by request: at each step those of either replica, and the moment from which they are as many as
    by the median."""
    log = apart(20.0, NVLINK)
    begun, over, arrived = log.requests.scheduled, log.requests.last, log.requests.arrived
    steps = [
        (sum(s <= at < e for s, e in zip(begun, over, strict=True)), at, took)
        for at, took in zip(log.steps.started, log.steps.took, strict=True)
    ]
    third = arrived[0] + (arrived[-1] - arrived[0]) // 3
    later = sorted(each for each in steps if third <= each[1] <= arrived[-1])
    half = sum(took for _, _, took in later) / 2
    median = next(
        running for place, (running, _, _) in enumerate(later) if sum(s[2] for s in later[: place + 1]) >= half
    )
    first = next(at for running, at, _ in steps if running >= median)
    assert 0 < first < third
    assert warm_up(log, Columns(log)) == first
    assert median > max(
        running for running, place in zip(log.steps.running, log.steps.replica, strict=True) if not place
    )


def test_the_link_takes_one_after_the_other() -> None:
    link = KVLink(1e9)
    assert [link.send(5e6, 0), link.send(1e6, 1_000_000), link.send(1e6, 50_000_000)] == [
        5_000_000,
        6_000_000,
        51_000_000,
    ]


def test_nothing_is_lost_and_no_answer_runs_a_prompt() -> None:
    """But where a preemption lost what came over the link: there it is computed again."""
    log = apart(12.0, NVLINK, 100)
    found = Columns(log)
    assert found.ok.all()
    assert list(found.made) == [request.output for request in offered(12.0, 100)]
    answers = np.asarray(log.steps.replica) == 1
    assert (np.asarray(log.steps.positions)[answers] == np.asarray(log.steps.sequences)[answers]).all()
    assert set(np.asarray(log.steps.replica)[np.asarray(log.steps.prompts) > 0]) == {0}
    assert log.totals is not None
    assert (log.totals.left, log.totals.held) == (0, 0)
    tight = replace(ON, layout=replace(ON.layout, pages=600), prefix_cache=False)
    short = run(tight, OpenLoop(offered(20.0, 60)), fleet=SimulatedFleet(2, split=PrefillDecodeSplit(1, NVLINK)))
    assert short.totals is not None
    assert short.totals.preemptions > 0
    assert 1 in set(np.asarray(short.steps.replica)[np.asarray(short.steps.prompts) > 0])
    assert Columns(short).ok.all()


def test_a_request_counts_where_its_prompt_was_and_where_its_answer_is() -> None:
    """Prompts are the first replica's, answers but for their first tokens the second's."""
    log = apart(12.0, NVLINK, 100)
    prompts, answers = _replicas(log)
    asked = offered(12.0, 100)
    assert (prompts["requests"], answers["requests"], prompts["ok"], answers["ok"]) == (100, 100, 100, 100)
    assert (prompts["input_tokens"], answers["input_tokens"]) == (sum(each.input for each in asked), 0)
    assert prompts["output_tokens"] == 100
    assert answers["output_tokens"] == sum(each.output for each in asked) - 100


def test_few_positions_are_not_quartered() -> None:
    """A quarter of 64 would be fewer than anybody sets, and the same twice says nothing."""
    requests, few = offered(1.0, 3), replace(ON, limits=Limits(tokens=64, requests=16))
    split = SimulatedFleet(2, split=PrefillDecodeSplit(1, NVLINK))
    asked = SimulationQuery("8b", few, "", True, lambda: OpenLoop(requests), None, EXACT, 0, split)
    beside = run_colocated(asked, lambda limits: replace(ON, limits=limits))
    assert [each.limits.tokens for each in beside] == [64]


def test_one_token_needs_no_second_replica() -> None:
    log = run(ON, OpenLoop([TraceRequest(0, 100, 1)]), fleet=SimulatedFleet(2, split=PrefillDecodeSplit(1, NVLINK)))
    assert (list(log.requests.made), set(log.steps.replica)) == ([1], {0})


def test_a_slow_link_is_a_queue() -> None:
    """12 requests a second of 121 MB each are more than 5 Gb/s carry; NVLink is not noticed."""
    slo = SLO(ttft=10**9, tpot=50_000_000)
    slow, fast = (measure(apart(12.0, each, 250), slo, open_loop=True) for each in (SLOW, NVLINK))
    assert slow.good_share < 0.7
    assert slow.overloaded, "what waits for the link waits longer and longer, first tokens do not"
    assert not fast.overloaded
    assert fast.good_share > 0.95
    assert 12 * 925 * TOKEN > SLOW


def test_the_same_cards_are_always_beside_it() -> None:
    """Apart no answer waits for a prompt; so do the same cards with a quarter of the positions a step, nearly."""
    requests = offered(12.0, 150)
    asked = SimulationQuery(
        "8b",
        ON,
        "",
        True,
        lambda: OpenLoop(requests),
        None,
        EXACT,
        0,
        SimulatedFleet(2, split=PrefillDecodeSplit(1, NVLINK)),
    )
    found = simulate(asked)
    beside = run_colocated(asked, lambda limits: replace(ON, limits=limits))
    assert [each.limits.tokens for each in beside] == [2048, 512]
    late = [found.metrics.late("ITL"), *(each.metrics.late("ITL") for each in beside)]
    assert late[0] < late[2] < late[1]
    assert found.law is None
    assert all(each.metrics.counts["ok"] == 150 for each in beside)


@pytest.mark.parametrize("received", [0, 16, 599])
def test_what_is_received_is_not_computed(received: int) -> None:
    """The engine's own seam, beside a prefix that is found: the more of both."""
    from ridgeline.insight.simulate.replica import PromptBuilder, SimulatedReplica, StepPricer
    from ridgeline.insight.simulate.simulated_clock import SimulatedClock

    replica = SimulatedReplica(ON, SimulatedClock(), StepPricer(CASE.price, CASE.device), PromptBuilder())
    for before, expected in ((received, 600 - received), (0, 600 - 592)):
        replica.add(TraceRequest(0, 600, 1, ("a",), 600), before)
        assert replica.begin() is not None
        assert replica.plan is not None
        assert replica.plan.tokens == expected
        replica.end()
        replica.engine.kv_cache_manager.check()
