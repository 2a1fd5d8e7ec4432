"""The statements of texts that the page sets beside the ledger: each figure that it says is Python's."""

import re
from functools import lru_cache
from math import exp, log
from typing import Any

import pytest

from page.pages import Page
from page.test_seed_numbers import table
from ridgeline.core.checkpoint.source import open_source, read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import ParameterBreakdown, parameter_breakdown
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.core.text.byte_tokenizer import BYTE_SYMBOLS
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.price.crossovers import compute_bound_prompt, critical_batch
from ridgeline.price.device import Device
from ridgeline.price.devices import load_device
from ridgeline.price.plan import Deployment, DeploymentPlan, PlanWorkload, make_plan
from ridgeline.price.price import Price, StepPrice
from ridgeline.util.document.humanize import say_gb, say_seconds, three_digits

MODELS = ("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen3-235b-a22b", "qwen3-30b-a3b", "llama-2-7b", "gpt2")
A100, H100 = load_device("a100-sxm-80gb"), load_device("h100-sxm")
SMALL, LARGE = "llama-3-8b", "llama-3-70b"


@lru_cache
def model(name: str) -> Model:
    """On meta."""
    return build(read_config(name))


@lru_cache
def price(name: str) -> Price:
    """Its price."""
    return Price(model(name))


@lru_cache
def billed(name: str) -> ParameterBreakdown:
    """Its parameters."""
    return parameter_breakdown(model(name))


@lru_cache
def plan(name: str, card: str, wanted: PlanWorkload) -> DeploymentPlan:
    """What `ridgeline plan` gives."""
    source = open_source(name)
    return make_plan(source.title, source.config, Deployment(load_device(card)), wanted, ())


def decode(name: str, card: Device, users: int = 1, context: int = 1) -> StepPrice:
    return price(name).price_step(card, Work.decode([context] * users))


def floor(name: str, card: Device, work: Work) -> float:
    """Of the sums alone, which is quicker than a priced step."""
    cost = price(name).step(work)
    return max(*(n / card.peak(number) for number, n in cost.flops.items()), cost.memory_bytes / card.bandwidth)


def prompt(name: str, card: Device, length: int) -> tuple[float, float]:
    """Seconds of attention, and of all operations one after the other, none faster than the card."""
    step = price(name).price_step(card, Work.of([StepSegment(length, length)]))
    found = [(row.priced.op.kind, row.time.bound * row.priced.count) for row in step.rows]
    return sum(bound for kind, bound in found if kind == "attention"), step.bound


def kv(name: str) -> float:
    return sum(spec.bytes_per_token for spec in model(name).kv_specs)


def one_user() -> dict[str, Any]:
    alone, large = decode(SMALL, A100, context=2).cost, decode(LARGE, H100, context=2).cost  # with the new token
    arithmetic = alone.flops["bf16"] / A100.peak("bf16")
    share = large.flops["bf16"] / H100.peak("bf16") / (large.memory_bytes / H100.bandwidth)
    held = plan(LARGE, "h100-sxm", PlanWorkload(1, 1, 1, 1.0, 0.05)).memory
    eight = Work.of([StepSegment(8, 8)])
    first = floor(SMALL, H100, eight)
    brief, long = prompt(SMALL, H100, 8), prompt(SMALL, A100, 1024)
    return {
        "ops-per-byte": {"ridge": H100.ridge("bf16"), "peak": 989e12, "bandwidth": 3.35e12},
        "one-user": {
            "weights": alone.weight_bytes, "floor": alone.memory_bytes / A100.bandwidth, "arithmetic": arithmetic,
            "times": alone.memory_bytes / A100.bandwidth / arithmetic,
        },
        "large-model": {"floor": large.memory_bytes / H100.bandwidth, "share": share, "missing": held.missing},
        "haiku": {
            "first": first, "arithmetic": price(SMALL).step(eight).flops["bf16"] / H100.peak("bf16"),
            "all": first + sum(floor(SMALL, H100, Work.decode([8 + i])) for i in range(1, 30)),
        },
        "prefill": {"length": compute_bound_prompt(price(SMALL), H100)},
        "attention-of-eight": {"attention": brief[0], "all": brief[1]},
        # Causal pairs are S (S + 1) / 2 of 4 d FLOPs, matrices 2 S times their parameters: S + 1 = parameters / d.
        "attention-dearest": {"attention": long[0], "all": long[1], "level": 53_248 - 1, "overtakes": 53_248},
    }  # fmt: skip


