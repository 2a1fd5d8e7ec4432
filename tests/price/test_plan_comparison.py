"""The search of a comparison: its winner is the cheapest of all combinations, found one by one without a shortcut."""

import dataclasses
from itertools import product
from typing import Any

import pytest

from ridgeline.core.checkpoint.source import read_config
from ridgeline.core.models import ModelRefused
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.devices import catalogue_devices
from ridgeline.price.plan import make_plan
from ridgeline.price.plan.comparison import DeviceComparison, compare
from ridgeline.price.plan.comparison_document import compare_document
from ridgeline.price.plan.demand import Demand, ReplicaCount, fleet_for
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.plan_export import comparison_json
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload
from ridgeline.util.document.elements import DocumentTable
from support.planned import TINY_MIXTURE, fields

SHOP = HourlyPrice(1.0, "2026", "list", "Shop")
DOLLARS = {"h100-sxm": 2.29, "a100-sxm-80gb": 1.29, "b200": 4.89, "l40s": 1.55, "v100-sxm-32gb": 0.5}
DEVICES = tuple(
    dataclasses.replace(device, price=dataclasses.replace(SHOP, dollars=DOLLARS[device.name]))
    for device in catalogue_devices()
    if device.name in DOLLARS
)
# Every format that a search may choose on some of these devices; those that a device does not run are left out below.
WEIGHTS = {"fp8": (None, "fp8", "int4"), "int8": (None, "int8", "w8a8", "int4")}


def config(name: str) -> Any:
    return fields(TINY_MIXTURE) if name == "mixture" else read_config(name)


def of_fleet(fleet: ReplicaCount | None, million: float | None) -> float | None:
    """Return the dollars of a job, or per hour, or `million` without a demand."""
    if fleet is None:
        return million
    return fleet.dollars_per_hour if fleet.job is None else fleet.job.dollars


