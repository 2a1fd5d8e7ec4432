"""Verdicts, intervals, requirements, advice and the result as data."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.advice import advice
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.require import parse_requirement
from ridgeline.insight.simulate.serving_overhead import ApiServerOverhead
from ridgeline.insight.simulate.simulated_fleet import ALONE, SimulatedFleet
from ridgeline.insight.simulate.simulation_export import findings_json
from ridgeline.insight.simulate.simulation_findings import FIGURES, SimulationFindings, simulate
from ridgeline.insight.simulate.simulation_metrics import measure, warm_up
from ridgeline.insight.simulate.simulation_query import PriceUncertainty, SimulationQuery, price_error
from ridgeline.insight.simulate.simulation_report import answer, document
from ridgeline.insight.traffic.arrivals import constant, poisson
from ridgeline.insight.traffic.lengths import Fixed, Uniform
from ridgeline.insight.traffic.offered import (
    ClosedLoop,
    Offered,
    OpenLoop,
    bounded,
    draw_requests,
    jittered,
    subsampled,
    time_scaled,
    with_arrivals,
)
from ridgeline.insight.traffic.percentiles import MINUTE, block_intervals
from ridgeline.insight.traffic.slo import SLO, parse_slo
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.device import HourlyPrice
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.error_interval import LEVELS, error_intervals
from ridgeline.util.document.html import html
from ridgeline.util.document.humanize import percent, three_digits
from ridgeline.util.document.terminal_renderer import show
from simulate.machines import machine, simulated
from support.planned import H100, LLAMA_3_8B, TINY, card, case

PRICED = case(TINY, card(price=HourlyPrice(3.6, "2026", "a test")))
SLO_100MS = parse_slo("ttft=100ms,tpot=5ms")


def at_rate(rate: float, count: int) -> Callable[[], Offered]:
    return lambda: OpenLoop(bounded(draw_requests(poisson(rate, 5), Uniform(50, 150), Uniform(10, 30), 5), count, None))


def found(
    offered: Callable[[], Offered],
    on: Machine,
    slo: SLO | None = SLO_100MS,
    error: float = 0.1,
    *,
    open_loop: bool = True,
    fleet: SimulatedFleet = ALONE,
) -> SimulationFindings:
    asked = SimulationQuery(
        "tiny", on, "traffic of a test", open_loop, offered, slo, PriceUncertainty.of_share(error, "a test"), 5, fleet
    )
    return simulate(asked)


@pytest.fixture(scope="module")
def steady() -> SimulationFindings:
    return found(at_rate(1500.0, 1100), machine(on=PRICED))


@pytest.fixture(scope="module")
def overloaded() -> SimulationFindings:
    """One request at a time, of far too many."""
    return found(at_rate(1500.0, 300), machine(Limits(tokens=512, requests=1), 20, PRICED))


def test_a_steady_run(steady: SimulationFindings) -> None:
    """Its figures have their middle inside, its dollars follow from its tokens, its law is near."""
    assert steady.verdict == "steady"
    for name, of in FIGURES.items():
        figure = of(steady)
        assert figure is not None, name
        assert figure.low <= figure.mid <= figure.high
    tokens = FIGURES["tokens_per_second"](steady)
    dollars = FIGURES["dollars_per_million_tokens"](steady)
    assert tokens is not None
    assert dollars is not None
    assert dollars.mid == pytest.approx(3.6 / 3600 / tokens.mid * 1e6)
    ttft = FIGURES["ttft_p50"](steady)
    assert ttft is not None
    assert ttft.high > 1.08 * ttft.mid, "a price 10 % higher is at least that much later"
    assert steady.law is not None
    simulated_tpot = steady.metrics.latencies["TPOT"]
    assert simulated_tpot is not None
    assert steady.law.tpot == pytest.approx(simulated_tpot.mean, rel=0.07)


def test_where_steps_are_too_small_they_are_to_be_larger() -> None:
    """A step of 32 positions waits for memory as one of 512 does, with which the same card keeps up."""
    small = found(at_rate(1500.0, 1100), machine(Limits(tokens=32, requests=64), on=PRICED), error=0.0)
    assert small.verdict == "overloaded"
    assert (
        "tokens of a step's budget, although steps are limited by memory bandwidth: raise --max-batch-tokens"
        in advice(small)
    )
    few = found(at_rate(1500.0, 1100), machine(Limits(tokens=512, requests=1), on=PRICED), error=0.0)
    assert few.verdict == "overloaded"
    assert (
        "because 1 are already running, while at least 100% of the KV pages are free: raise --max-requests"
        in advice(few)
    )


def test_smaller_steps_are_advised_where_they_keep_up_and_help() -> None:
    """Of prompts that hold tokens up: not where all is within the objectives, nor of what would fall behind."""

    def of(rate: float, slo: str | None) -> str:
        objectives = None if slo is None else parse_slo(slo)
        on = machine(Limits(tokens=2048, requests=32), on=case(LLAMA_3_8B, H100))
        return advice(found(lambda: OpenLoop(bounded(requests_of(rate), 300, None)), on, objectives, error=0.0))

    def requests_of(rate: float) -> Iterator[TraceRequest]:
        return draw_requests(poisson(rate, 5), Fixed(2000), Fixed(20), 5)

    assert "with --max-batch-tokens 512" in of(6.0, None)
    assert "with --max-batch-tokens 512" in of(6.0, "tpot=1ms")
    assert "--max-batch-tokens" not in of(6.0, "ttft=60s")
    assert "--max-batch-tokens" not in of(24.5, None), "it would fall behind"


def test_what_a_dearer_run_has_too_few_of_has_no_interval(steady: SimulationFindings) -> None:
    """One that fills for longer counts fewer requests: then nobody knows how late its hundredth is."""
    dear = replace(steady.at_high_price, latencies=steady.at_high_price.latencies | {"TTFT": None})
    assert steady.latency("TTFT", 99) is not None
    assert replace(steady, at_high_price=dear).latency("TTFT", 99) is None


def test_an_overloaded_run_has_no_percentile(overloaded: SimulationFindings) -> None:
    """It says by how much it falls behind, and how many of it would do."""
    assert overloaded.verdict == "overloaded"
    lines = dict(answer(overloaded))
    assert "more are in flight each minute" in lines["verdict"]
    assert lines["TTFT"] == lines["ITL"] == "none, because in an overloaded run it grows with the length of the run"
    assert FIGURES["ttft_p50"](overloaded) is None
    result = findings_json(overloaded)
    assert result["figures"]["tpot_p50"] is None
    assert set(result["metrics"]["latencies"].values()) == {None}
    assert result["metrics"]["steadiness"]["growth"] > 0
    assert "use --replicas" in lines["advice"]


@pytest.mark.parametrize(
    "per",
    [
        lambda work: ApiServerOverhead(request=work),
        lambda work: ApiServerOverhead(token=work // 20),
        lambda work: ApiServerOverhead(answer=work),
    ],
)
def test_a_front_that_is_too_slow_is_what_limits(per: Callable[[int], ApiServerOverhead]) -> None:
    """Whatever it is slow with: with a third of what it has it works for a third of the time, with 1.5 times it falls
    behind, of cards that keep up."""
    rate = 500.0

    def offered() -> Offered:
        return OpenLoop(bounded(draw_requests(poisson(rate, 5), Fixed(100), Fixed(20), 5), 600, None))

    def through(share: float) -> SimulationFindings:
        return found(
            offered, machine(on=PRICED), error=0.0, fleet=SimulatedFleet(api_server=per(round(share / rate * 1e9)))
        )

    calm, slow = through(1 / 3), through(1.5)
    assert calm.verdict == "steady"
    assert calm.metrics.front == pytest.approx(calm.metrics.offered / rate / 3, rel=1e-4)
    assert f"core (--front) is busy {percent(calm.metrics.front)} of the run" in dict(answer(calm))["limit"]
    lines = dict(answer(slow))
    assert slow.verdict == "overloaded"
    assert lines["limit"].startswith("the API server's CPU core (--front), which gets 1.")
    assert "The API server's CPU core (--front) can handle only 333 of" in lines["advice"]
    assert slow.wall == pytest.approx(rate / 1.5)
    without = found(at_rate(rate, 300), machine(on=PRICED), error=0.0)
    assert without.metrics.front is None
    assert "--front" not in dict(answer(without))["limit"]


def test_a_front_is_blamed_for_what_it_does_alone() -> None:
    """Not where replicas fall behind as well, nor for users, who wait for it; steps that few requests share say nothing
    of its wall."""
    slow, tight = (
        SimulatedFleet(api_server=ApiServerOverhead(answer=2_000_000)),
        machine(Limits(tokens=512, requests=1), 20, PRICED),
    )
    both = found(at_rate(1500.0, 300), tight, error=0.0, fleet=slow)
    lines = dict(answer(both))
    assert both.verdict == "overloaded"
    assert lines["limit"].endswith("the API server's CPU core (--front) gets 2.93 s of work per second")
    assert re.search(
        r"use --replicas \d+, .*; the API server's CPU core \(--front\) cannot handle more than 500 per second",
        lines["advice"],
    )

    asked = draw_requests(constant(1.0), Fixed(100), Fixed(20), 1)
    users = found(
        lambda: ClosedLoop(8, ThinkTime(), bounded(asked, 200, None), None, 1),
        machine(on=PRICED),
        error=0.0,
        open_loop=False,
        fleet=slow,
    )
    assert users.verdict == "closed loop"
    assert users.metrics.front == pytest.approx(200 * 2_000_000 / users.log.end)
    assert users.metrics.front_wall == math.inf
    assert "the API server's CPU core (--front) is busy" in dict(answer(users))["limit"]

    per_step = found(
        at_rate(20.0, 40),
        machine(on=PRICED),
        error=0.0,
        fleet=SimulatedFleet(api_server=ApiServerOverhead(step=100_000)),
    )
    assert per_step.metrics.front is not None
    assert 0 < per_step.metrics.front < 1
    assert per_step.metrics.front_wall == math.inf
    assert per_step.wall == per_step.law_saturation_rate
    assert findings_json(per_step)["metrics"]["front"] == per_step.metrics.front

    one = found(lambda: OpenLoop([TraceRequest(0, 40, 5)]), machine(on=PRICED), error=0.0, fleet=slow)
    assert one.verdict == "too short to tell"
    assert one.metrics.front == pytest.approx(2_000_000 / one.log.end)


def test_what_is_answered_in_the_warm_up_alone_has_no_law() -> None:
    """Two long answers, and then only what is too long: there is nothing to say, and nothing fails."""
    requests = [TraceRequest(at, 10, 300) for at in (0, 1_000)]
    refused = [TraceRequest(at * 10**6, 10**6, 10) for at in range(1, 40)]
    run = found(lambda: OpenLoop([*requests, *refused]), machine(on=PRICED), error=0.0)
    assert run.metrics.output == 0
    assert run.law is None
    assert "cannot run" in dict(answer(run))["advice"]


def test_the_wall_is_of_all_replicas() -> None:
    fleet = found(at_rate(500.0, 300), machine(on=PRICED), error=0.0, fleet=SimulatedFleet(3))
    assert fleet.law is not None
    assert fleet.wall == 3 * fleet.law.saturation_rate
    assert f"above {three_digits(fleet.wall)} requests per second" in dict(answer(fleet))["law"]


def test_a_backlog_is_told(steady: SimulationFindings) -> None:
    """Users who are more than places wait, and nothing grows."""
    few = machine(Limits(tokens=512, requests=4), on=PRICED)
    asked = draw_requests(constant(1.0), Fixed(100), Uniform(10, 30), 1)
    run = found(lambda: ClosedLoop(8, ThinkTime(), bounded(asked, 200, None), None, 1), few, error=0.0, open_loop=False)
    assert run.verdict == "closed loop"
    assert run.law is None
    assert run.metrics.steps.held["requests"] > 0.9
    assert "raise --max-requests" in dict(answer(run))["advice"]
    assert "4 are running" in dict(answer(run))["limit"]


def test_pages_that_are_short_are_told() -> None:
    run = found(at_rate(220.0, 300), machine(Limits(tokens=512, requests=64), 30, PRICED), error=0.0)
    assert run.metrics.preemptions + run.metrics.steps.held["pages"] > 0
    assert "KV pages" in dict(answer(run))["advice"]


def test_an_interval_without_end(overloaded: SimulationFindings) -> None:
    """At seven tenths of what it can do a price 1.9 times as high overloads it: JSON has null for that end."""
    rate = 0.7 * overloaded.metrics.requests_per_second
    run = found(at_rate(rate, 500), overloaded.query.machine, error=0.9)
    assert run.verdict in ("steady", "backlogged")
    ttft = FIGURES["ttft_p50"](run)
    assert ttft is not None
    assert math.isinf(ttft.high)
    assert findings_json(run)["figures"]["ttft_p50"]["high"] is None
    assert "unbounded" in dict(answer(run))["TTFT"]
    assert dict(answer(run))["verdict"].endswith("; overloaded if steps take x 1.90 of their predicted times")
    assert "not met" in parse_requirement("ttft_p50<10s").failed(run)


def test_rates_have_the_spread_of_other_draws() -> None:
    """A replica that keeps up gives what comes, and what comes is drawn: here 300 times, with nothing simulated."""
    lengths = Uniform(1, 60)

    def offered(seed: int) -> list[TraceRequest]:
        return list(bounded(draw_requests(poisson(400.0, seed), Uniform(50, 150), lengths, seed), None, 10**9))

    run = found(lambda: OpenLoop(offered(5)), machine(on=PRICED), error=0.0)
    assert run.verdict == "steady"
    tokens, requests = FIGURES["tokens_per_second"](run), FIGURES["requests_per_second"](run)
    assert tokens is not None
    assert requests is not None
    draws = [offered(seed) for seed in range(100, 400)]
    for figure, drawn_so in (
        (tokens, [sum(request.output for request in draw) for draw in draws]),
        (requests, [len(draw) for draw in draws]),
    ):
        spread_of_draws = 1.96 * float(np.std(drawn_so) / np.mean(drawn_so))
        assert (figure.high - figure.low) / (2 * figure.mid) == pytest.approx(spread_of_draws, rel=0.15)


def test_dollars_of_what_never_comes_have_no_interval() -> None:
    """Where nothing is good a good request costs no finite sum, at either end."""
    run = found(at_rate(220.0, 100), machine(on=PRICED), parse_slo("ttft=1us"), error=0.0)
    good = FIGURES["dollars_per_thousand_good"](run)
    assert good is not None
    assert (good.low, good.mid, good.high) == (math.inf, math.inf, math.inf)
    assert "unbounded per thousand good requests" in dict(answer(run))["cost"]


def test_requirements(steady: SimulationFindings, overloaded: SimulationFindings) -> None:
    """They hold at the worse end of the interval, or are told in one line."""
    ttft, share = FIGURES["ttft_p50"](steady), FIGURES["good_share"](steady)
    assert ttft is not None
    assert share is not None
    between = (ttft.mid + ttft.high) / 2 * 1e6
    assert parse_requirement(f"ttft_p50<{ttft.high * 1e6 + 1:.3f}us").failed(steady) == ""
    assert "is not met: ttft_p50 is" in parse_requirement(f"ttft_p50<{between:.3f}us").failed(steady)
    assert parse_requirement(f"good_share>={share.low * 100 - 1:.2f}%").failed(steady) == ""
    assert "overloaded" in parse_requirement("ttft_p50<10s").failed(overloaded)
    assert parse_requirement("preemptions<=0").failed(steady) == ""
    assert parse_requirement("e2e_p99<1m").failed(steady) == ""
    assert "is not met: preemptions is 0" in parse_requirement("preemptions>0").failed(steady)
    assert "is not met: preemptions is 0" in parse_requirement("preemptions<0").failed(steady)
    assert parse_requirement("preemptions>=0").failed(steady) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft_p99", "write a figure"),
        ("ttft_p98<1s", "names the unknown figure 'ttft_p98'; figures are ttft_p50"),
        ("ttft_p99<500", "give a time with its unit"),
        ("goodput>5ms", "goodput is not a time: leave the unit out"),
        ("e2e_p99<1", "give a time with its unit"),
        ("good_share>99", "good_share is a share: write it from 0% to 100%"),
        ("goodput>50%", "goodput is not a share: leave the % out"),
        ("preemptions<1%", "preemptions is not a share: leave the % out"),
    ],
)
def test_what_is_no_requirement_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_requirement(text)


def test_the_result_is_json_and_a_page(steady: SimulationFindings, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns of one length, seconds that add up, twelve lines, figures without scripts."""
    result = json.loads(json.dumps(findings_json(steady), allow_nan=False))
    assert {len(column) for column in result["per_request"].values()} == {1100}
    seconds = result["steps"]["per_second"]
    assert {len(column) for column in seconds.values()} == {len(seconds["second"])}
    assert sum(seconds["arrived"]) == sum(seconds["finished"]) == 1100
    assert sum(seconds["tokens"]) == sum(result["per_request"]["output_tokens"])
    assert len(list(answer(steady))) == 12
    show(document(steady))
    assert "verdict  steady" in capsys.readouterr().out
    page = html(document(steady, with_charts=True))
    assert page.count("<svg") >= 8
    assert "<script" not in page