def many_users() -> dict[str, Any]:
    llama = price(SMALL)
    few, more = (decode(SMALL, A100, users, 2000).cost for users in (1000, 2000))  # on lines, which have a slope
    slope = (more.flops["bf16"] - few.flops["bf16"]) / (more.memory_bytes - few.memory_bytes)
    busy = plan(SMALL, "a100-sxm-80gb", PlanWorkload(1500, 1000, 32, 1.0, 0.05)).serving.load(32)
    small, engine = (
        plan(SMALL, card, wanted).memory
        for card, wanted in (
            ("rtx-4090", PlanWorkload(1999, 1, 1, 1.0, 0.05)), ("h100-sxm", PlanWorkload(1024, 1024, 1, 1.0, 0.05)),
        )
    )  # fmt: skip
    never = next(context for context in range(700, 900) if critical_batch(llama, A100, context) is None)
    rate, most = busy.requests_per_second.expected, busy.requests_per_second.floor
    around = plan(SMALL, "a100-sxm-80gb", PlanWorkload(1500, 1000, 32, 1.0, 0.05)).intervals["load"]
    contexts = 128, 512, 2000
    alone, together = ([decode(SMALL, A100, n, context).floor for context in contexts] for n in (1, 32))
    return {
        "batch-150": {
            "wall": slope, "ridge": A100.ridge("bf16"), "never": never,
            "batches": [critical_batch(llama, A100, context) for context in (1, 128, 256, 512)],
        },
        "batching-32": {"gains": [32 * a / b for a, b in zip(alone, together, strict=True)]},
        "little": {
            "rate": rate, "most": most, "stay": 32 / rate, "least": 32 / most,
            "around": {"low": around.low, "high": around.high},
        },
        "users-on-24-gb": {"users": small.users, "left": small.left, "each": small.request_bytes},
        "concurrency": {
            "tokens": engine.kv_tokens, "pages": engine.pages, "times": engine.concurrency, "said": 140595 / 2048,
        },
    }  # fmt: skip


def keys_and_values() -> dict[str, Any]:
    lengths = range(1, 1001)
    read = [price(SMALL).step(Work.decode([context])).kv_read_bytes for context in range(1, 2001)]
    return {
        "kv-of-a-token": {"token": 2 * 32 * 8 * 128 * 2, "all": 250 * 2**20},
        "grouped-heads": {"token": 131_072, "ungrouped": 524_288},
        "kv-of-70b": {
            "token": kv(LARGE), "all": 8192 * kv(LARGE),
            "parameters": billed(LARGE).total, "nbytes": billed(LARGE).nbytes,
        },
        "kv-cache": {
            "positions": 1000 * 1001 // 2,
            "without": sum(floor(SMALL, A100, Work.of([StepSegment(n, n)])) for n in lengths),
            "with": sum(floor(SMALL, A100, Work.decode([n])) for n in lengths),
        },
        "linear-with-cache": {"step": read[1999] / read[999], "all": sum(read) / sum(read[:1000])},
    }  # fmt: skip


def models() -> dict[str, Any]:
    mixture, light, small = map(billed, ("qwen3-235b-a22b", "qwen3-30b-a3b", SMALL))
    hidden = 16384
    attention, ffn = hidden * (2 * hidden + 2 * 1024), 3 * hidden * 53248
    layer = attention + ffn + 2 * hidden
    experts = next(op for _, op in model("qwen3-235b-a22b").ops() if isinstance(op, Experts))
    one, together = (decode("qwen3-235b-a22b", H100, users).cost.weight_bytes for users in (1, 32))
    unread = small.nbytes - decode(SMALL, A100).cost.weight_bytes
    return {
        "405b": {
            "attention": attention, "ffn": ffn, "all": layer, "share": ffn / layer, "total": 405_853_388_800,
            "nbytes": 811_706_777_600,
        },
        "active-experts": {
            "total": mixture.total, "active": mixture.active, "nbytes": mixture.nbytes, "one": one,
            "together": together, "touched": [experts.touched(rows) for rows in (1, 8, 32, 64)],
        },
        "small-are-dense": {"total": light.total, "active": light.active},
        "feed-forward": {
            "all": small.parameters["feed-forward"] / small.total,
            "single": small.layer["feed-forward"] / sum(small.layer.values()),
        },
        "embedding": {"count": 128256 * 4096, "unread": unread},
        "tying": {"heads": [0, 32000 * 4096]},
    }  # fmt: skip