def cheapest(name: str, devices: tuple[Device, ...], workload: PlanWorkload, demand: Demand) -> dict[bool, float]:
    """Return the least dollars for a demand, else per million tokens, by whether only stored formats count."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for device, count in product(devices, (1, 2, 4, 8)):
        narrow = "fp8" if "fp8" in device.peaks else "int8"
        for weights, kv in product(WEIGHTS[narrow], (None, narrow)):
            if weights == "w8a8" and device.peaks.get("int8", 0) <= device.peak("bf16"):
                continue
            try:  # a cache of its own: nothing is derived from another format
                case = ModelCache(config(name)).scenario(Deployment(device, count, weights, kv))
            except ModelRefused:
                continue
            serving = LoadEstimator(case, workload)
            if serving.memory.fits and serving.capacity.users:
                fleet = fleet_for(serving, demand) if demand else None
                if demand and fleet is None:
                    continue  # late
                rate = serving.capacity.load.tokens_per_second.expected
                cost = of_fleet(fleet, serving.dollars_per_million(rate))
                assert cost is not None
                found[(weights, kv) == (None, None)].append(cost)
    return {False: min(found[True] + found[False]), True: min(found[True])}


def compared(
    name: str, workload: PlanWorkload, demand: Demand, devices: tuple[Device, ...] = DEVICES, **more: Any
) -> DeviceComparison:
    setup = more.pop("setup", Deployment(devices[0]))
    return compare(name, ModelCache(config(name)), setup, workload, devices, demand, **more)


@pytest.mark.parametrize(
    ("name", "workload", "demand"),
    [
        ("qwen3-8b", PlanWorkload(2048, 500, ttft=1.0, tpot=0.02), Demand(users=200)),
        ("qwen3-8b", PlanWorkload(1000, 200, ttft=0.5, tpot=0.04), Demand(rate=30.0)),
        ("qwen3-8b", PlanWorkload(2048, 500, ttft=1.0, tpot=0.02), Demand()),
        ("mixture", PlanWorkload(300, 50, tpot=0.01), Demand(users=30_000)),
        ("qwen3-8b", PlanWorkload(2048, 100), Demand(requests=1_000_000, within=8 * 3600.0)),
        ("qwen3-8b", PlanWorkload(2048, 100), Demand(requests=2000, within=8.0)),
        ("mixture", PlanWorkload(300, 50, tpot=0.01), Demand(requests=100_000, within=60.0)),
    ],
)  # fmt: skip
def test_the_winner_is_the_cheapest_of_all_combinations(name: str, workload: PlanWorkload, demand: Demand) -> None:
    (ranking,) = compared(name, workload, demand).rankings
    best = cheapest(name, DEVICES, workload, demand)
    for stored, offer in ((False, ranking.rows[0]), (True, ranking.as_stored)):
        assert offer is not None
        assert of_fleet(offer.fleet, offer.outcome.dollars_per_million) == pytest.approx(best[stored])


def test_the_number_of_devices_decides() -> None:
    """Check a case in which two H100 per replica are cheaper than three B200 with one per replica."""
    workload = PlanWorkload(2048, 500, ttft=1.0, tpot=0.04)
    stored = Deployment(DEVICES[0], weights="bf16", kv="bf16")
    some = tuple(device for device in DEVICES if device.name in ("h100-sxm", "b200", "a100-sxm-80gb"))
    (ranking,) = compared("qwen3-32b", workload, Demand(users=200), some, setup=stored).rankings
    best = ranking.offers[0]
    assert (best.device.name, best.outcome.devices) == ("h100-sxm", 2)
    assert best.fleet is not None
    assert best.fleet.dollars_per_hour == pytest.approx(2.29 * best.fleet.devices)
    assert "a100-sxm-80gb" in {offer.device.name for offer in ranking.offers}
    assert best.margins.tpot == pytest.approx(1 - best.load.tpot.expected / 0.04)
    assert best.margins.ttft == pytest.approx(1 - best.load.ttft.expected / 1.0)
    (alone,) = compared("qwen3-32b", workload, Demand(users=200), some, setup=stored, counts=(1,)).rankings
    assert {offer.outcome.devices for offer in alone.offers} == {1}
    assert alone.offers[0].device.name == "b200"


def test_stated_formats_are_kept() -> None:
    workload = PlanWorkload(1000, 200, tpot=0.05)
    found = compared("qwen3-8b", workload, Demand(), setup=Deployment(DEVICES[0], weights="int8", kv="int8"))
    assert {(offer.outcome.weights, offer.outcome.kv) for offer in found.offers} == {("int8", "int8")}
    kept = compared("qwen3-8b", workload, Demand(), setup=Deployment(DEVICES[0], kv="bf16"))
    assert {offer.outcome.kv for offer in kept.offers} <= {"bf16", "fp16"}
    assert {offer.outcome.weights for offer in kept.offers} & {"fp8", "w8a8", "int4"}


def test_json_has_the_best_in_the_stored_formats() -> None:
    told = comparison_json(compared("qwen3-8b", PlanWorkload(2048, 500, ttft=1.0, tpot=0.02), Demand(users=200)))
    assert told["searched"] == {"devices": [1, 2, 4, 8], "stored": {"weights": "bf16", "kv": "bf16"}}
    (seller,) = told["sellers"]
    assert (seller["as_stored"]["weights"], seller["as_stored"]["kv"]) == ("bf16", "bf16")
    assert seller["as_stored"]["fleet"]["dollars_per_hour"] >= told["cards"][0]["fleet"]["dollars_per_hour"]
    assert set(told["cards"][0]["margins"]) == {"ttft", "tpot"}
    assert len({card["card"] for card in told["cards"]}) == len(told["cards"])


@pytest.mark.parametrize("name", ["qwen3-8b", "deepseek-v2", "gemma-3-1b", "gpt2"])
def test_a_derived_kv_format_prices_as_a_built_one(name: str) -> None:
    """Compare everything that a plan reads of a model whose KV format was changed with that of a new model."""
    device, workload = DEVICES[-1], PlanWorkload(500, 100, tpot=0.05)
    for kv in ("fp8", "int8"):
        both = ModelCache(config(name))
        both.scenario(Deployment(device))
        narrow = Deployment(device, kv=kv)
        derived, built = both.scenario(narrow), ModelCache(config(name)).scenario(narrow)
        assert derived.price.ops[0].op is both.scenario(Deployment(device)).price.ops[0].op  # it is not built anew
        assert (derived.kv, derived.model.kv_specs, derived.recipe) == (built.kv, built.model.kv_specs, built.recipe)
        assert [op.op.signature() for op in derived.price.ops] == [op.op.signature() for op in built.price.ops]
        ours, theirs = LoadEstimator(derived, workload), LoadEstimator(built, workload)
        assert (ours.memory, ours.capacity) == (theirs.memory, theirs.capacity)


@pytest.mark.parametrize("requests", [100, 100_000])
def test_a_job_has_the_factors_of_its_dollars(requests: int) -> None:
    """Check against the plan of the same deployment; the start of the replicas has no error."""
    demand = Demand(requests=requests, within=3600.0)
    found = compared("qwen3-8b", PlanWorkload(2048, 100), demand, DEVICES[:1], counts=(1,))
    (offer,) = found.offers
    setup = dataclasses.replace(found.setup, weights=offer.outcome.weights, kv=offer.outcome.kv)
    plan = make_plan("qwen3-8b", config("qwen3-8b"), setup, found.workload, (), demand)
    assert offer.factors == pytest.approx(plan.cost_factors)
    assert offer.factors[1] < offer.interval.high
    (table,) = (block for block in compare_document(found).blocks if isinstance(block, DocumentTable))
    assert "the time and the dollars of the job are between" in " ".join(table.notes)


def test_devices_that_are_late_are_listed() -> None:
    """Check a deadline that one device misses even with one request on each replica; it is not ranked."""
    found = compared("qwen3-8b", PlanWorkload(2048, 100), Demand(requests=50, within=1.5))
    ranked = {offer.device.name for ranking in found.rankings for offer in ranking.offers}
    late = {offer.device.name for offer in found.unable if offer.late}
    assert ranked | late == set(DOLLARS)
    assert "b200" in ranked
    assert "l40s" in late
    (table,) = compare_document(found).blocks
    assert isinstance(table, DocumentTable)
    (note,) = (note for note in table.notes if note.startswith("completes no request in time"))
    assert set(note.partition(": ")[2].split(", ")) == late
