"""The energy of tokens: watts x devices x time, worked out by hand, and none where no watts are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.core.checkpoint.source import read_config
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.devices import load_device
from ridgeline.price.interval_text import cost_interval, rates_between
from ridgeline.price.plan import Demand, Deployment, DeploymentPlan, PlanWorkload, make_plan
from ridgeline.price.plan.energy import describe_energy, joules_per_token, kwh_per_million, watt_hours_cell
from ridgeline.price.plan.plan_answer import answer
from ridgeline.price.plan.plan_export import plan_json
from ridgeline.util.document.humanize import three_digits

WORKLOAD = PlanWorkload(1000, 200, ttft=1.0, tpot=0.05)


def planned(
    device: Device, devices: int = 1, demand: Demand | None = None, model: str = "llama-3-8b"
) -> DeploymentPlan:
    return make_plan(model, read_config(model), Deployment(device, devices), WORKLOAD, (), demand)


def test_by_hand() -> None:
    """Compare with 700 W at 3,500 tokens a second: 0.2 J a token, 200,000 J a million; a kWh has 3,600,000 J."""
    assert kwh_per_million(700, 3500) == pytest.approx(200_000 / 3_600_000)
    assert joules_per_token(200_000 / 3_600_000) == pytest.approx(0.2)
    assert kwh_per_million(None, 3500) is kwh_per_million(700, None) is joules_per_token(None) is None


@pytest.mark.parametrize("devices", [1, 2])
def test_a_plan_counts_every_device(devices: int) -> None:
    card = load_device("h100-sxm")
    assert card.watts == 700
    plan = planned(card, devices)
    rate = plan.capacity.load.tokens_per_second.expected
    told = plan_json(plan)
    assert told["answer"]["joules_per_token"] == pytest.approx(700 * devices / rate)
    assert told["answer"]["kwh_per_million_tokens"] == pytest.approx(700 * devices / rate / 3.6)
    assert told["device"]["watts"] == 700


@pytest.mark.parametrize("demand", [Demand(users=5), Demand(rate=100.0)])
def test_a_demand_counts_every_replica(demand: Demand) -> None:
    plan = planned(load_device("l40s"), demand=demand)
    fleet = plan.fleet
    assert fleet is not None
    assert fleet.kwh_per_million_tokens == plan.kwh_per_million_tokens
    assert fleet.kwh_per_million_tokens == pytest.approx(350 * fleet.replicas / fleet.tokens_per_second / 3.6)
    assert (fleet.replicas > 1) == (demand.rate is not None)
    most = plan.outcome.kwh_per_million_tokens
    assert most is not None
    assert plan.kwh_per_million_tokens >= most * (1 - 1e-9)  # a device that idles takes its watts too


def test_the_answer_says_that_it_is_an_upper_bound_of_the_boards() -> None:
    card = load_device("h100-sxm")
    dear, free = planned(replace(card, price=HourlyPrice(3.0, "2026", "bill", "Shop"))), planned(card)
    rate = dear.capacity.load.tokens_per_second.expected
    kwh, (low, high) = 700 / rate / 3.6, dear.cost_factors
    energy = (
        f"at full board power {three_digits(kwh)} {rates_between(kwh * low, kwh * high)} kWh "
        f"({three_digits(700 / rate)} J per token)"
    )
    million = 3 / 3600 / rate * 1e6
    around = cost_interval(dear.intervals["load"], million, 3 / 3600 / dear.capacity.load.tokens_per_second.floor * 1e6)
    dollars = f"${three_digits(million)} {around} per million output tokens, prompts included"
    assert dict(answer(dear))["cost"] == f"{dollars}, and {energy}; $3.00 per device and hour (Shop, 2026)"
    assert free.case.device.price is None
    assert dict(answer(free))["cost"] == (
        "no known seller offers this device; give --price or --prices FILE; per million output tokens, prompts "
        f"included: {energy}"
    )


@pytest.mark.parametrize(
    ("kwh", "cell"), [(0.0189, "19"), (0.00106, "1.1"), (0.00008, "0.08"), (2.064, "2064"), (0.00099, "0.99")]
)
def test_a_narrow_cell(kwh: float, cell: str) -> None:
    assert watt_hours_cell(kwh) == cell


def test_a_processor_has_no_board() -> None:
    assert describe_energy(1.0, load_device("epyc-9654"), (0.5, 2.0)) == (
        "at full TDP 1.00 [0.50 .. 2.00] kWh (3.60 J per token)"
    )


def test_nothing_is_said_without_watts_or_users() -> None:
    for plan in (planned(replace(load_device("h100-sxm"), watts=None)), planned(load_device("rtx-3060"))):
        assert plan.kwh_per_million_tokens is None
        assert not any(word in dict(answer(plan))["cost"] for word in ("kWh", "board power", " J "))
        told = plan_json(plan)["answer"]
        assert told["kwh_per_million_tokens"] is told["joules_per_token"] is None
    assert load_device("t4").watts == 70
    none = planned(load_device("t4"), model="llama-3.1-70b")  # it does not fit
    assert none.kwh_per_million_tokens is None


def test_watts_of_a_device_file_count(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    facts = 'title = "Maker Own"\nkind = "gpu"\ntflops = { bf16 = 300 }\nbandwidth = 2000\nmemory = { gb = 80 }\n'
    path.write_text(facts)
    assert planned(load_device(str(path))).kwh_per_million_tokens is None
    path.write_text(f"{facts}watts = 250\n")
    plan = planned(load_device(str(path)))
    rate = plan.capacity.load.tokens_per_second.expected
    assert plan.kwh_per_million_tokens == pytest.approx(250 / rate / 3.6)
    assert f": at full board power {three_digits(250 / rate / 3.6)} [" in dict(answer(plan))["cost"]
