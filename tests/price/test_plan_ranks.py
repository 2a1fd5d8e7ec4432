"""Attention data-parallel: requests divided among cards, steps that all of them take together."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from ridgeline.core.ops.work import Work
from ridgeline.price.devices import catalogue_devices
from ridgeline.price.engine_profile import EngineProfile, MemoryRule, load_engine, with_own_attention
from ridgeline.price.plan import Demand, DeploymentPlan, make_plan
from ridgeline.price.plan.demand import fleet_for
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.load_estimate import LoadEstimator, batch_sweep, touched_experts
from ridgeline.price.plan.prompt_queue import PromptQueue, RankPrompts, mean_max_prompts
from ridgeline.price.plan.scenario import Deployment, PlanWorkload, Scenario
from support.planned import GIB, TINY, TINY_MIXTURE, card, case, decode_of, fields

RULE = MemoryRule("total", rows=8, copies=1.0, fixed=0.0, share=0.0, linked=0.0)
PLAIN = EngineProfile("test", "Test", {"other": "custom"}, "full", "mixed", RULE)
OWN = replace(PLAIN, own_attention=True)
EXPERT = 3 * 256 * 768 * 2  # bytes of one of the eight in each of two layers

# Experts outweigh all else, and 16 of them are hit by few of the rows: what ranks do together is seen.
WIDE = TINY_MIXTURE | {"num_local_experts": 16, "intermediate_size": 2048}


def own(ranks: int, config: dict[str, object] = TINY_MIXTURE, **changes: object) -> Scenario:
    """A mixture on so many cards with requests of their own."""
    return case(config, card(**changes), devices=ranks, engine=OWN)


def planned(ranks: int, workload: PlanWorkload, demand: Demand | None = None) -> DeploymentPlan:
    """The same as a plan."""
    setup = Deployment(card(), ranks, engine=OWN)
    return make_plan("tiny", fields(TINY_MIXTURE), setup, workload, catalogue_devices(), demand)


@pytest.mark.parametrize("ranks", [2, 4])
def test_users_are_those_of_all_cards(ranks: int) -> None:
    """Each card has all but the experts whole, KV of 2 layers x 4 heads x 32 x K and V in bf16 a position, and as many
    requests of 128 positions as its own pages hold. A step of 2,048 positions has the rows of all at the experts."""
    whole = case(TINY_MIXTURE, engine=PLAIN)
    experts = 2 * 8 * EXPERT
    weights = whole.price.weight_bytes - experts + experts / ranks
    memory = memory_of(own(ranks, memory=100e6), PlanWorkload(100, 28))
    assert (memory.weights, memory.kv_bytes_per_token) == (weights, 2 * 2 * 4 * 32 * 2)
    assert memory.left == 0.9 * 100e6 - weights - memory.activations
    rows, width = ranks * 2048, 768 // ranks
    assert memory.activations == 2 * (2 * rows * 256 + 3 * 2 * rows * width) + 3 * 2048 * 256 * 2
    pages = int(memory.left // (16 * 1024))
    assert memory.pages == pages
    assert memory.users == memory.at_end == memory.max_simultaneous == ranks * (pages // 8) > ranks
    assert memory.on_each == pages // 8
    assert memory.limit == "memory"
    full = memory_of(own(ranks), PlanWorkload(100, 28, step_tokens=64))
    assert full.users == full.max_simultaneous == ranks * 64 < full.kv_capacity_requests
    assert full.limit == "step"


def test_a_step_has_room_for_the_logits_of_one_cards_users() -> None:
    memory = memory_of(own(4, memory=60e6), PlanWorkload(100, 28))
    assert 8 < memory.on_each <= memory.logit_rows < memory.users


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_is_that_of_one_rank_with_the_rows_of_all_at_the_experts(ranks: int) -> None:
    """5 sequences a rank: all but experts and all-reduce as on a card alone, the experts a share of all ranks' rows,
    and once a layer all rows cross the link."""
    planned, serving = own(ranks), LoadEstimator(own(ranks), PlanWorkload(100, 28))
    alone = {row.kind: row.expected for row in decode_of(case(TINY_MIXTURE, engine=PLAIN), 5, 114).classes}
    divided = case(TINY_MIXTURE, devices=ranks, engine=PLAIN)
    experts = {row.kind: row.expected for row in decode_of(divided, 5 * ranks, 114).classes}["experts"]
    assert planned.device.link is not None
    reduced = 2 * planned.device.link.all_reduce_seconds(5 * ranks * 256 * 2, ranks, "custom")
    expected = sum(seconds for kind, seconds in alone.items() if kind != "experts") + experts + reduced
    assert serving.itl(5 * ranks).expected == pytest.approx(expected)
    for users in (4 * ranks + 1, 5 * ranks):  # of the fullest card
        assert serving.itl(users) == serving.itl(5 * ranks)
    assert serving.itl(4 * ranks).expected < serving.itl(4 * ranks + 1).expected


def test_one_rank_is_a_card_as_any() -> None:
    """And over several cards nothing is known of ranks where attention is divided."""
    workload = PlanWorkload(300, 20, ttft=0.1, tpot=0.01)
    one, plain = (LoadEstimator(case(TINY_MIXTURE, engine=by), workload) for by in (OWN, PLAIN))
    assert one.case.ranks == 1
    assert one.memory == plain.memory
    assert one.capacity == plain.capacity
    assert [one.load(users) for users in (1, 7, 300)] == [plain.load(users) for users in (1, 7, 300)]
    assert batch_sweep(one) == batch_sweep(plain)
    divided = case(TINY_MIXTURE, devices=2, engine=PLAIN)
    assert (divided.ranks, divided.requests_per_rank(7), LoadEstimator(divided, workload).load(7).waits) == (1, 7, None)


@pytest.mark.parametrize("users", [1, 2, 3, 4, 5, 40, 400])
@pytest.mark.parametrize("output", [2, 16, 256])
def test_littles_law_of_ranks(users: int, output: int) -> None:
    load = LoadEstimator(own(4, WIDE), PlanWorkload(500, output)).load(users)
    assert load.waits is not None
    for name in ("floor", "bound", "expected"):
        rate, ttft, tpot = (getattr(e, name) for e in (load.requests_per_second, load.ttft, load.tpot))
        assert rate * (ttft + (output - 1) * tpot) == pytest.approx(users)
        least, most = (
            getattr(e, name) for e in (load.waits.tokens_per_second_apart, load.waits.tokens_per_second_together)
        )
        assert least * (1 - 1e-9) <= rate * output <= most * (1 + 1e-9)
        assert getattr(load.waits.tpot_together, name) <= tpot * (1 + 1e-9)
        assert tpot <= getattr(load.waits.tpot_apart, name) * (1 + 1e-9)
        assert (most - least > 1e-6 * most) == (users > 1)


def test_one_user_waits_for_nobody() -> None:
    """Its prompt is alone at the experts, and no prefill comes between two of its tokens."""
    plan = planned(4, PlanWorkload(500, 16))
    load = plan.serving.load(1)
    assert (
        load.ttft == load.ttft_synchronised == load.prefill == plan.prefill.seconds == plan.serving.prefill_seconds(1)
    )
    assert load.tpot.expected == pytest.approx(plan.decode.seconds.expected)
    assert plan.decode.seconds == load.itl
    rows = {row.kind: row for row in plan.prefill.classes}
    assert rows["experts"].flops == 2 * 3 * 2 * 500 * 2 * 256 * 768 / 4
    assert rows["communication"].nbytes == 2 * 500 * 256 * 2
    four = {row.kind: row for row in planned(4, PlanWorkload(500, 16, batch=4)).prefill.classes}
    assert four["experts"].flops == 4 * rows["experts"].flops
    assert four["attention"].flops == rows["attention"].flops


def test_what_asks_at_once_is_divided() -> None:
    """Ten requests on four cards: three on the fullest, whose prompts and steps are priced."""
    plan = planned(4, PlanWorkload(100, 28, batch=10))
    assert (plan.prefill.tokens, plan.decode.tokens) == (300, 3)
    assert plan.prefill.seconds == plan.serving.prefill_seconds(10) == plan.serving.prefill_seconds(12)
    assert plan.decode.seconds == plan.serving.itl(10)
    (row,) = (row for row in plan.sweep if row.batch == 10)
    assert row.kv_bytes == 3 * plan.memory.request_bytes
    assert row.tokens_per_second.expected == pytest.approx(10 / plan.decode.seconds.expected)
    assert row.experts == touched_experts(plan.case, 10) == pytest.approx(8 * (1 - (1 - 2 / 8) ** 12))
    assert {row.batch for row in plan.sweep if row.fits} >= {plan.memory.max_simultaneous}
    assert plan.fullest.users == plan.memory.users
    assert plan.fullest.itl == plan.serving.itl(plan.memory.users)


def test_a_batch_of_more_than_all_cards_hold_is_refused() -> None:
    small = PlanWorkload(100, 28, step_tokens=8)
    assert planned(4, replace(small, batch=32)).serving.batch_fits
    with pytest.raises(ValueError, match=r"a batch of 33, 9 per device, exceeds a step of 8 tokens"):
        planned(4, replace(small, batch=33))
    long = PlanWorkload(8000, 28, step_tokens=2**14)
    memory = planned(4, long).memory
    most = memory.at_end
    assert planned(4, replace(long, batch=most)).serving.batch_fits
    wanted = f"{(most // 4 + 1) * memory.request_bytes / GIB:,.2f} GiB of KV per device"
    with pytest.raises(ValueError, match=rf"{wanted}, .* that are left; at most {most:,} fit"):
        planned(4, replace(long, batch=most + 1))


def test_the_ridge_is_reached_by_the_batches_of_all_cards() -> None:
    """A rank's step at that batch takes as long to compute as to read."""
    plan = planned(4, PlanWorkload(4, 4))
    batch = plan.crossings.critical_batch
    assert batch is not None
    assert [decode_of(plan.case, round(batch / 4) + one, 6).balance >= 1 for one in (-1, 1)] == [False, True]


