"""Levers, ways to fit and the comparison of cards: each is what a plan with that setup says itself."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from ridgeline.core.models import ModelRefused
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.devices import catalogue_devices, load_device
from ridgeline.price.hourly_prices import PriceSnapshot, with_prices
from ridgeline.price.interconnect import Interconnect, latency_bandwidth_curve
from ridgeline.price.plan import Deployment, DeploymentPlan, PlanWorkload, make_plan
from ridgeline.price.plan.alternatives import outcome_of
from ridgeline.price.plan.comparison import DeviceComparison, compare
from ridgeline.price.plan.demand import Demand
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.plan_answer import answer
from ridgeline.price.plan.plan_export import plan_json
from ridgeline.price.plan.plan_text import scarcest, verdict, without_kernels
from ridgeline.price.plan.scenario import ModelCache
from support.planned import H100, IDEAL, LLAMA_3_8B, LLAMA_3_70B, TINY, TINY_MIXTURE, TINY_SLIDING, card, fields

TENTH_70B = LLAMA_3_70B | {"num_hidden_layers": 8}
SHOP = PriceSnapshot("shop", "Shop", "2026", "its list", {"h100-sxm": 4.0, "rtx-4090": 0.3, "h200-sxm": 3.0})
CATALOGUE = with_prices([load_device(name) for name in ("h100-sxm", "rtx-4090", "mi300x", "h200-sxm")], SHOP)


def planned(config: dict[str, Any], setup: Deployment, workload: PlanWorkload | None = None) -> DeploymentPlan:
    """A plan among four cards."""
    return make_plan("test", fields(config), setup, workload or PlanWorkload(), CATALOGUE)


def compared(
    config: dict[str, Any], setup: Deployment, workload: PlanWorkload, devices: Sequence[Device]
) -> DeviceComparison:
    return compare("test", ModelCache(fields(config)), setup, workload, devices, Demand())


@pytest.fixture(scope="module")
def plan_8b() -> DeploymentPlan:
    """Llama-3-8B on an A100 of the shop's."""
    price = HourlyPrice(2.0, "2026", "its list", "Shop")
    return planned(LLAMA_3_8B, Deployment(card(price=price)), PlanWorkload(1000, 200, tpot=0.08))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("int8 weights", {"weights": "int8"}),
        ("w8a8 weights", {"weights": "w8a8"}),
        ("int4 weights", {"weights": "int4"}),
        ("int8 KV", {"kv": "int8"}),
        ("2 devices", {"devices": 2}),
    ],
)
def test_a_lever_is_the_plan_with_it(plan_8b: DeploymentPlan, name: str, change: dict[str, Any]) -> None:
    lever = next(lever for lever in plan_8b.levers if lever.name == name)
    moved = planned(LLAMA_3_8B, dataclasses.replace(plan_8b.case.setup, **change), plan_8b.workload)
    assert lever.outcome == moved.outcome
    assert lever.faster == pytest.approx(plan_8b.decode.seconds.expected / moved.decode.seconds.expected)
    assert lever.first == pytest.approx(plan_8b.prefill.seconds.expected / moved.prefill.seconds.expected)
    assert lever.users == pytest.approx(moved.capacity.users / plan_8b.capacity.users)
    rates = [p.capacity.load.tokens_per_second.expected for p in (plan_8b, moved)]
    assert lever.throughput == pytest.approx(rates[1] / rates[0])


@pytest.mark.parametrize(
    ("peaks", "formats"),
    [
        ({"bf16": 312e12, "int8": 624e12}, ["int8", "w8a8", "int4"]),
        ({"bf16": 362e12, "fp8": 733e12, "int8": 733e12}, ["fp8", "int8", "int4"]),
        ({"bf16": 165e12, "fp8": 330e12, "int8": 660e12}, ["fp8", "int8", "w8a8", "int4"]),
        ({"bf16": 2500e12, "fp8": 5000e12, "int8": 165e12}, ["fp8", "int8", "int4"]),
        ({"bf16": 100e12}, ["int8", "int4"]),
    ],
)
def test_whether_int8_helps_is_among_the_levers(peaks: dict[str, float], formats: list[str]) -> None:
    """Beside fp8 there was none. Products in int8 stand there where the card is fastest in them, and without kernel
    times they say so and are not what the line of the answer names."""
    plan = planned(TINY, Deployment(card(peaks={"fp32": 20e12} | peaks)))
    assert [lever.outcome.weights for lever in plan.levers if lever.name.endswith(" weights")] == formats
    assert "w8a8" not in [change.outcome.weights for change in plan.narrower]
    without = [lever.outcome.weights for lever in plan.levers if without_kernels(plan, lever)]
    assert without == [name for name in formats if name == "w8a8"]
    timed = dataclasses.replace(plan.case.setup.device, efficiency={**IDEAL, "linear/int8": IDEAL["default"]})
    assert not any(
        without_kernels(again, lever) for again in [planned(TINY, Deployment(timed))] for lever in again.levers
    )


