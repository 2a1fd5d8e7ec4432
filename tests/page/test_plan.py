"""The page's plan is the plan: users, seconds, memory and dollars of workloads at random."""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from page.pages import CARDS, ENGINES, NATIVE, Page, opened, put
from ridgeline.core.checkpoint.source import open_source
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.price.crossovers import compute_bound_prompt, context_where_kv_outweighs_weights, critical_batch
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.engine_profile import EngineProfile
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.request_phases import Estimate, PhasePrice, decoder_phases, price_phase
from ridgeline.price.plan.scenario import ModelCache, PlanWorkload, Scenario

# These functions of the page still repeat Python's by hand, so this file and test_price.py compare them.
# - price.js: `priceStep` sums lines of a table, where `Price` calls ops and caches their costs; `activationPeak`.
# - work.js: `workOf` and `decodeWork`, whose attention is a list by pattern, where Python has a mapping from patterns;
#   `prefillWork`, because only Python's prompts have images.
# - plan.js: `memoryOf` and `pagesKept`, because `memory_of` reads pages from the engine's own layout, which the table
#   has as numbers; `load`, which computes the TTFT of synchronised users only if a view needs it, to follow a drag.
SAME = 1e-9
MODELS = {
    "llama-3-8b": StoredModel("fp8"),
    "qwen3-0.6b": StoredModel(),
    "gpt2": StoredModel("fp32"),
    "gemma-3-1b": StoredModel("int8", "fp8"),
    "gpt-oss-20b": StoredModel(devices=2),
    "mixtral-8x7b": StoredModel("int4"),
    "nemotron-h-8b": StoredModel("int4"),
    "llama-3.2-3b": StoredModel("int4", "fp8", 2),
    "t5-small": StoredModel(),
    "whisper-tiny": StoredModel(),
}
PRICE = HourlyPrice(2.5, "2026-11", "a test")


@pytest.fixture(scope="module")
def page() -> Page:
    page = opened("plan.js")
    page.run("""
        const {makeCase, makeWorkload, memoryOf, requestOf, decodeOf, Serving} = modules["plan.js"];
        const {dollars_per_million} = modules["plan_formulas.js"];
        const three = ({floor, bound, expected}) => [floor, bound, expected];
        const phase = (of) => [
          of.flops, of.arithmetic, of.memory, of.intensity, of.ridge, of.idle, of.host, of.weight_bytes,
          of.kv_read_bytes, of.kv_write_bytes, of.limit, ...three(of.seconds),
          ...of.classes.flatMap((row) => [row.kind, row.bound, row.expected, row.share, row.limit])];
        const load = (of) => [of.users, of.prefillShare, ...[of.itl, of.prefill, of.tpot, of.ttft, of.ttftMarching,
          of.tokensPerSecond, of.requestsPerSecond, of.tokensPerUser].flatMap(three)];
        const waits = (of) => of && [of.users, ...[of.tpot_together, of.tpot_apart, of.tokens_per_second_together,
          of.tokens_per_second_apart].flatMap(three)];
        function plan({card, engine, utilization, users, ...workload}) {
          const asked = makeCase(kept.table, kept.all.cards[card], kept.all.engines[engine], {utilization});
          const wanted = makeWorkload(kept.table, workload);
          const serving = new Serving(asked, wanted);
          const {memory, capacity} = serving;
          const {prefill, decode, seconds} = requestOf(asked, wanted);
          const some = serving.load(users);
          const tokens = capacity.load.tokensPerSecond.expected;
          return [[memory.budget, memory.weights, memory.activations, memory.overhead, memory.left, memory.sampler,
            memory.pages, memory.requestBytes, memory.perToken, memory.logitRows, memory.held, memory.atEnd,
            memory.together, memory.users, memory.limit, memory.fits, memory.missing,
            memory.concurrency,
            memory.stateBytes ? null : memory.kvTokens],
            [capacity.users, capacity.limit], load(capacity.load), load(some), waits(some.waits),
            phase(prefill), phase(decode), three(seconds), dollars_per_million(2.5 * asked.devices, tokens)];
        }""")
    return page


def three(estimate: Estimate) -> list[float]:
    return list(dataclasses.astuple(estimate))


