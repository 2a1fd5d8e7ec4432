"""Think times: their distributions, and closed loops of users who think, against the theory of closed queues."""

import math
import random
from collections.abc import Callable
from itertools import repeat
from operator import itemgetter

import numpy as np
import pytest
from scipy import stats

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.arrivals import constant
from ridgeline.insight.traffic.lengths import Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, bounded, draw_requests
from ridgeline.insight.traffic.think_time import ThinkTime, parse_think_time
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import machine

SECOND = 10**9


@pytest.mark.parametrize("draws", [ThinkTime.draw, ThinkTime.draw_start])
def test_think_times_are_exponential(draws: Callable[[ThinkTime, random.Random], int]) -> None:
    """Check the rest of a think time too, after which a user sends the first request."""
    draw = random.Random(1)
    found = [draws(ThinkTime(20 * SECOND), draw) for _ in range(20_000)]
    assert stats.kstest(found, "expon", args=(0, 20 * SECOND)).pvalue > 0.01


def test_constant_think_times_are_equal_and_begin_anywhere() -> None:
    draw, think = random.Random(1), ThinkTime(20 * SECOND, constant=True)
    assert {think.draw(draw) for _ in range(100)} == {20 * SECOND}
    starts = [think.draw_start(draw) for _ in range(20_000)]
    assert stats.kstest(starts, "uniform", args=(0, 20 * SECOND)).pvalue > 0.01


def test_think_times_are_written_as_a_mean_or_as_a_constant() -> None:
    assert parse_think_time("20s", "--think") == ThinkTime(20 * SECOND)
    assert parse_think_time("constant:500ms", "--think") == ThinkTime(SECOND // 2, constant=True)
    assert parse_think_time("20s", "--think").in_words == "20.0 s on average (exponential)"
    assert parse_think_time("constant:20s", "--think").in_words == "20.0 s"


@pytest.mark.parametrize("text", ["", "2", "0s", "constant:", "constant:0s", "exponential:2s", "9999999h"])
def test_think_times_that_are_none_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"--think is .*; write a time .* like 500ms or 2s, .* or constant:2s"):
        parse_think_time(text, "--think")


@pytest.mark.parametrize(("users", "think", "servers"), [(10, 8, 1), (10, 20, 1), (12, 5, 3)])
def test_users_who_think_load_servers_as_the_machine_repairman_model_says(users: int, think: int, servers: int) -> None:
    """Compare the users who wait or are served with M/M/c//N, with service times of 1 s on average."""
    weights = [
        math.comb(users, n) * math.prod(min(k, servers) ** -1 * k for k in range(1, n + 1)) * think**-n
        for n in range(users + 1)
    ]
    exact = np.array(weights) / sum(weights)
    offered, draw = (
        ClosedLoop(users, ThinkTime(think * SECOND), repeat(TraceRequest(0, 1, 1)), None, 5),
        random.Random(9),
    )
    waiting: list[TraceRequest] = []
    served: list[tuple[int, TraceRequest]] = []  # when it ends, and the request
    now, seconds = 0, np.zeros(users + 1)
    for _ in range(120_000):
        ends = min((end for end, _ in served), default=None)
        asks = offered.upcoming
        at = min(moment for moment in (ends, asks) if moment is not None)
        seconds[len(waiting) + len(served)] += (at - now) / SECOND
        now = at
        if at == ends:
            done = min(served, key=itemgetter(0))
            served.remove(done)
            offered.ended(done[1], now, answered=True)
        else:
            waiting.append(offered.take())
        if waiting and len(served) < servers:
            served.append((now + round(draw.expovariate(1) * SECOND), waiting.pop(0)))
    measured = seconds / seconds.sum()
    assert np.abs(np.cumsum(measured - exact)).max() < 0.02
    assert measured @ range(users + 1) == pytest.approx(exact @ range(users + 1), rel=0.03)


def test_a_longer_run_of_users_who_think_is_no_slower() -> None:
    """Let a server answer all who wait together, as a step does: after equal think times they meet again."""
    tenths = {constant: _waits_by_tenth(ThinkTime(30 * SECOND, constant=constant)) for constant in (False, True)}
    steady = np.array(tenths[False])
    assert np.abs(steady / steady.mean() - 1).max() < 0.1
    assert tenths[True][-1] > 3 * tenths[True][0] > 9 * steady[0]


def _waits_by_tenth(think: ThinkTime) -> list[float]:
    """Return the mean seconds to a response by tenths of a run, at 0.1 to 0.3 s for each request of a batch."""
    offered, draw = ClosedLoop(100, think, repeat(TraceRequest(0, 1, 1)), None, 5), random.Random(3)
    now, waits = 0, []
    while len(waits) < 60_000:
        now = max(now, offered.upcoming or 0)
        batch = []
        while offered.upcoming is not None and offered.upcoming <= now:
            batch.append(offered.take())
        now += round(len(batch) * draw.uniform(0.1, 0.3) * SECOND)
        for request in batch:
            waits.append((now - request.at) / SECOND)
            offered.ended(request, now, answered=True)
    return [float(part.mean()) for part in np.array_split(waits, 10)]


def test_simulated_users_who_think_obey_the_interactive_response_time_law() -> None:
    """Compare the engine's throughput under load with users / (response + think time)."""
    users, think, count = 24, 40 * SECOND // 1000, 2_000
    asked = bounded(draw_requests(constant(1.0), Uniform(100, 300), Uniform(5, 15), 1), count, None)
    log = run(machine(Limits(tokens=512, requests=8)), ClosedLoop(users, ThinkTime(think), asked, None, 4))
    found = Columns(log)
    assert found.ok.all()
    response = (found.last - found.arrived).mean()
    assert found.arrived.max() / count == pytest.approx((response + think) / users, rel=0.03)