def test_the_fastest_and_the_cheapest_card_are_offered(plan_8b: DeploymentPlan) -> None:
    models = ModelCache(fields(LLAMA_3_8B))
    alone = [outcome_of(LoadEstimator(models.scenario(Deployment(device)), plan_8b.workload)) for device in CATALOGUE]
    fastest = max(alone, key=lambda o: o.tokens_per_second or 0)
    cheapest = min(alone, key=lambda o: o.dollars_per_million or 1e9)
    assert fastest != cheapest
    offered = [lever.outcome for lever in plan_8b.levers if lever.outcome.device_name != "text-a100"]
    assert offered == list(dict.fromkeys([fastest, cheapest]))


def test_sensitivities_on_a_card_of_perfect_kernels(plan_8b: DeploymentPlan) -> None:
    """Twice the bandwidth halves a user's step, twice the FLOP/s almost the prefill, twice the memory neither."""
    flops, bandwidth, memory = plan_8b.sensitivities
    assert 1.7 < flops.first < 2  # the weights of 1,000 tokens still take a part of the time
    assert flops.faster == pytest.approx(1, rel=0.01)
    assert bandwidth.faster == pytest.approx(2, rel=0.01)
    assert memory.faster == memory.first == 1
    assert (memory.users or 0) >= 1


def test_twice_of_everything_is_twice_as_fast() -> None:
    base = card()
    both = card(peaks={n: 2 * p for n, p in base.peaks.items()}, bandwidth=2 * base.bandwidth)
    one, two = (planned(TINY, Deployment(device)) for device in (base, both))
    assert one.decode.seconds.floor == pytest.approx(2 * two.decode.seconds.floor)
    assert one.prefill.seconds.bound == pytest.approx(2 * two.prefill.seconds.bound)