def arithmetic() -> dict[str, Any]:
    near, far = exp(0.5**0.5), 1.0  # keys of this query's direction, and across it
    shares = [near / (2 * near + far), far / (2 * near + far), near / (2 * near + far)]
    return {
        "attention-by-hand": {
            "shares": shares, "taken": [10 * shares[0] + 5 * shares[2], 10 * shares[1] + 5 * shares[2]],
        },
        "products-by-hand": {"alone": 4 + 10 + 18, "rows": [4, 5]},
        "impossible-chances": {"times": exp(4.3), "said": 3.5, "apart": log(3.5)},
        "words-are-runs": {"tokens": 4000 / 3},
        "byte-tokenizer": {"symbols": BYTE_SYMBOLS},
        "guidance": {"passes": 100, "saved": [0.84, 0.92]},
        "latent": {"tokens": [4096, 1024], "fewer": 64},
        "single-pass-pictures": {"passes": 576},
    }  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Page:
    """With `found`: figures by statement, and `words`: what is said of them."""
    page = Page("statements.js")
    page.keep("cards", build_device_tables([A100, H100, load_device("rtx-4090")]))
    page.keep("written", {name: table(name) for name in MODELS})
    page.run("""
        const {openTable, openCards} = modules["price.js"];
        const {GROUPS, figuresOf, statesOf, sourceOf} = modules["statements.js"];
        const all = openCards(kept.cards), tables = {}, found = {}, words = {}, sources = {};
        for (const name in kept.written) tables[name] = openTable(kept.written[name]);
        for (const each of GROUPS.flatMap((group) => group.statements)) {
          found[each.id] = figuresOf(each, statesOf(each).map(({model}) => tables[model]), all) ?? null;
          words[each.id] = each.ledger(found[each.id]);
          sources[each.id] = sourceOf(each);
        }""")
    return page


def test_figures_are_pythons(page: Page) -> None:
    """Of every statement that has figures; what has none is said to be a fact."""
    computed = one_user() | many_users() | keys_and_values() | models()
    found, sources = page.eval("found"), page.eval("sources")
    for name, wanted in (computed | arithmetic()).items():
        assert found[name].keys() == wanted.keys(), name
        for figure, value in wanted.items():
            assert found[name][figure] == pytest.approx(value, rel=1e-6), (name, figure)
    assert sources == {
        **dict.fromkeys(computed, "from the model's table"),
        **dict.fromkeys(arithmetic(), "arithmetic"),
        **dict.fromkeys(("name", "characters-a-token"), "a fact"),
    }


def test_what_is_said_has_the_figures(page: Page) -> None:
    words = page.eval("words")
    assert not [said for said in words.values() if re.search("NaN|undefined|null|Infinity", said)]
    cost = decode(SMALL, A100).cost
    seconds = cost.memory_bytes / A100.bandwidth
    wanted = [say_gb(cost.weight_bytes / 1e9), say_seconds(seconds), f"{three_digits(1 / seconds)} tokens per second"]
    assert words["one-user"].startswith(", ".join(wanted))
    assert words["grouped-heads"].endswith("524,288 bytes per token compared with 131,072, 4.00 times as many.")
    assert words["attention-by-hand"] == "0.4011 0.1978 0.4011, so [6.0167, 3.9833]."
    crossing = "At 53,247 tokens it does as many FLOPs as the matrices, and from 53,248 on more."
    assert words["attention-dearest"].endswith(crossing)
