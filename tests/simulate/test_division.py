"""How many cards, and how divided: the best of all that there could be, by dollars."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.adviser import simulate_setting
from ridgeline.insight.simulate.fleet_sizing import FleetSizing, search_fleet_size
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation_export import findings_json
from ridgeline.insight.simulate.simulation_findings import simulate
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.simulate.simulation_report import document
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Uniform
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.device import HourlyPrice
from ridgeline.util.document.terminal_renderer import show
from simulate.machines import machine
from support.exact_prices import EXACT
from support.planned import LLAMA_3_8B, card, case

PRICED = card(price=HourlyPrice(3.0, "2026", "test"))


def on(devices: int) -> Machine:
    if devices == 8:
        raise ValueError("more than this machine has")
    return machine(Limits(512, 64), 1000, case(LLAMA_3_8B, PRICED, devices=devices))


def offered(rate: float) -> OpenLoop:
    return OpenLoop(bounded(draw_requests(poisson(rate, 3), Uniform(200, 600), Uniform(5, 35), 3), 150, None))


def asked(rate: float, slo: str, replicas: int = 1) -> SimulationQuery:
    fleet = SimulatedFleet(replicas, "two", 50_000_000)
    return SimulationQuery(
        "8b",
        on(1),
        "a test",
        True,
        partial(offered, rate),
        parse_slo(slo),
        EXACT,
        3,
        fleet,
    )


@pytest.mark.parametrize("slo", ["ttft=150ms", "ttft=150ms,tpot=9ms"])
def test_it_is_the_best_of_all(slo: str) -> None:
    """Of every division of eight cards, run one by one: nothing that was left out is better."""
    own = asked(60.0, slo)
    found = search_fleet_size(own, 8, on)
    values = {}
    for devices, replicas in product((1, 2, 4), (1, 2, 3, 4, 6, 8)):
        if devices * replicas <= 8:
            each = replace(own, machine=on(devices), fleet=replace(own.fleet, replicas=replicas))
            option = simulate_setting(each, each.machine).comparable_to(found.own.option)
            values[devices, replicas] = option.share / (3.0 * devices * replicas)
    assert found.best.good_share_per_dollar == max(values.values())
    assert found.best.good_share_per_dollar == values[found.best.devices, found.best.replicas]
    assert {(each.devices, each.replicas): each.good_share_per_dollar for each in found.tried}.items() <= values.items()
    assert found.worth
    assert found.sentence.startswith(f"--devices {found.best.devices} --replicas {found.best.replicas}: $")


def test_three_replicas_are_tried() -> None:
    """Where two fall behind and four are more than enough."""
    found = search_fleet_size(asked(120.0, "ttft=300ms"), 3, on)
    assert (found.best.devices, found.best.replicas) == (1, 3)


def test_one_card_that_does_is_the_best() -> None:
    """What else there is costs more and cannot have more: it is not run."""
    found = search_fleet_size(asked(5.0, "ttft=1s"), 64, on)
    assert (len(found.tried), found.worth) == (1, False)
    assert found.sentence.startswith("No other division costs significantly less: yours costs $")
    fewer = search_fleet_size(asked(5.0, "ttft=1s", replicas=4), 8, on)
    assert (fewer.best.devices, fewer.best.replicas) == (1, 1)
    assert fewer.gain is not None
    assert fewer.gain.mid == pytest.approx(3.0)


def test_dollars_go_by_what_decides() -> None:
    """The best is the cheapest for what is good, by one count of requests, whatever each took to empty."""
    for rate in (5.0, 60.0):
        found = search_fleet_size(asked(rate, "ttft=150ms"), 8, on)
        assert found.best.dollars_per_thousand_good == min(each.dollars_per_thousand_good for each in found.tried)
        products = [
            each.dollars_per_thousand_good * each.good_share_per_dollar
            for each in found.tried
            if each.good_share_per_dollar
        ]
        assert products == pytest.approx([products[0]] * len(products))
    at_once = replace(asked(5.0, "ttft=10s"), offered=lambda: OpenLoop([TraceRequest(0, 100, 9)] * 40))
    assert 0 < search_fleet_size(at_once, 1, on).own.dollars_per_thousand_good < math.inf


def test_what_is_refused() -> None:
    free = replace(asked(5.0, "ttft=1s"), machine=machine(on=case(LLAMA_3_8B)))
    for wrong, says in ((replace(free, slo=None), "give --slo"), (free, "give --price")):
        with pytest.raises(ValueError, match=says):
            search_fleet_size(wrong, 8, on)


def test_where_nothing_is_good() -> None:
    found = search_fleet_size(asked(60.0, "ttft=1us"), 8, on)
    assert found.sentence == "No division of this number of GPUs keeps up and has good requests."
    assert json.loads(json.dumps(result(found)))["division"]["tried"][0]["dollars_per_thousand_good"] is None


def test_what_falls_behind_is_said_to() -> None:
    """Some of its first requests are good, which is not denied, and none of them count."""
    found = search_fleet_size(asked(60.0, "ttft=1s,tpot=50ms"), 2, on)
    assert found.own.option.overloaded
    assert found.own.option.metrics.good_share > 0
    assert found.worth
    assert "; yours falls behind" in found.sentence


def result(division: FleetSizing) -> dict[str, object]:
    """The whole answer as data; printing it is no fault."""
    findings = replace(simulate(asked(5.0, "ttft=1s")), division=division)
    show(document(findings))
    return findings_json(findings)
