"""A run on a priced clock, held against sums of prices, queueing theory and what has to be so of any run."""

import ast
from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ridgeline.insight.simulate
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import measure
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Fixed, Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, bounded, draw_requests
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import TINY_CASE, machine, simulated


def columns(log: RunLog) -> list[list[int]]:
    """All that a log holds."""
    parts = (log.requests, log.steps, log.gaps)
    return [list(value) for part in parts for value in vars(part).values() if isinstance(value, array)]


def test_one_request_alone_takes_the_sum_of_its_steps() -> None:
    """To the nanosecond: chunks of 512 positions, then a decode step for each further token."""
    price, device = TINY_CASE.price, TINY_CASE.device
    log = simulated([TraceRequest(5_000, 1100, 4)])

    def nanoseconds(work: Work) -> int:
        return round(price.price_step(device, work).expected * 1e9)

    chunks = [Work.of([StepSegment(512, 512)], logit_rows=0), Work.of([StepSegment(512, 1024)], logit_rows=0)]
    prompt = sum(map(nanoseconds, [*chunks, Work.of([StepSegment(76, 1100)])]))
    answer = sum(nanoseconds(Work.decode([context])) for context in (1101, 1102, 1103))
    assert log.requests.first[0] - 5_000 == prompt
    assert log.requests.last[0] - 5_000 == prompt + answer
    assert log.end == 5_000 + prompt + answer


def waits(moments: NDArray[np.int64], service: int) -> NDArray[np.int64]:
    """Lindley's: each waits as long as what came before it has left, one at a time, when it comes."""
    left = np.concatenate([[0], service - np.diff(moments)]).cumsum()
    found: NDArray[np.int64] = left - np.minimum.accumulate(left)
    return found


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_prompts_one_at_a_time_wait_as_in_a_queue_with_one_length(load: float) -> None:
    """M/D/1: each as long as Lindley has it, to the nanosecond; and these are rho S / (2 (1 - rho)) on average."""
    one = machine(Limits(tokens=512, requests=1), prefix_cache=False)
    service = simulated([TraceRequest(0, 256, 1)], one).end
    moments = np.fromiter(islice(poisson(load * 1e9 / service, 1), 1_000_000), dtype=np.int64)
    requests = (TraceRequest(at, 256, 1) for at in moments[:1500].tolist())
    found = Columns(simulated(requests, one))
    assert (found.scheduled - found.arrived).tolist() == waits(moments[:1500], service).tolist()
    assert waits(moments, service).mean() == pytest.approx(load * service / (2 * (1 - load)), rel=0.02)


def mixed_traffic(rate: float, count: int, seed: int = 3) -> Iterator[TraceRequest]:
    return bounded(draw_requests(poisson(rate, seed), Uniform(20, 400), Uniform(2, 60), seed), count, None)


def test_requests_under_way_are_their_rate_times_their_stay() -> None:
    """Little's law: those that the steps' log has, weighted by time, against the requests' own."""
    log = simulated(mixed_traffic(900.0, 1500))
    found = Columns(log)
    span = log.end - int(found.arrived[0])
    steps = log.steps
    idle = span - sum(steps.took)
    counted = (np.asarray(steps.running) + np.asarray(steps.waiting)) * np.asarray(steps.took)
    stays = (found.last - found.arrived).sum() - _waiting_for_the_next_step(log)
    assert 0 <= idle < span
    assert counted.sum() / span == pytest.approx(stays / span, rel=0.005)


def _waiting_for_the_next_step(log: RunLog) -> int:
    """What requests spend in steps that began before they came, which the log does not count them in."""
    ends = np.asarray(log.steps.started) + np.asarray(log.steps.took)
    arrived = np.asarray(log.requests.arrived)
    before = np.searchsorted(np.asarray(log.steps.started), arrived, side="left") - 1
    return int(np.maximum(0, np.where(before >= 0, ends[before] - arrived, 0)).sum())


