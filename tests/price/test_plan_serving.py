"""Users on a card: Little's law, the formulas by hand, and a loop that lives through them."""

import heapq
import itertools
import random
from collections import deque
from dataclasses import replace

import pytest

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.device import HourlyPrice
from ridgeline.price.plan.alternatives import batch_lever, outcome_of
from ridgeline.price.plan.comparison import compare
from ridgeline.price.plan.demand import Demand
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.prompt_queue import PromptQueue
from ridgeline.price.plan.request_phases import decode_step
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload
from support.planned import LLAMA_3_8B, TINY, card, case, decode_of, fields, prefill_of, prefill_steps

A100_8B = case(LLAMA_3_8B)


@pytest.mark.parametrize("output", [1, 2, 3, 256])
@pytest.mark.parametrize("users", [1, 7, 64, 300])
def test_littles_law_of_what_is_printed(users: int, output: int) -> None:
    """N = X L with the printed times: L is the first token and output - 1 more of them."""
    load = LoadEstimator(A100_8B, PlanWorkload(1024, output)).load(users)
    for name in ("floor", "bound", "expected"):
        itl, tpot, ttft = (getattr(e, name) for e in (load.itl, load.tpot, load.ttft))
        requests = getattr(load.requests_per_second, name)
        assert requests * (ttft + (output - 1) * tpot) == pytest.approx(users)
        assert getattr(load.tokens_per_second, name) == pytest.approx(requests * output)
        assert tpot >= itl * (1 - 1e-9)
    steps = (output - 1) * load.itl.expected * load.requests_per_second.expected / users
    assert load.prefill_share == pytest.approx(1 - steps, abs=1e-9)


@pytest.mark.parametrize("output", [1, 2, 16, 256])
def test_one_user_has_no_prefill_between_two_tokens(output: int) -> None:
    """TPOT is a decode step, and X the plan's own request: the prefill and output - 1 steps."""
    workload = PlanWorkload(8192 - 256, output)
    load = LoadEstimator(A100_8B, workload).load(1)
    prefill, decode = prefill_of(A100_8B, workload), decode_of(A100_8B, 1, workload.context)
    assert load.ttft == load.prefill == prefill.seconds
    assert load.tpot.expected == pytest.approx(decode.seconds.expected)
    request = prefill.seconds.expected + (output - 1) * decode.seconds.expected
    assert 1 / load.requests_per_second.expected == pytest.approx(request)
    assert LoadEstimator(A100_8B, PlanWorkload(8192 - 256, output, tpot=0.02)).capacity.users > 0  # a step takes 8 ms


def live(serving: LoadEstimator, users: int) -> tuple[float, float, float]:
    """A closed loop, prefills first, waiting prompts packed into steps: tokens a second, mean TTFT, mean TPOT.

    Outputs are of 2 to 2 x `output` - 2 tokens, so that users do not march in step; who has finished asks again.
    """
    case, workload, draw = serving.case, serving.workload, random.Random(0)
    price: dict[tuple[StepSegment, ...], float] = {}
    step = decode_step(case, users, workload.context).expected
    clock, tokens, start, steps = 0.0, 0, 0.0, 0
    waiting = deque((0.0, 0) for _ in range(users))  # when it asked, prompt positions that have run
    running: list[tuple[int, float, int]] = []  # step at which it ends, when its first token came, its length
    first: list[float] = []
    each: list[tuple[float, int]] = []
    for done in range(40_000):
        if done == 10_000:  # the start, when all ask at once, is not the load
            tokens, start, first, each = 0, clock, [], []
        if waiting:
            room, parts, ended = workload.step_tokens, [], []
            while waiting and room:
                asked, ran = waiting.popleft()
                count = min(room, workload.input - ran)
                room -= count
                parts.append(StepSegment(count, ran + count))
                if ran + count < workload.input:
                    waiting.appendleft((asked, ran + count))
                else:
                    ended.append(asked)
            if (key := tuple(parts)) not in price:
                price[key] = case.price.price_step(case.device, Work.of(parts, case.price.reaches, len(ended))).expected
            clock += price[key]
            for asked in ended:
                first.append(clock - asked)
                length = draw.randint(2, max(2, 2 * workload.output - 2))
                heapq.heappush(running, (steps + length - 1, clock, length))
            tokens += len(ended)
        else:
            clock += step
            steps += 1
            tokens += len(running)
        while running and running[0][0] <= steps:
            _, came, length = heapq.heappop(running)
            each.append((clock - came, length - 1))
            waiting.append((clock, 0))
    tpot = sum(seconds for seconds, _ in each) / sum(count for _, count in each)
    return tokens / (clock - start), sum(first) / len(first), tpot