def test_what_makes_a_model_fit() -> None:
    """A tenth of 70B, 15.9 GB with its tables, on cards of 12 GB: in int4 on one, in bf16 on two."""
    small = dataclasses.replace(H100, memory=12e9)
    plan = planned(TENTH_70B, Deployment(small), PlanWorkload(2000, 500))
    assert not plan.memory.fits
    assert plan.memory.weights == 2 * 8 * 855_654_400 + 2 * (2 * 128_256 * 8192 + 8192)
    found = {(way.weights, way.devices) for way in plan.ways}
    models = ModelCache(fields(TENTH_70B))
    for weights, devices in found:
        assert memory_of(models.scenario(Deployment(small, devices, weights)), plan.workload).fits
    assert {weights for weights, _ in found} == {"int4", None}
    (bf16,) = (devices for weights, devices in found if weights is None)
    assert not memory_of(models.scenario(Deployment(small, bf16 // 2)), plan.workload).fits
    assert "does not fit" in verdict(plan)
    assert plan.outcome.tokens_per_second is None
    assert plan.dollars_per_million is None


def test_joined_cards_have_a_link_to_double() -> None:
    """A plan whose limit was the link recommended bandwidth: no other resource was tried."""
    slow = card(link=Interconnect("PCIe", 1e9, {"custom": {8: latency_bandwidth_curve(5e-6, 0.8e9)}}))
    alone, joined = (planned(LLAMA_3_8B, Deployment(slow, devices)) for devices in (1, 8))
    names = [change.name for change in joined.sensitivities]
    assert names == [*(change.name for change in alone.sensitivities), "twice the link bandwidth"]
    gains = {change.name: change.throughput or 0 for change in joined.sensitivities}
    assert max(gains, key=lambda name: gains[name]) == "twice the link bandwidth"
    assert 1.5 < gains["twice the link bandwidth"] <= 2


def test_levers_are_ordered_by_what_they_bring(plan_8b: DeploymentPlan) -> None:
    """Check int8 KV (x 1.14 tokens) against int8 weights (x 1.10), which stood above it: a single user gains more."""
    own = [change for change in plan_8b.levers if change.outcome.device_name == "text-a100"]
    gains = [change.throughput or 0 for change in own]
    assert gains == sorted(gains, reverse=True)
    weights, kv = (next(change for change in own if change.name == f"int8 {what}") for what in ("weights", "KV"))
    assert weights.faster > kv.faster
    assert (kv.users or 0) > (weights.users or 0)
    assert (kv.throughput or 0) > (weights.throughput or 0)
    line = dict(answer(plan_8b))["lever"]
    assert line.startswith("int8 KV: ")
    assert scarcest(plan_8b).name == "twice the FLOP/s"  # type: ignore[union-attr]
    assert "(saves memory and bandwidth, not FLOP/s; " in line


def test_a_lever_that_saves_the_scarce_resource_does_not_deny_it() -> None:
    """Check a device that is short of memory: narrower weights are what its limit asks for."""
    plan = planned(LLAMA_3_8B, Deployment(card(memory=24e9)))
    assert scarcest(plan).name == "twice the memory"  # type: ignore[union-attr]
    assert "(saves memory and bandwidth; " in dict(answer(plan))["lever"]


@pytest.mark.parametrize("kv", [None, "fp32"])
def test_a_model_in_fp32_is_offered_bf16(kv: str | None) -> None:
    plan = planned(LLAMA_3_8B, Deployment(card(), weights="fp32", kv=kv))
    names = [change.name for change in plan.levers if change.outcome.device_name == "text-a100"]
    assert sorted(names) == sorted(
        ["bf16 weights and KV", "int8 weights", "w8a8 weights", "int4 weights", "int8 KV", "2 devices"]
    )
    changed = next(change.outcome for change in plan.levers if change.name == "bf16 weights and KV")
    assert (changed.weights, changed.kv) == ("bf16", "bf16")
    small = planned(LLAMA_3_8B, Deployment(card(memory=24e9), weights="fp32", kv=kv))
    assert not small.memory.fits
    assert [way.weights for way in small.ways] == ["bf16", "fp32"]


def test_a_card_without_a_link_is_not_multiplied() -> None:
    plan = planned(TENTH_70B, Deployment(card(link=None, memory=4e9)))
    assert plan.ways == ()
    assert "it fits with no weight format and no number of linked devices" in verdict(plan)
    assert all(change.outcome.devices == 1 for change in plan.levers)


def test_the_price_of_another_seller_says_nothing_of_a_card(plan_8b: DeploymentPlan) -> None:
    """An A100 of 40 GB at $4.10 stood beside one of 80 GB at $1.29: two sellers, one ranking."""
    elsewhere = Deployment(card(price=HourlyPrice(2.0, "2026", "another list", "Another")))
    plan = planned(LLAMA_3_8B, elsewhere, plan_8b.workload)
    assert [change.outcome.device_name for change in plan.other_devices] == ["mi300x"]  # the fastest, not the cheapest
    assert all(change.cost is None for change in plan.other_devices)
    assert [change.outcome.device_name for change in plan_8b.other_devices] == ["mi300x", "rtx-4090"]
    assert plan_8b.other_devices[1].cost is not None
    assert all(change.cost is not None for change in plan.narrower)  # of the same card a price is its own


def test_compare_is_the_plan_on_each_card() -> None:
    """On cards with a tenth of their memory, so that some need several."""
    small = tuple(dataclasses.replace(device, memory=device.memory / 10) for device in CATALOGUE)
    found = compared(TENTH_70B, Deployment(H100), PlanWorkload(), small)
    assert {offer.outcome.device_name for offer in found.offers} == {device.name for device in small}
    assert {offer.outcome.devices for offer in found.offers} > {1}
    by_name = {device.name: device for device in small}
    for outcome in (offer.outcome for offer in found.offers):
        of = Deployment(by_name[outcome.device_name], outcome.devices, outcome.weights, outcome.kv)
        alone = ModelCache(fields(TENTH_70B)).scenario(of)  # built for itself, where a search derives KV formats
        assert outcome_of(LoadEstimator(alone, found.workload)) == outcome


def test_a_ranking_is_of_one_seller() -> None:
    mine = card(name="mine", price=HourlyPrice(0.01, "2026", "my bill"))
    found = compared(LLAMA_3_8B, Deployment(H100), PlanWorkload(tpot=0.05), (*CATALOGUE, mine))
    catalogue_devices = [[offer.device.name for offer in ranking.offers] for ranking in found.rankings]
    assert [ranking.seller for ranking in found.rankings] == ["Shop", "my bill", ""]
    assert (catalogue_devices[1], catalogue_devices[2]) == (["mine"], ["mi300x"])
    costs = [offer.outcome.dollars_per_million or 0 for offer in found.rankings[0].offers]
    assert costs == sorted(costs)
    assert len(costs) == 3


def test_cards_that_serve_nobody_are_in_no_ranking() -> None:
    slow = card(name="slow", bandwidth=1e11, link=None)
    tiny = card(name="tiny", memory=1e9, link=None)
    found = compared(LLAMA_3_8B, Deployment(H100), PlanWorkload(tpot=0.02), (slow, tiny, H100))
    assert [offer.device.name for ranking in found.rankings for offer in ranking.offers] == ["text-h100"]
    assert [(offer.device.name, offer.outcome.fits) for offer in found.unable] == [("slow", True), ("tiny", False)]


def test_a_batch_that_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(ValueError, match=r"a batch of 2,000 does not fit: .* GiB that are left; at most \d+ fit"):
        planned(LLAMA_3_8B, Deployment(card()), PlanWorkload(1000, 200, batch=2000))
    plan = planned(LLAMA_3_8B, Deployment(card()), PlanWorkload(1000, 200))
    most = PlanWorkload(1000, 200, batch=plan.memory.at_end, tpot=0.01)
    assert planned(LLAMA_3_8B, Deployment(card()), most).batching is None
    with pytest.raises(ValueError, match="that are left"):
        planned(LLAMA_3_8B, Deployment(card()), PlanWorkload(1000, 200, batch=plan.memory.at_end + 1))


def test_a_batch_of_the_sweep_fits_to_its_end() -> None:
    """Users of all ages held 169; as one batch they end at more KV than is left, and stood there as fitting."""
    plan = planned(LLAMA_3_8B, Deployment(card()), PlanWorkload(1000, 200))
    for row in plan.sweep:
        assert row.fits == (row.kv_bytes <= plan.memory.pages * plan.memory.page_bytes)
    assert max(row.batch for row in plan.sweep if row.fits) == plan.memory.at_end


def test_a_context_beyond_the_models() -> None:
    with pytest.raises(ValueError, match="8,193, but the model's context is 8,192"):
        planned(TINY, Deployment(card()), PlanWorkload(8000, 193))
    assert planned(TINY, Deployment(card()), PlanWorkload(8000, 192)).workload.tokens == 8192


def test_cards_that_do_not_divide_the_heads() -> None:
    with pytest.raises(ModelRefused, match="do not divide"):
        planned(TINY, Deployment(card(), 3))


@pytest.mark.parametrize("config", [TINY, TINY_SLIDING, TINY_MIXTURE], ids=["dense", "sliding", "mixture"])
@pytest.mark.parametrize(
    ("devices", "weights", "kv", "targets"),
    [
        (1, None, None, (None, None)), (1, "fp8", "fp8", (None, 0.01)), (2, "int8", None, (0.5, None)),
        (2, None, "int8", (0.5, 0.01)), (4, "int4", "fp8", (None, None)), (1, "int4", "int8", (0.001, 0.0001)),
        (2, "bf16", "bf16", (None, None)), (1, "fp32", None, (None, None)),
    ],
)  # fmt: skip
def test_every_pair_of_options_gives_a_plan_in_order(
    config: dict[str, Any],
    devices: int,
    weights: str | None,
    kv: str | None,
    targets: tuple[float | None, float | None],
) -> None:
    workload = PlanWorkload(300, 40, batch=3, ttft=targets[0], tpot=targets[1], step_tokens=128)
    plan = planned(config, Deployment(H100, devices, weights, kv), workload)
    for phase in (plan.prefill, plan.decode):
        assert 0 < phase.seconds.floor <= phase.seconds.bound
        assert phase.seconds.bound <= phase.seconds.expected * (1 + 1e-9)
        assert 0 <= phase.idle < 1
    assert plan.sweep[0].batch == 1
    assert any(row.batch == 3 for row in plan.sweep)
    assert (plan.sweep[0].experts is None) == (config is not TINY_MIXTURE)
    shown = plan_json(plan)
    assert shown["memory"]["total"] == H100.memory
    assert shown["decode"]["seconds"]["floor"] == plan.decode.seconds.floor
    assert shown["words"]


def test_the_whole_catalogue_can_be_planned_on() -> None:
    for device in catalogue_devices():
        serving = LoadEstimator(ModelCache(fields(TINY)).scenario(Deployment(device)), PlanWorkload(100, 20))
        assert serving.memory.fits, device.name
        itl = serving.load(1).itl
        assert 0 < itl.floor <= itl.bound <= itl.expected