def phase(of: PhasePrice) -> list[Any]:
    """As the page's, in the same order."""
    classes = [[row.kind, row.bound, row.expected, row.share, row.limit] for row in of.classes]
    return [
        of.flops, of.arithmetic, of.memory, of.intensity, of.ridge, of.idle, of.host, of.weight_bytes,
        of.kv_read_bytes, of.kv_write_bytes, of.limit, *three(of.seconds), *(each for row in classes for each in row),
    ]  # fmt: skip


def planned(case: Scenario, workload: PlanWorkload, users: int) -> list[Any]:
    """What Python says of all that the page is asked for."""
    serving = LoadEstimator(case, workload)
    memory, capacity, some = serving.memory, serving.capacity, serving.load(users)
    prefill, decode = (price_phase(case.price, case.device, each) for each in decoder_phases(case, workload))
    seconds = prefill.seconds + decode.seconds * (workload.output - 1)
    waits = some.waits
    return [
        [
            memory.budget, memory.weights, memory.activations, memory.overhead, memory.left, memory.sampler,
            memory.pages, memory.request_bytes, memory.kv_bytes_per_token, memory.logit_rows,
            memory.kv_capacity_requests,
            memory.at_end, memory.max_simultaneous, memory.users, memory.limit, memory.fits, memory.missing,
            memory.concurrency,
            None if memory.state_bytes else memory.kv_tokens,
        ],
        [capacity.users, capacity.limit],
        loaded(capacity.load),
        loaded(some),
        None
        if waits is None
        else [
            waits.users, *three(waits.tpot_together), *three(waits.tpot_apart),
            *three(waits.tokens_per_second_together), *three(waits.tokens_per_second_apart),
        ],
        phase(prefill),
        phase(decode),
        three(seconds),
        serving.dollars_per_million(capacity.load.tokens_per_second.expected),
    ]  # fmt: skip


def loaded(of: Any) -> list[float]:
    """A load, in the page's order."""
    estimates = (
        of.itl, of.prefill, of.tpot, of.ttft, of.ttft_synchronised, of.tokens_per_second, of.requests_per_second,
        of.tokens_per_user,
    )  # fmt: skip
    return [of.users, of.prefill_share, *(figure for estimate in estimates for figure in three(estimate))]


def requests(rng: random.Random, models: ModelCache, stored: StoredModel, count: int) -> Iterator[PlanWorkload]:
    """Lengths and steps at random, as the model takes them; short ones are rare, of which memory holds thousands."""
    model = models.scenario(stored.setup).model
    longest = model.encoder_context if model.has_cross_attention else model.context
    found = 0
    while found < count:
        given, output = round(2 ** rng.uniform(5, 13)), rng.choice((1, 2, 3, round(2 ** rng.uniform(2, 11))))
        workload = PlanWorkload(
            given, output, rng.choice((1, 1, 2, 3, 17)), step_tokens=rng.choice((64, 500, 2048, 8192))
        )
        if given + output <= longest and workload.of(model).tokens <= model.context:
            found += 1
            yield workload


def setups(
    rng: random.Random, devices: int, count: int, engines: Sequence[EngineProfile]
) -> Iterator[tuple[Device, EngineProfile, float]]:
    """Cards, engines and shares of memory at random."""
    for _ in range(count):
        card = rng.choice(CARDS if devices > 1 else (*CARDS, NATIVE))
        yield card, rng.choice(engines), rng.choice((0.9, 0.5, round(rng.uniform(0.2, 1), 3)))


def asked_of(
    rng: random.Random, workload: PlanWorkload, card: Device, engine: EngineProfile, share: float
) -> tuple[PlanWorkload, int, dict[str, Any]]:
    """A workload with targets, users that a load is asked of, and both as the page takes them."""
    wanted = dataclasses.replace(
        workload,
        ttft=rng.choice((None, 10 ** rng.uniform(-2, 1.5))),
        tpot=rng.choice((None, 10 ** rng.uniform(-2.5, 0))),
    )
    users = rng.choice((1, 2, rng.randint(3, 300)))
    told = {"input": wanted.input, "output": wanted.output, "batch": wanted.batch, "stepTokens": wanted.step_tokens}
    setup = {"card": card.name, "engine": engine.name, "utilization": share, "users": users}
    return wanted, users, told | setup | {"ttft": wanted.ttft, "tpot": wanted.tpot}


