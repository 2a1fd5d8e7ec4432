"""Prompts of which the prefix cache has a part: their steps, against chunks of whole prompts; simulated replicas."""

from dataclasses import replace

import pytest

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.simulate.tail_latency import tail_of
from ridgeline.price.devices import load_device
from ridgeline.price.plan.demand import Demand, fleet_for
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.request_phases import prefill_phase, prefill_work
from ridgeline.price.plan.scenario import PlanWorkload
from support.planned import LLAMA_3_8B, TINY_SLIDING, case, decode_of, prefill_of


@pytest.mark.parametrize("config", [LLAMA_3_8B, TINY_SLIDING])
def test_the_rest_runs_like_the_last_chunk_of_a_whole_prompt(config: dict[str, object]) -> None:
    planned = case(config)
    whole, cached = PlanWorkload(700, 5), PlanWorkload(700, 5, cached=451)
    assert prefill_work(planned, cached, 0, 249) == prefill_work(planned, whole, 451, 700)
    (step,) = prefill_phase(planned, replace(cached, batch=3)).works
    segments = [StepSegment(249, 700)] * 3
    assert step == Work.of(segments, planned.price.reaches, 3)


def test_long_prompts_take_fewer_steps() -> None:
    planned = case(LLAMA_3_8B)
    steps = prefill_phase(planned, PlanWorkload(5000, 5, cached=2500, step_tokens=1000)).works
    assert [step.tokens for step in steps] == [1000, 1000, 500]
    assert [step.rows["logits"] for step in steps] == [0, 0, 1]
    assert prefill_of(planned, PlanWorkload(5000, 5, cached=2500)).kv_write_bytes == pytest.approx(
        prefill_of(planned, PlanWorkload(5000, 5)).kv_write_bytes / 2
    )


def test_memory_and_decode_steps_are_those_of_whole_prompts() -> None:
    planned = case(LLAMA_3_8B)
    whole, cached = (LoadEstimator(planned, PlanWorkload(2000, 100, cached=tokens)) for tokens in (0, 1500))
    assert cached.memory == whole.memory
    assert cached.itl(10) == whole.itl(10)
    assert cached.itl(10).expected == decode_of(planned, 10, 2050).seconds.expected
    assert 0.25 < cached.prefill.expected / whole.prefill.expected < 0.35  # a quarter, and attention to the rest
    assert cached.load(30).requests_per_second.expected > whole.load(30).requests_per_second.expected


@pytest.mark.parametrize(("cached", "users"), [(1424, 40), (1808, 100), (512, 20)])
def test_a_simulated_replica_with_the_same_hit_rate(cached: int, users: int) -> None:
    """Compare with the engine's own scheduler and prefix cache; the scheduler mixes prompts into decode steps."""
    serving = LoadEstimator(case(LLAMA_3_8B, load_device("h100-sxm")), PlanWorkload(2048, 100, cached=cached))
    demand = Demand(users=users)
    fleet = fleet_for(serving, demand)
    assert fleet is not None
    assert fleet.replicas == 1
    tail = tail_of(serving, demand, fleet)
    assert tail.metrics.found == pytest.approx(cached / 2048, rel=0.02)
    assert fleet.tokens_per_second == pytest.approx(tail.metrics.tokens_per_second, rel=0.15)


def test_at_least_one_token_is_computed() -> None:
    assert PlanWorkload(100, 5, cached=99).computed == 1
    with pytest.raises(ValueError, match="give --cached 99 or less"):
        PlanWorkload(100, 5, cached=100)
    with pytest.raises(ValueError, match="cached is -1; it must be at least 0"):
        PlanWorkload(100, 5, cached=-1)
