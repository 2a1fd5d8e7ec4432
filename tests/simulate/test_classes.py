"""Request classes with objectives of their own: counted one by one, told, required, kept by capacities."""

from collections import Counter
from dataclasses import replace

import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.capacity import capacity
from ridgeline.insight.simulate.require import parse_requirement
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_export import findings_json
from ridgeline.insight.simulate.simulation_findings import SimulationFindings, simulate
from ridgeline.insight.simulate.simulation_metrics import measure
from ridgeline.insight.simulate.simulation_query import PriceUncertainty, SimulationQuery
from ridgeline.insight.simulate.slo_classes import class_verdict
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.percentiles import Interval
from ridgeline.insight.traffic.slo import MAX_CLASSES, SLO, parse_slos
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import machine
from support.exact_prices import EXACT

SLOS = ("ttft=120ms,tpot=707us", "batch:e2e=120ms")
ONE = machine(Limits(tokens=128, requests=16))


def offered(rate: float = 3000.0) -> OpenLoop:
    """Every third request is of class batch."""
    plain = bounded(draw_requests(poisson(rate, 5), Uniform(20, 200), Uniform(2, 40), 5), 300, None)
    return OpenLoop(
        TraceRequest(one.at, one.input, one.output, slo_class="batch" if place % 3 == 0 else "")
        for place, one in enumerate(plain)
    )


def calm() -> OpenLoop:
    """At a rate with which it keeps up."""
    return offered(300.0)


def found(error: float = 0.1) -> SimulationFindings:
    off = PriceUncertainty.of_share(error, "")
    return simulate(SimulationQuery("tiny", ONE, "", True, offered, parse_slos(SLOS), off, 5))


def test_each_request_is_held_to_its_own_class() -> None:
    """Against a count over the columns of the result file."""
    findings = found()
    result = findings_json(findings)
    rows, left_out = result["per_request"], findings.metrics.left_out
    good: Counter[str] = Counter()
    for place in range(left_out, 300):
        ttft, tpot, e2e = (rows[name][place] for name in ("ttft", "tpot", "e2e"))
        batch = place % 3 == 0
        good["batch" if batch else ""] += e2e <= 0.12 if batch else ttft <= 0.12 and tpot <= 707e-6
    classes = findings.metrics.classes
    assert {name: own.goodput.good for name, own in classes.items() if own.goodput} == good
    assert 0 < good[""] < classes[""].requests, "some are good and some are not"
    assert sum(own.requests for own in classes.values()) == 300 - left_out
    assert findings.metrics.goodput is not None
    assert findings.metrics.goodput.good == sum(good.values())
    for name, own in classes.items():
        share = findings.class_figures(name)["good_share"]
        assert share is not None
        assert share.low < own.good_share < share.high or own.good_share in (0, 1)
        assert share.low < share.high, "of none and of all, too, there is a width"
        assert result["classes"][name]["requests"] == own.requests
    assert result["classes"]["batch"]["slo"]["e2e"] == 120_000_000
    assert result["classes"]["batch"]["slo"]["ttft"] is None


def test_a_class_without_objectives_of_its_own_has_those_of_all_others() -> None:
    log = run(ONE, offered())
    alone = measure(log, parse_slos(["other:ttft=1s", "ttft=60ms"]), open_loop=True).classes
    plain = measure(log, SLO(ttft=60_000_000), open_loop=True)
    assert plain.goodput is not None
    assert sum(own.goodput.good for own in alone.values() if own.goodput) == plain.goodput.good
    free = measure(log, parse_slos(["batch:ttft=40ms"]), open_loop=True).classes[""]
    assert free.good_share == 1, "what nothing is asked of is good when it is answered"


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.991, 1.0, "kept"), (0.95, 0.989, "missed"), (0.985, 0.995, "undecided")]
)
def test_a_verdict_is_no_surer_than_its_interval(low: float, high: float, word: str) -> None:
    assert class_verdict(Interval(low, (low + high) / 2, high)) == word