def test_prefills_between_steps_by_hand() -> None:
    """Two ranks with eight users each, one in ten of whom asks after a step: 0.8 prompts on either."""
    planned = own(2, WIDE)
    queues = RankPrompts.of(planned, PlanWorkload(500, 11))
    pauses = queues.pauses(16)
    asks, some = 1 - 0.9**8, 1 - 0.9**16
    alone, both = (queues.on(ranks).all(0.8 / asks).expected for ranks in (1, 2))
    assert alone < both < 2 * alone
    assert pauses.together.expected == pytest.approx(asks * both)
    assert pauses.apart.expected == pytest.approx(2 * asks * alone)
    most = brute_force([8, 8], 0.1)
    longest = queues.on(1).all(most / some).expected
    assert pauses.steady.expected == pytest.approx(some * longest + (1.6 - most) * (both - alone) / (0.8 / asks))
    first, other = (queues.on(ranks).one(1.7).expected for ranks in (1, 2))
    assert pauses.first.expected == pytest.approx((1 - asks) * first + asks * other)
    step = planned.price.with_active_ranks(1).price_step(planned.device, Work.decode([1], planned.price.reaches))
    assert step.cost.communication == {"all_reduce": 2 * 256 * 2}


def brute_force(sizes: list[int], chance: float) -> float:
    """The mean of the most prompts of a rank, over all outcomes."""
    each = [[math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(n + 1)] for n in sizes]
    outcomes = itertools.product(*(range(n + 1) for n in sizes))
    return sum(math.prod(row[k] for row, k in zip(each, found, strict=True)) * max(found) for found in outcomes)