traffic = st.lists(
    st.builds(
        TraceRequest,
        st.integers(0, 3_000_000),
        st.integers(1, 300),
        st.integers(1, 40),
        st.just(()),
        st.just(0),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(traffic, st.integers(1, 40), st.integers(1, 8), st.sampled_from([None, 7]), st.integers(4, 40))
def test_what_is_so_of_every_run(
    requests: list[TraceRequest], tokens: int, most: int, chunk: int | None, pages: int
) -> None:
    """Nothing is lost, nothing comes before its cause, no moment before another, and all memory is given back."""
    requests.sort(key=lambda request: request.at)
    log = simulated(requests, machine(Limits(tokens, most, chunk), pages))
    found, steps = Columns(log), log.steps
    assert log.totals is not None
    assert (log.totals.left, log.totals.held) == (0, 0)
    refused = [row for row, request in enumerate(requests) if request.input + 1 > pages * 16]
    assert sorted(log.requests.reasons) == refused
    assert int(found.ok.sum()) == len(requests) - len(refused)
    ok = found.ok
    assert (found.arrived[ok] <= found.scheduled[ok]).all()
    assert (found.scheduled[ok] < found.first[ok]).all()
    assert (found.first[ok] <= found.last[ok]).all()
    cut = np.asarray(log.requests.limited)[ok] > 0
    wanted = np.array([request.output for request in requests])[ok]
    assert (found.made[ok] == wanted)[~cut].all()
    assert sum(log.gaps.tokens) == int((found.made[ok] - 1).sum())
    started, took = np.asarray(steps.started), np.asarray(steps.took)
    assert (started[1:] >= (started + took)[:-1]).all()
    # Work-conserving: a step begins as soon as the one before it is over, unless everything has ended by then.
    later = started[1:] > (started + took)[:-1]
    assert set(started[1:][later].tolist()) <= set(found.arrived.tolist())


def test_equal_input_gives_equal_output() -> None:
    assert columns(simulated(mixed_traffic(1500.0, 300))) == columns(simulated(mixed_traffic(1500.0, 300)))


def test_the_engine_is_not_told_how_long_answers_will_be() -> None:
    """With room for ten times the tokens of each answer its steps are the same."""
    logs = [simulated(mixed_traffic(1500.0, 300), machine(context=context)) for context in (460, 4600)]
    assert not any(logs[0].requests.limited)
    assert columns(logs[0]) == columns(logs[1])


def test_blocks_of_one_name_are_found() -> None:
    """Of the second prompt the pages whose blocks the first had, and no other's."""
    first = TraceRequest(0, 100, 2, ("a", "b", "c", "d", "e", "f", "g"), 16)
    second = replace(first, at=10**9, blocks=("a", "b", "x", "d", "e", "f", "g"))
    unnamed = TraceRequest(2 * 10**9, 100, 2)
    log = simulated([first, second, unnamed, replace(unnamed, at=3 * 10**9)])
    assert list(log.requests.cached) == [0, 32, 0, 0]
    assert log.totals is not None
    assert log.totals.prefix_hits == 32


def test_what_an_answer_said_is_found_by_the_next_question() -> None:
    """Of 40 tokens and an answer of 30 all but the last have been computed, which are four full pages of 16; with names
    of the prompt's pages alone two; of what follows another beginning none."""
    said = tuple(f"{page}" for page in range(6))
    first, second = TraceRequest(0, 40, 30, said[:5], 16), TraceRequest(10**9, 90, 2, said, 16)
    assert list(simulated([first, second]).requests.cached) == [0, 64]
    assert list(simulated([replace(first, blocks=said[:2]), second]).requests.cached) == [0, 32]
    other = replace(second, blocks=("x", *said[1:]))
    assert list(simulated([first, other]).requests.cached) == [0, 0]
    # One block for a whole conversation says as much.
    whole = [replace(one, blocks=("chat",), block=1 << 24) for one in (first, second)]
    assert list(simulated(whole).requests.cached) == [0, 64]


def test_users_ask_again_when_they_have_their_answer() -> None:
    """Three of them: no more than three requests are ever under way, each comes when its user has thought."""
    think = 2_000_000
    asked = draw_requests(iter(lambda: 0, 1), Fixed(100), Fixed(5), 1)
    think_time = ThinkTime(think, constant=True)
    log = run(machine(), ClosedLoop(3, think_time, bounded(asked, 40, None), None, seed=4))
    found = Columns(log)
    assert int(found.ok.sum()) == 40
    ends = sorted(found.last.tolist())
    assert sorted(found.arrived.tolist())[:3] == sorted(found.arrived.tolist()[:3])
    assert max(found.arrived.tolist()[:3]) < think
    assert sorted(found.arrived.tolist()[3:]) == [end + think for end in ends[:37]]


def test_a_user_who_is_refused_leaves() -> None:
    """One whose questions do not fit would ask for ever, at one moment."""
    asked = draw_requests(iter(lambda: 0, 1), Fixed(100_000), Fixed(5), 1)
    log = run(machine(), ClosedLoop(2, ThinkTime(), asked, 10**9, seed=4))
    assert len(log.requests) == 2
    assert set(log.requests.reasons) == {0, 1}
    assert measure(log, SLO(ttft=1), open_loop=False).good_share == 0


def test_users_who_would_begin_later_never_ask() -> None:
    """Of 200 who begin within a minute, those of the first ten seconds."""
    minute = ThinkTime(60 * 10**9, constant=True)
    asked = draw_requests(iter(lambda: 0, 1), Fixed(50), Fixed(2), 1)
    arrived = Columns(run(machine(), ClosedLoop(200, minute, asked, 10 * 10**9, seed=4))).arrived
    assert arrived.max() < 10 * 10**9
    assert 15 < len(arrived) < 60


def test_simulate_decides_nothing() -> None:
    """No scheduler, no ledger, no pool, no rule of when a request ends, no arithmetic of pages: the engine has them."""
    folder = Path(ridgeline.insight.simulate.__file__).parent
    asked = {"grow", "admit", "preempt", "commit", "release", "schedule", "append_token", "stop_ids", "first_page"}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                assert not any(word in node.name.lower() for word in ("schedul", "ledger", "pool", "evict")), path
            if isinstance(node, ast.Attribute):
                assert node.attr not in asked, f"{path.name}:{node.lineno} calls {node.attr}"
            if isinstance(node, ast.BinOp):
                text = ast.unparse(node)
                rounded = isinstance(node.op, ast.FloorDiv | ast.Mod)
                pages = "page_size" in text or (rounded and "page" in text)
                assert not pages, f"{path.name}:{node.lineno} computes with pages"
            if isinstance(node, ast.Import) and path.name != "paced_executor.py":  # which waits, and is no simulation
                assert not {alias.name for alias in node.names} & {"time", "datetime", "threading"}, path