def alike(some: Any, others: Any) -> bool:
    """Figures within a billionth, of nothing within that of one; counts, names and limits equal."""
    if isinstance(some, list) and isinstance(others, list):
        return len(some) == len(others) and all(map(alike, some, others))
    if isinstance(some, float) or isinstance(others, float):
        return abs(some - others) <= SAME * max(abs(some), abs(others), 1e-3)
    return bool(some == others)


def compare(
    page: Page, name: str, stored: StoredModel, shapes: int, each: int, engines: Sequence[EngineProfile]
) -> None:
    """So many workloads of a model, on so many setups each, hold page and plan to each other."""
    source, rng = open_source(name), random.Random(name)
    models = ModelCache(source.config)
    table = model_table(source, stored, models)
    put(page, table)
    given, expected = [], []
    for workload in requests(rng, models, stored, shapes):
        for card, engine, share in setups(rng, stored.devices, each, engines):
            if card.kind in table["otherwise"]:
                continue
            wanted, users, told = asked_of(rng, workload, card, engine, share)
            device = dataclasses.replace(card, price=PRICE)
            setup = dataclasses.replace(stored.setup, device=device, engine=engine, utilization=share)
            case = models.scenario(setup)
            given.append(told)
            expected.append(planned(case, wanted.of(case.model), users))
    page.keep("asked", given)
    assert given
    for told, got, wanted in zip(given, page.eval("kept.asked.map(plan)"), expected, strict=True):
        assert alike(got, wanted), (told, got, wanted)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_says_what_python_says(page: Page, name: str) -> None:
    """Users, limits and pages equal; seconds, bytes and dollars within a billionth."""
    compare(page, name, MODELS[name], 2, 3, ENGINES[:3])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_two_thousand_plans_say_what_python_says(page: Page, name: str) -> None:
    compare(page, name, MODELS[name], 20, -(-2000 // (20 * len(MODELS))), ENGINES[:3])


def test_a_plan_of_ranks_that_have_requests_of_their_own(page: Page) -> None:
    """What lies between prompts that come to all ranks at once and to one after the other, too."""
    compare(page, "qwen3-30b-a3b", StoredModel("fp8", None, 4, own_attention=True), 2, 2, ENGINES[3:])


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-1b", "t5-small", "whisper-tiny", "nemotron-h-8b"])
def test_crossings_are_those_of_python(page: Page, name: str) -> None:
    """Compare `critical.js`, whose searches are generated, over costs that Python's ops and the table each sum."""
    page.read("critical.js")
    source, stored = open_source(name), StoredModel()
    models = ModelCache(source.config)
    put(page, model_table(source, stored, models))
    case, encoded = models.scenario(stored.setup), 100 if name in ("t5-small", "whisper-tiny") else 0
    wanted = [
        [critical_batch(case.price, case.device, context, encoded) for context in (2, 128, 700, 2000)],
        compute_bound_prompt(case.price, case.device, case.prompt),
        [context_where_kv_outweighs_weights(case.price, users, encoded) for users in (1, 32)],
    ]
    found = page.eval(f"""((asked, {{criticalBatch, computeBoundPrompt, kvOutweighsWeights}}) => [
        [2, 128, 700, 2000].map((context) => criticalBatch(asked, context, {encoded})), computeBoundPrompt(asked),
        [1, 32].map((users) => kvOutweighsWeights(asked, users, {encoded}))])(
        makeCase(kept.table, kept.all.cards["{case.device.name}"], kept.all.engines.vllm), modules["critical.js"])""")
    assert alike(found, wanted), (found, wanted)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("makeWorkload(kept.table, {input: 1000, output: 25})", "more than the model's context of 1024"),
        ("makeCase(kept.table, kept.all.cards['h100-sxm'], kept.all.engines['vllm-dp'])", "uses --enable-dp-attention"),
        (
            "makeCase({...kept.table, devices: 2}, kept.all.cards.own, kept.all.engines.vllm)",
            "has no known link between GPUs",
        ),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_line(page: Page, code: str, says: str) -> None:
    put(page, model_table(open_source("gpt2"), StoredModel()))
    with pytest.raises(Exception, match=says):
        page.eval(code)
