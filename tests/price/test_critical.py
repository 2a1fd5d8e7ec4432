"""Where a model turns, and the guard: properties that hold for any model and card."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.core.checkpoint.source import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.crossovers import (
    balance,
    compute_bound_prompt,
    context_where_kv_outweighs_weights,
    critical_batch,
)
from ridgeline.price.devices import load_device
from ridgeline.price.physics_guard import beats_floor
from ridgeline.price.plan import Deployment, PlanWorkload
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.price.price import Price
from support.planned import decode_of, prefill_of


def price(name: str) -> Price:
    """The price of a model of the catalogue."""
    return Price(build(read_config(name)))


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b", "gpt2", "phi-4"])
@pytest.mark.parametrize("card", ["a100-sxm-80gb", "h20", "rtx-4090"])
def test_the_critical_batch_is_where_arithmetic_takes_over(name: str, card: str) -> None:
    priced, device = price(name), load_device(card)
    batch = critical_batch(priced, device, 8)
    assert batch is not None

    def excess(count: int) -> float:
        cost = priced.step(Work.decode([8] * count))
        number = max(cost.flops, key=lambda n: cost.flops[n])
        return cost.flops[number] / device.peak(number) - cost.memory_bytes / device.bandwidth_of(cost.memory_bytes)

    over = int(batch) + 1
    assert excess(over) >= 0
    assert excess(max(1, over - 2)) <= 0 or over <= 2


@pytest.mark.parametrize(("weights", "kv"), [("fp8", "fp8"), ("fp8", None), (None, None), ("int4", "int8")])
def test_limit_distance_and_crossings_are_of_one_figure(weights: str | None, kv: str | None) -> None:
    """fp8 matrices beside bf16 attention: `plan` called a batch compute-bound, 0.8 x over the ridge, and named a larger
    one that would reach it, because the limit counted every format and the others the commonest alone."""
    device = load_device("h100-sxm")
    case = ModelCache(read_config("qwen3-0.6b")).scenario(Deployment(device, weights=weights, kv=kv))
    batch, prompt = critical_batch(case.price, device, 8), compute_bound_prompt(case.price, device)
    assert batch is not None
    assert prompt is not None
    under, over = (decode_of(case, count, 8) for count in (math.ceil(batch) - 1, math.ceil(batch)))
    shorter, longer = (prefill_of(case, PlanWorkload(length, 1, step_tokens=length)) for length in (prompt - 1, prompt))
    for below, above in ((under, over), (shorter, longer)):
        assert (below.limit, above.limit) == ("memory", "compute")
        assert below.balance < 1 <= above.balance
        assert above.balance == pytest.approx(1, rel=0.02)
    assert device.ridge("bf16") <= over.ridge * (1 + 1e-9)
    assert (over.ridge > 1.5 * device.ridge("bf16")) == (weights == "fp8")  # and still under the fp8 ridge
    assert over.ridge < device.ridge("fp8")


def test_balance_counts_each_format_at_its_own_peak() -> None:
    """And elementwise operations, on units of their own, only where there is nothing else."""
    device = replace(
        load_device("h100-sxm"), peaks={"fp32": 1.0, "bf16": 10.0, "fp8": 20.0}, bandwidth=100.0, caches=()
    )
    assert balance([Cost({"fp8": 40.0, "bf16": 10.0, "fp32": 7.0}, weight_bytes=150.0)], device) == 2
    assert balance([Cost({"fp32": 6.0}, weight_bytes=150.0)], device) == 4
    assert balance([Cost({"bf16": 10.0}, 50.0), Cost({"bf16": 30.0}, kv_read_bytes=350.0)], device) == 1


def test_experts_put_the_critical_batch_off() -> None:
    """128 experts of which 8 run: sixteen times the bytes for the same FLOPs, once all are touched."""
    dense, mixture = price("llama-3-8b"), price("qwen3-30b-a3b")
    device = load_device("h100-sxm")
    few, many = critical_batch(dense, device, 1), critical_batch(mixture, device, 1)
    assert few is not None
    assert many is not None
    assert many > 5 * few


def test_the_prompt_that_is_compute_bound_is_the_shortest() -> None:
    priced, device = price("llama-3-8b"), load_device("l40s")
    length = compute_bound_prompt(priced, device)
    assert length is not None
    for tokens, bound in ((length, True), (length - 1, False)):
        cost = priced.step(Work.of([StepSegment(tokens, tokens)]))
        assert (cost.flops["bf16"] / device.peak("bf16") >= cost.memory_bytes / device.bandwidth) == bound


def test_a_window_keeps_kv_below_the_weights(tmp_path: Path) -> None:
    values = dict(read_config("mistral-7b-v0.3").values) | {"sliding_window": 64}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    priced = Price(build(Fields.read(path)))
    assert context_where_kv_outweighs_weights(priced) is None
    assert (
        critical_batch(priced, load_device("a100-sxm-80gb"), 100_000) is not None
    )  # and so decode can be compute-bound


def test_projections_of_one_input_share_a_launch_where_engines_fuse_them() -> None:
    """q, k and v are one boundary: one launch on a card, three on a processor."""
    priced, work = price("llama-3-8b"), Work.decode([1])
    h100, xeon = load_device("h100-sxm"), load_device("epyc-9654")
    qkv = next(p for p in priced.ops if p.path.endswith("qkv"))
    (kernel,) = qkv.launches(work)
    assert kernel.calls == 3
    assert h100.efficiency_of(kernel.name).launches(kernel.calls) == 1
    assert xeon.efficiency_of(kernel.name).launches(kernel.calls) == 3


def test_guard_lets_ten_percent_pass() -> None:
    assert beats_floor(1.0, 1.0) is None
    assert beats_floor(0.91, 1.0) is None
    assert beats_floor(5.0, 0.0) is None
    said = beats_floor(0.5, 1.0)
    assert said is not None
    assert "2.00 x faster than the floor" in said


@pytest.mark.parametrize("floor", [1.0, 1e-9, 1e-15])
def test_guard_speaks_of_a_timer_that_says_nothing_passed(floor: float) -> None:
    """Once it told a 0 s measurement of a tiny floor as "None"."""
    said = beats_floor(0.0, floor)
    assert said is not None
    assert said.startswith("measured 0 ms is less than the floor of ")
    assert beats_floor(0.0, 0.0) is None


@pytest.mark.parametrize(("measured", "floor"), [(-1.0, 1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_guard_refuses_times_that_are_none(measured: float, floor: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        beats_floor(measured, floor)


def test_the_guard_refuses_figures_known_to_be_impossible() -> None:
    """A published 3,500 tok/s of Llama-3-8B in 16 bit for one user of an A100: its roof is about 136."""
    floor = price("llama-3-8b").price_step(load_device("a100-sxm-80gb"), Work.decode([128])).floor
    assert 1 / floor == pytest.approx(136, abs=1)
    assert beats_floor(1 / 3500, floor) is not None
    assert beats_floor(1 / 100, floor) is None