def test_what_comes_while_it_fills_is_left_out() -> None:
    """Hundreds that decode at once are reached late; one alone is there at once."""
    log = simulated(bounded(draw_requests(constant(2000.0), Fixed(50), Fixed(100), 1), 400, None), machine())
    assert 0 < measure(log, None, open_loop=True).left_out < 200
    alone = simulated([TraceRequest(0, 10, 3)])
    assert warm_up(alone, Columns(alone)) == 0


def test_loads_are_those_of_all_steps_where_all_come_at_once() -> None:
    """As sums over the log have them: no step begins before the last arrival, which is the first."""
    log = simulated([TraceRequest(0, 40, 30) for _ in range(50)], machine(Limits(tokens=512, requests=8)))
    steps, found = log.steps, measure(log, None, open_loop=True).steps
    assert found.count == len(steps)
    took = np.asarray(steps.took)
    assert found.batch == pytest.approx((took * np.asarray(steps.sequences)).sum() / took.sum())
    assert found.held["requests"] == pytest.approx(took[np.asarray(steps.held) == 1].sum() / log.end)
    assert found.longest == took.max() / 1e9
    assert found.draining


def test_each_rate_names_its_window(steady: SimulationFindings) -> None:
    """Check the rates against the log: completed requests and tokens to the last token, arrivals to the last one."""
    metrics, found, lines = steady.metrics, Columns(steady.log), dict(answer(steady))
    counted = found.arrived >= metrics.warm_up * 1e9
    seconds = (found.last[counted].max() - found.arrived[counted].min()) / 1e9
    coming = (found.arrived.max() - found.arrived[counted].min()) / 1e9
    window = "from the first counted arrival to the last token"
    assert metrics.left_out
    assert metrics.requests_per_second == pytest.approx(counted.sum() / seconds)
    assert metrics.tokens_per_second == pytest.approx(found.made[counted].sum() / seconds)
    assert metrics.offered == pytest.approx((counted.sum() - 1) / coming)
    assert f"; {three_digits(metrics.requests_per_second)} per second {window}, of " in lines["verdict"]
    assert f"{three_digits(metrics.offered)} offered per second until the last arrival" in lines["verdict"]
    assert lines["goodput"].endswith(f"both rates {window}")
    assert not metrics.steps.draining
    assert "(from the end of the warm-up to the last arrival)" in lines["load"]
    assert "used on average until the last arrival" in lines["pages"]


