"""What the teaching texts say, evaluated by the page: the ledger's figures, as tests/price/test_seed_hardware.py has
them of Python. Numbers in the names are the rows of the list of such statements that this project keeps."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from page.pages import Page
from ridgeline.core.checkpoint.source import open_source
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.price.devices import load_device

GIB = 2**30
Asks = Callable[[str, str, str], Any]


@lru_cache
def table(name: str) -> Any:
    """A model as it is released."""
    return model_table(open_source(name), StoredModel())


@pytest.fixture(scope="module")
def on() -> Asks:
    """Evaluates an expression over a model on a card, as a case `asked`."""
    page = Page("plan.js", "critical.js")
    page.keep("data", build_device_tables(map(load_device, ("a100-sxm-80gb", "h100-sxm", "rtx-4090", "h200-sxm"))))
    page.run("""
        const {openTable, openCards, priceStep} = modules["price.js"];
        const {touchedBy} = modules["price.js"];
        const {Cost_total_flops, Cost_memory_bytes} = modules["step_formulas.js"];
        const {compute_seconds} = modules["formulas.js"];
        const {segment, workOf, decodeWork} = modules["work.js"];
        const {makeCase, makeWorkload, memoryOf} = modules["plan.js"];
        const {criticalBatch, computeBoundPrompt, kvOutweighsWeights} = modules["critical.js"];
        const all = openCards(kept.data), opened = {};
        // The texts' A100 has 2 TB/s even.
        all.cards.a100 = {...all.cards["a100-sxm-80gb"], bandwidth: 2e12};
        all.cards.h100 = all.cards["h100-sxm"];
        const decode = (asked, users, context) =>
          priceStep(asked.table, asked.device, decodeWork(asked.table, users, context));
        const prefill = (asked, length) =>
          priceStep(asked.table, asked.device, workOf(asked.table, [segment(length, length)]));
        """)
    known = set[str]()

    def evaluate(model: str, card: str, expression: str) -> Any:
        if model not in known:
            page.keep("written", table(model))
            page.run(f"opened['{model}'] = openTable(kept.written)")
            known.add(model)
        case = f"makeCase(opened['{model}'], all.cards['{card}'], all.engines.vllm)"
        return page.eval(f"((asked) => {expression})({case})")

    return evaluate


def test_02_batch_that_reaches_the_ridge(on: Asks) -> None:
    contexts = [1, 128, 256, 512, 700]
    found = on("llama-3-8b", "a100", f"{contexts}.map((context) => criticalBatch(asked, context))")
    assert found == pytest.approx([156, 188.3, 236.8, 489.1, 2248.2], rel=3e-3)
    assert on("llama-3-8b", "a100", "[752, 753, 2000].map((context) => criticalBatch(asked, context) === null)") == [
        False,
        True,
        True,
    ]
    assert on("llama-3-8b", "h100", "criticalBatch(asked, 128)") == pytest.approx(438, rel=0.005)
    assert on("llama-3-8b", "h100", "criticalBatch(asked, 394)") is None
    cost = "decode(asked, 100000, 2000).cost"
    assert on("llama-3-8b", "a100", f"{cost}.flops.bf16 / Cost_memory_bytes({cost})") == pytest.approx(61, abs=0.5)


def test_03_and_04_kv_of_a_token(on: Asks) -> None:
    assert on("llama-3-8b", "a100", "asked.table.memory.token") == 131_072
    assert on("llama-3-8b", "a100", "2000 * asked.table.memory.token / 1e6") == pytest.approx(262, abs=0.2)
    assert on("llama-3-70b", "h100", "asked.table.memory.token") == 327_680
    assert on("llama-3-70b", "h100", "8192 * asked.table.memory.token / 1e9") == pytest.approx(2.68, abs=0.005)
    assert on("llama-3-70b", "h100", "asked.table.parameters.total / 1e9") == pytest.approx(70.554, abs=0.001)
    assert on("llama-3-70b", "h100", "asked.table.parameters.bytes / 1e9") == pytest.approx(141.1, abs=0.05)
    assert on("llama-3-70b", "h100", "memoryOf(asked, makeWorkload(asked.table)).fits") is False


def test_05_users_on_24_gb_subtraction_by_subtraction(on: Asks) -> None:
    """The text's 30 forget activations, overhead and what is not to be used; the sum closes to the byte."""
    memory = on("llama-3-8b", "rtx-4090", "memoryOf(asked, makeWorkload(asked.table, {input: 1999, output: 1}))")
    assert memory["left"] == memory["budget"] - (memory["weights"] + memory["activations"] + memory["overhead"])
    assert (memory["requestBytes"], memory["pages"]) == (250 * 2**20, memory["left"] // 2**21)
    assert memory["users"] == memory["pages"] // 125 == 21


def test_06_one_user_on_an_a100(on: Asks) -> None:
    weights, compute, memory, floor = on(
        "llama-3-8b", "a100",
        """((step) => [step.cost.weight_bytes,
            step.cost.flops.bf16 / 312e12, Cost_memory_bytes(step.cost) / 2e12, step.floor])
        (decode(asked, 1, 1))""",
    )  # fmt: skip
    assert weights / 2e9 == pytest.approx(7.505, abs=0.001)
    assert (weights / 1e9, memory * 1e3, 1 / floor) == pytest.approx((15.01, 7.50, 133), rel=3e-3)
    assert compute * 1e3 == pytest.approx(0.048, abs=0.0005)
    assert memory / compute == pytest.approx(156, abs=0.5)


def test_07_70b_on_one_h100(on: Asks) -> None:
    weights, arithmetic, memory = on(
        "llama-3-70b", "h100",
        """((cost) => [cost.weight_bytes, cost.flops.bf16 / 989e12, Cost_memory_bytes(cost) / 3.35e12])
        (decode(asked, 1, 1).cost)""",
    )  # fmt: skip
    assert (weights / 1e9, memory * 1e3) == pytest.approx((139.0, 41.5), abs=0.05)
    assert arithmetic * 1e3 == pytest.approx(0.141, abs=0.001)
    assert memory / arithmetic == pytest.approx(295, abs=0.5)
    assert arithmetic / memory == pytest.approx(0.0034, abs=1e-4)


def test_08_eight_prompt_tokens_and_thirty_of_output(on: Asks) -> None:
    step = on(
        "llama-3-8b", "h100",
        """(({floor, cost}) => [floor, compute_seconds(cost, asked.device),
            Cost_total_flops(cost) / Cost_memory_bytes(cost)])
        (prefill(asked, 8))""",
    )  # fmt: skip
    assert step == pytest.approx([4.48e-3, 0.12e-3, 8], rel=0.1)
    decodes = on("llama-3-8b", "h100", "[...Array(29).keys()].map((i) => decode(asked, 1, 9 + i).floor)")
    assert (step[0] + sum(decodes)) * 1e3 == pytest.approx(134, abs=0.6)


def test_09_and_10_parameters_from_a_config(on: Asks) -> None:
    of = on("llama-3.1-405b", "h100", "asked.table.parameters")
    assert of["total"] == 405_853_388_800
    assert of["by_part"]["embedding"] / 1e9 == pytest.approx(2.10, abs=0.005)
    layer = [of["layer"]["attention"] / 1e9, of["layer"]["feed-forward"] / 1e9, sum(of["layer"].values()) / 1e9]
    assert layer == pytest.approx([0.570, 2.617, 3.188], abs=0.001)
    assert of["stacks"] == [126]
    assert of["bytes"] / 1e9 == pytest.approx(811.7, abs=0.05)
    of = on("qwen3-235b-a22b", "h200-sxm", "asked.table.parameters")
    assert (of["total"] / 1e9, of["active"] / 1e9) == pytest.approx((235.09, 22.19), abs=0.005)
    experts = "asked.table.ops.find((op) => op.touched).touched"
    touched = on("qwen3-235b-a22b", "h200-sxm", f"[1, 8, 32, 64].map((batch) => touchedBy({experts}, batch))")
    assert touched == pytest.approx([8, 51.6, 111.8, 125.9], abs=0.05)


def test_17_maximum_concurrency(on: Asks) -> None:
    """140,595 tokens of KV are 8,787 pages of 16, which hold 68.65 sequences of 2,048."""
    page, share = 2**21, 0.5
    memory = on(
        "llama-3-8b", "h100",
        f"""((rule) => {{
          const wanted = makeWorkload(asked.table, {{input: 1024, output: 1024}});
          const {{weights, activations}} = memoryOf(asked, wanted);
          const memory = (140595 / 16 * {page} + weights + activations + rule.fixed) / ({share} - rule.share);
          const engine = {{...asked.engine, memory: {{...rule, large: null, rows: 1}}}};
          const card = {{...asked.device, memory}};
          const first = memoryOf(makeCase(asked.table, card, engine, {{utilization: {share}}}), wanted);
          card.memory += (first.activations - activations) / ({share} - rule.share);
          return memoryOf(makeCase(asked.table, card, engine, {{utilization: {share}}}), wanted);
        }})(asked.engine.memory)""",
    )  # fmt: skip
    assert (memory["pages"], memory["kvTokens"]) == (8787, 8787 * 16)
    assert memory["concurrency"] == pytest.approx(68.65, abs=0.005)


def test_18_batching_32_users(on: Asks) -> None:
    gains = on(
        "llama-3-8b", "a100",
        "[128, 512, 2000].map((context) => 32 * decode(asked, 1, context).floor / decode(asked, 32, context).floor)",
    )  # fmt: skip
    assert gains == pytest.approx([30.9, 28.1, 20.9], abs=0.05)


def test_26_prefill_is_compute_bound_from_a_length_on(on: Asks) -> None:
    assert on("llama-3-8b", "a100", "computeBoundPrompt(asked)") == 168
    assert on("llama-3-8b", "h100", "computeBoundPrompt(asked)") == 318
    assert on("llama-3-8b", "a100", "[1, 32].map((users) => kvOutweighsWeights(asked, users))") == [114_517, 3_579]
    excess = """((rows) => rows.reduce((sum, row) => sum + ({attention: 1, linear: -1}[row.priced.op.kind] || 0)
      * (row.cost.flops.bf16 || 0) * row.priced.count, 0))(prefill(asked, LENGTH).rows)"""
    assert on("llama-3-8b", "a100", excess.replace("LENGTH", "53246")) < 0
    assert on("llama-3-8b", "a100", excess.replace("LENGTH", "53247")) == 0
    assert on("llama-3-8b", "a100", excess.replace("LENGTH", "53248")) > 0