def test_a_class_that_all_requests_are_of_is_one() -> None:
    """What is required of it is looked at; of another it is said which there is."""
    requests = [TraceRequest(at * 10**7, 40, 8, slo_class="batch") for at in range(60)]
    findings = simulate(
        SimulationQuery(
            "tiny",
            ONE,
            "",
            True,
            lambda: OpenLoop(requests),
            parse_slos(["ttft=1s"]),
            EXACT,
            5,
        )
    )
    assert list(findings.metrics.classes) == ["batch"]
    assert parse_requirement("batch:good_share>=90%").failed(findings) == ""
    assert parse_requirement("chat:good_share>=90%").failed(findings).endswith("'chat'; classes are batch")
    assert parse_requirement("chat:goodput>1").failed(found()).endswith("classes are batch, requests without a class")


def test_a_capacity_keeps_every_class() -> None:
    """Where one is served worse, the many that are good do not make up for it."""
    slo = {
        name: parse_slos([*text]) for name, text in (("all", ["ttft=60ms"]), ("own", ["ttft=60ms", "batch:e2e=40ms"]))
    }
    rates = {}
    for name, objectives in slo.items():
        at = lambda rate, factor, o=objectives: measure(run(ONE, offered(rate), factor), o, open_loop=True)  # noqa: E731
        levels = capacity(at, 200.0, (1.0, 1.0), attain=0.9).levels
        rates[name] = levels
        for level in levels:
            shares = [own.good_share for own in level.metrics.classes.values()]
            assert not level.good or min(shares) >= 0.9
    best = {name: max((level.rate for level in levels if level.good), default=0) for name, levels in rates.items()}
    assert 0 < best["own"] < best["all"]


def test_a_class_that_another_price_never_meets() -> None:
    """Two users: what they ask within the time depends on how fast they are answered."""

    def users() -> ClosedLoop:
        asked = (TraceRequest(0, 40, 8, slo_class="late" if place >= 60 else "") for place in range(200))
        return ClosedLoop(2, ThinkTime(), asked, 180_000_000, 0)

    logs = {factor: run(ONE, users(), factor) for factor in (0.7, 1.0, 1.3)}
    assert ["late" in log.requests.classes for log in logs.values()] == [True, True, False]
    off = PriceUncertainty.of_share(0.3, "")
    findings = simulate(SimulationQuery("tiny", ONE, "", False, users, parse_slos(["late:ttft=1s"]), off, 5))
    figures = findings.class_figures("late")
    share, goodput = figures["good_share"], figures["goodput"]
    assert share is not None
    assert goodput is not None
    assert share.mid == 1
    assert goodput.low == goodput.mid, "of users there is no draw, and the dearer run has none of it"


def test_goodput_of_a_class_has_the_draw_of_its_own_requests() -> None:
    """A price without error leaves the interval of a count."""
    findings = simulate(SimulationQuery("tiny", ONE, "", True, calm, parse_slos(SLOS), EXACT, 5))
    assert findings.verdict != "overloaded"
    for name, own in findings.metrics.classes.items():
        goodput = findings.class_figures(name)["goodput"]
        assert own.goodput is not None
        assert goodput is not None
        assert (goodput.high - goodput.mid) / goodput.mid == pytest.approx(1.96 / own.goodput.good**0.5, rel=1e-3)


def test_a_class_that_came_before_all_others_bars_no_capacity() -> None:
    """None of its requests count: they came while the replica filled up."""
    requests = list(bounded(draw_requests(poisson(300.0, 5), Uniform(20, 200), Uniform(2, 40), 5), 300, None))
    first = replace(requests[0], slo_class="first")
    metrics = measure(run(ONE, OpenLoop([first, *requests[1:]])), SLO(e2e=10**12), open_loop=True)
    assert metrics.classes["first"].requests == 0
    assert capacity(lambda rate, factor: metrics, 1.0, (1.0, 1.0)).levels[0].good


def test_more_classes_than_a_table_has_lines_for_are_refused() -> None:
    requests = [TraceRequest(place * 10**6, 20, 2, slo_class=str(place)) for place in range(MAX_CLASSES + 1)]
    assert len(run(ONE, OpenLoop(requests[:-1])).requests.classes) == MAX_CLASSES
    with pytest.raises(ValueError, match="more than 100 classes, the last is '100'; use fewer"):
        run(ONE, OpenLoop(requests))


def test_a_class_that_nothing_is_asked_of_has_no_verdict() -> None:
    asked = SimulationQuery("tiny", ONE, "", True, calm, parse_slos(["batch:e2e=120ms"]), EXACT, 5)
    told = findings_json(simulate(asked))["classes"]
    assert told[""]["verdict"] is None
    assert told["batch"]["verdict"] is not None