def test_how_far_prices_are_off() -> None:
    """Read the factors that a plan has under load, and a share of the user, which is the same on both sides."""
    unknown = price_error(case(TINY))
    load = error_intervals()["load", "unknown"]
    assert (unknown.low, unknown.high, unknown.share) == (load.low, load.high, None)
    assert unknown.low < 1 < unknown.high
    assert unknown.source == f"{load.measurements}; {LEVELS['unknown']}"
    own = price_error(case(TINY, card(calibrated=True), engine=load_engine("ridgeline")))
    assert own.source.endswith(LEVELS["measured"])
    assert not unknown.is_none
    given = PriceUncertainty.of_share(0.25, "--price-error")
    assert (given.low, given.high, given.share) == (0.75, 1.25, 0.25)
    assert PriceUncertainty.of_share(0.0, "").is_none


def test_what_the_intervals_cover_is_told() -> None:
    """Check that only measured factors claim eight of ten, and that JSON has only a share that was given."""

    def told(error: PriceUncertainty) -> tuple[str, dict[str, object]]:
        asked = SimulationQuery("tiny", machine(on=PRICED), "", True, at_rate(1500.0, 100), None, error, 5)
        run = simulate(asked)
        return dict(answer(run))["trust"], findings_json(run)["inputs"]["price_error"]

    measured, exported = told(PriceUncertainty(0.8, 1.5, "40 measurements of 4 sources"))
    assert measured.startswith(
        "intervals, meant to hold 8 of 10 measurements, include step times of x 0.80 to x 1.50 of the predicted ones "
        "(40 measurements of 4 sources) and the randomness of requests"
    )
    assert exported == {"low": 0.8, "high": 1.5, "source": "40 measurements of 4 sources"}
    given, exported = told(PriceUncertainty.of_share(0.25, "--price-error"))
    assert given.startswith("intervals include step times of x 0.75 to x 1.25 of the predicted ones (--price-error)")
    assert exported == {"low": 0.75, "high": 1.25, "source": "--price-error", "share": 0.25}
    exact, _ = told(PriceUncertainty.of_share(0.0, "--price-error"))
    assert exact.startswith("intervals include the randomness of requests, but no error of the predicted step times (")