@pytest.mark.parametrize(
    ("length", "output", "users"),
    [
        (512, 100, 8), (512, 64, 32), (512, 200, 100), (512, 100, 300), (16, 16, 2), (16, 16, 300), (1024, 256, 1),
        (1000, 20, 64), (3000, 50, 32), (5000, 8, 16), (128, 2, 64), (64, 1000, 200),
    ],
)  # fmt: skip
def test_a_load_is_what_a_loop_lives_through(length: int, output: int, users: int) -> None:
    """Throughput and TPOT to 1 %, the first token to 12 %: what docs/plan.md says."""
    serving = LoadEstimator(A100_8B, PlanWorkload(length, output))
    load, (rate, ttft, tpot) = serving.load(users), live(serving, users)
    assert load.tokens_per_second.expected == pytest.approx(rate, rel=0.01)
    assert load.tpot.expected == pytest.approx(tpot, rel=0.01)
    assert load.ttft.expected == pytest.approx(ttft, rel=0.12)


@pytest.mark.parametrize(("length", "step"), [(16, 2048), (700, 1000), (5000, 2048), (1024, 1024), (3, 2)])
def test_prompts_that_wait_together(length: int, step: int) -> None:
    """All of them take the steps of the prefill; one of them ends with the step that has its last position."""
    workload = PlanWorkload(length, 10, step_tokens=step)
    prompts = PromptQueue.of(A100_8B, workload)
    for count in (1, 2, 3, 7, 300):
        clock, waits, ran, ended = 0.0, 0.0, 0, 0
        for seconds in (one.expected for one in prefill_steps(A100_8B, workload, count)):
            clock += seconds
            ran = min(ran + step, count * length)
            waits += clock * (ran // length - ended)
            ended = ran // length
        assert ended == count
        assert prompts.all(count).expected == pytest.approx(clock)
        assert prompts.one(count).expected == pytest.approx(waits / count)
    half = (prompts.all(2).bound + prompts.all(3).bound) / 2
    assert prompts.all(2.5).bound == pytest.approx(half)


def test_prompts_under_load_share_steps() -> None:
    """Of 300 users with 15 decode steps each 20 ask after a step: 320 positions, one step that reads the weights."""
    load = LoadEstimator(A100_8B, PlanWorkload(16, 16, batch=300)).load(300)
    together = PromptQueue.of(A100_8B, PlanWorkload(16, 16)).all(20).expected
    assert together < 3 * load.prefill.expected
    assert load.requests_per_second.expected == pytest.approx(300 / (15 * (load.itl.expected + together)), rel=0.001)


def test_first_token_by_hand() -> None:
    """52 users with 255 decode steps: 51 / 255 of another prompt came with one's own, and both share a step."""
    serving = LoadEstimator(A100_8B, PlanWorkload(1024, 256))
    alone, load = serving.load(1), serving.load(52)
    assert alone.ttft == alone.prefill
    one, two = prefill_steps(A100_8B, serving.workload, 1)[0], prefill_steps(A100_8B, serving.workload, 2)[0]
    assert load.ttft.expected == pytest.approx(one.expected + 51 / 255 * (two.expected - one.expected))


@pytest.mark.parametrize("targets", [(None, 0.05), (0.2, None), (0.1, 0.05), (None, None), (5.0, 0.030)])
def test_the_most_users_within_the_targets(targets: tuple[float | None, float | None]) -> None:
    serving = LoadEstimator(A100_8B, PlanWorkload(1024, 256, ttft=targets[0], tpot=targets[1]))
    capacity = serving.capacity

    def met(users: int) -> bool:
        load = serving.load(users)
        return all(
            target is None or got.expected <= target
            for target, got in zip(targets, (load.ttft, load.tpot), strict=True)
        )

    assert 0 < capacity.users <= serving.memory.users
    assert met(capacity.users)
    assert capacity.load == serving.load(capacity.users)
    if capacity.limit == "memory":
        assert capacity.users == serving.memory.users
    else:
        assert not met(capacity.users + 1)
        assert targets[("ttft", "tpot").index(capacity.limit)] is not None


def test_no_user_within_impossible_targets() -> None:
    serving = LoadEstimator(A100_8B, PlanWorkload(1024, 256, tpot=0.001))
    assert (serving.capacity.users, serving.capacity.limit) == (0, "tpot")
    assert serving.capacity.load.users == 1
    assert outcome_of(serving).tokens_per_second is None


def test_first_token_and_tpot_grow_with_users() -> None:
    """The search for the most users relies on it."""
    serving = LoadEstimator(A100_8B, PlanWorkload(300, 100))
    loads = [serving.load(n) for n in range(1, 200, 3)]
    for before, after in itertools.pairwise(loads):
        assert before.ttft.expected < after.ttft.expected
        assert before.tpot.expected < after.tpot.expected


@pytest.mark.parametrize("devices", [1, 2])
def test_dollars_by_hand(devices: int) -> None:
    """$ / h x cards / (3,600 x tokens a second) x 1e6."""
    planned = case(TINY, card(price=HourlyPrice(2.5, "today", "here")), devices=devices)
    serving = LoadEstimator(planned, PlanWorkload(100, 50, batch=4))
    rate = serving.capacity.load.tokens_per_second.expected
    assert outcome_of(serving).dollars_per_million == pytest.approx(2.5 * devices / 3600 / rate * 1e6)
    assert outcome_of(LoadEstimator(case(TINY), PlanWorkload())).dollars_per_million is None


@pytest.mark.parametrize("batch", [1, 8, 100])
def test_an_outcome_is_of_the_batch_that_was_asked_for(batch: int) -> None:
    """Both times of it: the prefill of all its prompts and a decode step of all of them."""
    workload = PlanWorkload(1024, 256, batch=batch)
    outcome = outcome_of(LoadEstimator(A100_8B, workload))
    assert outcome.ttft == pytest.approx(prefill_of(A100_8B, workload).seconds.expected)
    assert outcome.itl == decode_of(A100_8B, batch, workload.context).seconds.expected


def test_a_price_given_for_a_card_is_in_its_own_row_alone() -> None:
    models = ModelCache(fields(TINY))
    asked, other = (
        card(price=HourlyPrice(9.0, "today", "--price")),
        card(name="other", price=HourlyPrice(1.0, "2025", "list")),
    )
    serving = LoadEstimator(models.scenario(Deployment(asked)), PlanWorkload(100, 50))
    setup = replace(serving.case.setup, weights="bf16", kv="bf16")  # as it is stored: only that is tried
    found = compare("test", models, setup, serving.workload, (asked, other), Demand(), counts=(1,))
    rows = {offer.outcome.device_name: offer.outcome for offer in found.offers}
    assert rows["text-a100"] == outcome_of(serving)
    listed = outcome_of(LoadEstimator(models.scenario(Deployment(other)), PlanWorkload(100, 50)))
    assert rows["other"] == listed
    assert rows["text-a100"].dollars_per_million == pytest.approx(9 * (listed.dollars_per_million or 0))


def test_the_batching_lever_compares_what_the_other_levers_do() -> None:
    """Its TTFT and tokens a second of a user are those of outcomes of the two batches."""
    serving = LoadEstimator(A100_8B, PlanWorkload(1024, 256, batch=4))
    before, most = outcome_of(serving), serving.capacity.users
    after = outcome_of(LoadEstimator(A100_8B, PlanWorkload(1024, 256, batch=most)))
    lever = batch_lever(serving, before)
    assert lever is not None
    assert lever.first == pytest.approx(before.ttft / after.ttft)
    assert lever.faster == pytest.approx(before.itl / after.itl)