@pytest.mark.parametrize("sizes", [[1, 0, 0, 0], [1, 1, 1], [3, 2, 2], [9, 9], [8, 7, 7]])
@pytest.mark.parametrize("chance", [0.004, 0.3, 1.0])
def test_the_most_prompts_of_a_rank(sizes: list[int], chance: float) -> None:
    assert mean_max_prompts(sum(sizes), len(sizes), chance) == pytest.approx(brute_force(sizes, chance))


def test_the_most_prompts_of_ranks_with_many_users() -> None:
    """The mean of the larger of two nearly normal numbers is 1 / sqrt(pi) standard deviations over theirs."""
    spread = math.sqrt(100_000 * 0.5 * 0.5)
    assert mean_max_prompts(200_000, 2, 0.5) == pytest.approx(50_000 + spread / math.sqrt(math.pi), abs=0.5)
    assert mean_max_prompts(7, 1, 0.3) == 7 * 0.3


@pytest.mark.parametrize("users", [8, 67, 800])
def test_ranks_that_are_lived_through(users: int) -> None:
    """Each user ends with the chance q after a step: ranks with prompts run them side by side, and the step lasts as
    the fullest one's, with the rows of all at the experts."""
    planned, workload, ends = own(4, WIDE), PlanWorkload(500, 41), 1 / 40
    draw, price = random.Random(0), dict[tuple[int, int], float]()
    total, steps = 0.0, 300_000 // users
    for _ in range(steps):
        prompts = [sum(draw.random() < ends for _ in range((users + rank) // 4)) for rank in range(4)]
        most, every = max(prompts), sum(prompts)
        if most and (most, every) not in price:
            part = planned.price.with_active_ranks(every / most)  # type: ignore[arg-type]  # rows that are fewer on some
            price[most, every] = PromptQueue.of(replace(planned, price=part), workload).all(most).expected
        total += price[most, every] if most else 0.0
    pauses = RankPrompts.of(planned, workload).pauses(users)
    assert pauses.steady.expected == pytest.approx(total / steps, rel=0.05)
    assert pauses.together.expected < total / steps < pauses.apart.expected


def test_replicas_count_the_users_of_all_their_cards() -> None:
    workload = PlanWorkload(500, 40, tpot=1e-3)
    serving = LoadEstimator(own(4), workload)
    most = serving.capacity.users
    assert 4 < most < serving.memory.users
    for users, replicas in ((most, 1), (most + 1, 2)):
        fleet = fleet_for(serving, Demand(users=users))
        assert fleet is not None
        assert (fleet.replicas, fleet.devices) == (replicas, 4 * replicas)
    rate = 1.5 * serving.capacity.load.requests_per_second.expected
    fleet = fleet_for(serving, Demand(rate=rate))
    assert fleet is not None
    assert fleet.replicas == 2
    assert fleet.load.requests_per_second.expected == pytest.approx(rate / 2, rel=0.05)


def test_an_engine_has_its_profile_with_data_parallel_attention() -> None:
    assert with_own_attention(load_engine("vllm")) == load_engine("vllm-dp")
    with pytest.raises(ValueError, match=r"SGLang .* has no profile .* give --engine vllm, or leave"):
        with_own_attention(load_engine("sglang"))
    with pytest.raises(ValueError, match="but the model has none: leave out --enable-dp-attention"):
        case(TINY, devices=2, engine=OWN)