# -- traffic ----------------------------------------------------------------------------------------------------------


def test_traces_are_hurried_thinned_and_bounded() -> None:
    requests = [TraceRequest(at * 10**9, 10, 2) for at in range(1000)]
    assert [request.at for request in islice(time_scaled(requests, 4.0), 3)] == [0, 250_000_000, 500_000_000]
    kept = list(subsampled(requests, 0.3, 1))
    assert kept == list(subsampled(requests, 0.3, 1))
    assert 250 < len(kept) < 350
    assert len(list(bounded(requests, None, 10 * 10**9))) == 10
    assert [request.at for request in with_arrivals(requests[:2], iter([5, 7]))] == [5, 7]


def test_fixed_lengths_are_spread() -> None:
    assert jittered(Fixed(1000)) == Uniform(900, 1100)
    assert jittered(Fixed(3)) == Fixed(3)
    assert jittered(Uniform(7, 8)) == Uniform(7, 8)


def test_blocks_of_minutes_say_how_alike_neighbours_are() -> None:
    """Of independent samples the bootstrap is as wide as order statistics are; where minutes differ it is wider."""
    draw = np.random.default_rng(0)
    moments = np.sort(draw.integers(0, 60 * MINUTE, 6000))
    alike = draw.normal(10.0, 1.0, 6000)
    minutes = draw.normal(0.0, 1.0, 61)[moments // MINUTE]
    within = partial(block_intervals, weights=None, moments=moments, percents=(50,))
    low, high = within(alike)[50]
    assert low < np.median(alike) < high
    assert 0.6 < (high - low) / (2 * 1.96 * 1.2533 / math.sqrt(6000)) < 1.5  # the standard error of a normal median
    wide = within(alike + minutes)[50]
    assert wide[1] - wide[0] > 4 * (high - low)
    assert block_intervals(alike, None, moments // 60, (50,)) == {}, "one minute says nothing of others"
    doubled = block_intervals(alike, np.full(6000, 2.0), moments, (50,))[50]
    assert doubled == pytest.approx((low, high), abs=0.02)
