"""Users on a card: Little's law, the formulas by hand, and a loop that lives through them."""

import heapq
import itertools
import random

import pytest

from ridgeline.roofline.device import HourlyPrice
from ridgeline.roofline.plan.outcome import outcome_of
from ridgeline.roofline.plan.serving import Serving
from ridgeline.roofline.plan.workload import Workload
from support.planned import LLAMA_3_8B, TINY, case

A100_8B = case(LLAMA_3_8B)


@pytest.mark.parametrize("users", [1, 7, 64, 300])
def test_tpot_and_littles_law(users: int) -> None:
    """SEED_NUMBERS 16 and analysis.md 6.5: TPOT = t_decode(B) + B / OSL x t_prefill(ISL), N = X L."""
    serving = Serving(A100_8B, Workload(1024, 256))
    load = serving.load(users)
    for name in ("floor", "bound", "expected"):
        itl, prompt, tpot = (getattr(e, name) for e in (load.itl, load.prefill, load.tpot))
        rate, requests = getattr(load.tokens_per_second, name), getattr(load.requests_per_second, name)
        assert tpot == pytest.approx(itl + users / 256 * prompt)
        assert rate == pytest.approx(users / tpot)
        assert requests * 256 * tpot == pytest.approx(users)  # N = X L
        assert requests == pytest.approx(rate / 256)
    assert load.prefill_share == pytest.approx(1 - load.itl.expected / load.tpot.expected)


def live(users: int, prompt: float, step: float, output: int) -> tuple[float, float, float]:
    """A closed loop, prefills first, one thing at a time: tokens a second, mean TTFT, mean TPOT.

    Outputs are of 1 to 2 x `output` - 1 tokens and users ask again at some moment of the next step, so that they do
    not march in step.
    """
    draw = random.Random(0)
    clock, tokens, start, steps = 0.0, 0, 0.0, 0
    asking = [0.0] * users
    running: list[tuple[int, float, int]] = []  # step at which it ends, when its first token came, its length
    first: list[float] = []
    each: list[tuple[float, int]] = []
    for done in range(60_000):
        if done == 10_000:  # the start, when all ask at once, is not the load
            tokens, start, first, each = 0, clock, [], []
        if asking and (asking[0] <= clock or not running):
            asked = heapq.heappop(asking)
            clock = max(clock, asked) + prompt
            first.append(clock - asked)
            length = draw.randint(1, 2 * output - 1)
            heapq.heappush(running, (steps + length - 1, clock, length))
            tokens += 1
        else:
            clock += step
            steps += 1
            tokens += len(running)
        while running and running[0][0] <= steps:
            _, came, length = heapq.heappop(running)
            each.append((clock - came, length - 1))
            heapq.heappush(asking, clock + draw.random() * step)
    tpot = sum(seconds for seconds, _ in each) / sum(count for _, count in each)
    return tokens / (clock - start), sum(first) / len(first), tpot


@pytest.mark.parametrize(
    ("users", "output", "close"), [(8, 100, 0.15), (32, 64, 0.15), (100, 200, 0.15), (300, 100, 0.3)]
)
def test_a_load_is_what_a_loop_lives_through(users: int, output: int, close: float) -> None:
    """Throughput to 2 %, TPOT to 5 %. The first token to 15 %; where prompts are most of the work they come in bursts,
    not at random, and wait up to 40 % longer."""
    load = Serving(A100_8B, Workload(512, output)).load(users)
    rate, ttft, tpot = live(users, load.prefill.expected, load.itl.expected, output)
    assert load.tokens_per_second.expected == pytest.approx(rate, rel=0.02)
    assert load.tpot.expected == pytest.approx(tpot, rel=0.05)
    assert load.ttft.expected == pytest.approx(ttft, rel=close)


def test_first_token_by_hand() -> None:
    """t_prefill + the M/D/1 wait for the others' prompts + half a decode step; alone nothing but the prefill."""
    serving = Serving(A100_8B, Workload(1024, 256))
    alone, load = serving.load(1), serving.load(50)
    assert alone.ttft == alone.prefill
    prompt, step, tpot = load.prefill.expected, load.itl.expected, load.tpot.expected
    busy = 49 * prompt / (256 * tpot)
    assert load.ttft.expected == pytest.approx(prompt + busy * prompt / 2 / (1 - busy) + step / 2)


@pytest.mark.parametrize("targets", [(None, 0.05), (0.2, None), (0.1, 0.05), (None, None), (5.0, 0.030)])
def test_the_most_users_within_the_targets(targets: tuple[float | None, float | None]) -> None:
    serving = Serving(A100_8B, Workload(1024, 256, ttft=targets[0], tpot=targets[1]))
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
    serving = Serving(A100_8B, Workload(1024, 256, tpot=0.001))
    assert (serving.capacity.users, serving.capacity.limit) == (0, "tpot")
    assert serving.capacity.load.users == 1
    assert outcome_of(serving).tokens_per_second is None


def test_first_token_and_tpot_grow_with_users() -> None:
    """The search for the most users relies on it."""
    serving = Serving(A100_8B, Workload(300, 100))
    loads = [serving.load(n) for n in range(1, 200, 3)]
    for before, after in itertools.pairwise(loads):
        assert before.ttft.expected < after.ttft.expected
        assert before.tpot.expected < after.tpot.expected


@pytest.mark.parametrize("devices", [1, 2])
def test_dollars_by_hand(devices: int) -> None:
    """$ / h x cards / (3,600 x tokens a second) x 1e6."""
    planned = case(TINY, devices=devices, price=HourlyPrice(2.5, "today", "here"))
    serving = Serving(planned, Workload(100, 50, batch=4))
    rate = serving.capacity.load.tokens_per_second.expected
    assert outcome_of(serving).dollars_per_million == pytest.approx(2.5 * devices / 3600 / rate * 1e6)
    assert outcome_of(Serving(case(TINY), Workload())).dollars_per_million is None
