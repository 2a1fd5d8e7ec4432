"""The paragraph of a plan: every sentence under the condition that makes it true."""

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.price.device import Device, Efficiency, HourlyPrice
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.interconnect import Interconnect, latency_bandwidth_curve
from ridgeline.price.plan import Deployment, DeploymentPlan, PlanWorkload, make_plan
from ridgeline.price.plan.plan_answer import answer
from ridgeline.price.plan.plan_audio import describe_cost
from ridgeline.price.plan.plan_text import describe_held, describe_ways, scarcest, verdict
from support.planned import H100, LLAMA_3_8B, LLAMA_3_70B, TINY, card, fields

PRICED = card(price=HourlyPrice(2.0, "2026", "test"))
SLOW_LINK = card(link=Interconnect("PCIe", 1e9, {"custom": {8: latency_bandwidth_curve(5e-6, 0.8e9)}}))


def planned(
    config: dict[str, Any], device: Device, workload: PlanWorkload | None = None, *others: Device, **setup: Any
) -> DeploymentPlan:
    """A plan with these other cards to choose from."""
    return make_plan("test", fields(config), Deployment(device, **setup), workload or PlanWorkload(), others)


def test_a_speed_is_of_the_batch_that_was_asked_about() -> None:
    """It was called that of a user alone at any batch."""
    one, many = (verdict(planned(LLAMA_3_8B, PRICED, PlanWorkload(batch=batch))) for batch in (1, 64))
    assert "for one user" in one
    assert "for each of 64 users" in many
    assert "for one user" not in many


def test_a_card_that_is_only_cheaper_is_named_with_its_price() -> None:
    cheap = replace(PRICED, name="cheap", bandwidth=1.5e12, price=HourlyPrice(0.5, "2026", "test"))
    plan = planned(LLAMA_3_8B, PRICED, None, cheap)
    change = next(change for change in plan.levers if change.name == "cheap")
    assert (change.throughput or 0) < 1
    cost, own = change.outcome.dollars_per_million, plan.dollars_per_million
    assert cost is not None
    assert own is not None
    dollars = (describe_cost(*each) for each in ((cost, None, change.cost_factors), (own, None, plan.cost_factors)))
    assert f", {' tokens instead of '.join(dollars)})." in verdict(plan)
    low, high = change.outcome.tokens_per_second_interval or (0.0, 0.0)
    assert change.cost_factors == pytest.approx(
        [(change.outcome.tokens_per_second or 0.0) / each for each in (high, low)]
    )


def test_no_lever_is_offered_on_which_it_does_not_fit() -> None:
    plan = planned(LLAMA_3_70B, PRICED)
    assert {change.outcome.fits for change in plan.levers} == {True, False}
    for change in plan.levers:
        assert (f"{change.name} (fits" in verdict(plan)) == change.outcome.fits


def test_where_the_link_is_the_limit_nothing_is_said_of_the_ridge() -> None:
    said = verdict(planned(LLAMA_3_8B, SLOW_LINK, PlanWorkload(batch=64), devices=8))
    assert "the link between the devices is the limit" in said
    assert "reach" not in said
    assert "more link bandwidth would help most" in said


def test_a_batch_at_the_ridge_is_not_told_of_a_larger_one() -> None:
    under, over = (verdict(planned(LLAMA_3_8B, H100, PlanWorkload(16, 16, batch))) for batch in (8, 600))
    assert "Memory bandwidth is the limit" in under
    assert "would reach the ridge" in under
    assert "Arithmetic is the limit, 1." in over
    assert "reach" not in over


def test_a_batch_that_memory_does_not_hold_is_named_with_that() -> None:
    plan = planned(LLAMA_3_8B, card(memory=20e9), PlanWorkload(600, 8))
    assert plan.crossings.critical_batch is not None
    assert f"would reach the ridge, but memory holds {describe_held(plan)}." in verdict(plan)


@pytest.mark.parametrize(
    ("engine", "says"), [("vllm", "1,536 tokens (their mean length)"), ("tensorrt-llm", "2,048 tokens")]
)
def test_what_memory_holds_is_said_with_its_length(engine: str, says: str) -> None:
    """Check that an engine's admission rule gives the length, and that it and the number take what memory has."""
    plan = planned(LLAMA_3_8B, H100, PlanWorkload(1024, 1024), engine=load_engine(engine))
    memory, tokens = plan.memory, int(says.split()[0].replace(",", ""))
    assert describe_held(plan) == f"{memory.users:,} requests of {says}"
    assert memory.users == memory.kv_tokens // tokens


def test_the_limits_of_both_phases_are_named() -> None:
    plan = planned(LLAMA_3_8B, H100)
    assert (plan.prefill.limit, plan.decode.limit) == ("compute", "memory")
    said = verdict(plan)
    assert "In the prefill of a prompt of 1,024 tokens, arithmetic is the limit" in said
    assert "Memory bandwidth is the limit" in said
    limit = dict(answer(plan))["limit"]
    assert limit.startswith(f"prefill ({plan.reported_load.prefill_share:.0%} of the time): arithmetic; ")
    assert f"; decode: memory bandwidth (a step for {plan.capacity.users:,} users: " in limit
    linked = planned(LLAMA_3_8B, SLOW_LINK, PlanWorkload(batch=64), devices=8)
    assert "decode: the link between the devices (a step" in dict(answer(linked))["limit"]
    assert " of communication" in dict(answer(linked))["limit"]


@pytest.mark.parametrize(("batch", "pays"), [(1, True), (256, False)])
def test_batching_pays_only_where_it_brings_tokens(batch: int, pays: bool) -> None:
    """ "The free lever" were once 56,771 users who made 1.06 x the tokens, each at 0.40 a second."""
    plan = planned(LLAMA_3_8B, card(memory=160e9), PlanWorkload(2000, 100, batch))
    assert plan.batching is not None
    assert plan.batching.throughput is not None
    assert (plan.batching.throughput > 2) == pays
    said = verdict(plan)
    assert ("Batching pays" in said) == pays
    assert ("A larger batch helps little" in said) != pays
    assert ("slower than people read" in said) == (plan.capacity.load.tokens_per_user.expected < 5)


def test_where_no_resource_is_scarce_none_is_recommended() -> None:
    """With launches of a second nothing but those matters; memory would only bring users who wait for prefills."""
    plan = planned(TINY, card(efficiency={"default": Efficiency(1.0, 1.0, 1.0)}), PlanWorkload(100, 20))
    assert scarcest(plan) is None
    assert "none would help noticeably" in verdict(plan)
    scarce = planned(LLAMA_3_8B, H100)
    best = max(scarce.sensitivities, key=lambda change: change.throughput or 0)
    assert scarcest(scarce) is best


def test_ways_to_fit() -> None:
    setup = Deployment(H100)
    assert describe_ways([replace(setup, devices=8, weights="fp8"), replace(setup, devices=16)]) == (
        "it would fit with fp8 weights on 8 devices, or on 16 devices (more than one machine, not predicted)"
    )
    assert describe_ways([replace(setup, weights="int4")]) == "it would fit with int4 weights on 1 device"
