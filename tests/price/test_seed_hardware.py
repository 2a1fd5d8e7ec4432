"""What the teaching texts say of hardware and price, and what the ledger says: both columns, and why they differ.

Numbers in the names are the rows of the list of such statements that this project keeps. `text` computes with the
text's own assumptions (2 x parameters FLOPs a token, all weights read once a step, its round figures).
"""

from dataclasses import replace
from functools import lru_cache

import pytest

from ridgeline.core.checkpoint.source import read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.crossovers import (
    compute_bound_prompt,
    context_where_kv_outweighs_weights,
    critical_batch,
)
from ridgeline.price.device import Device
from ridgeline.price.devices import load_device
from ridgeline.price.op_time import compute_seconds
from ridgeline.price.price import Price

GIB, MIB = 2**30, 2**20


@lru_cache
def model(name: str) -> Model:
    """A model of the catalogue, on meta."""
    return build(read_config(name))


@lru_cache
def price(name: str) -> Price:
    """Its price."""
    return Price(model(name))


def a100() -> Device:
    """The texts' A100: 2 TB/s even (the 80 GB card has 2,039 GB/s)."""
    return replace(load_device("a100-sxm-80gb"), bandwidth=2e12)


def h100() -> Device:
    """An H100 SXM."""
    return load_device("h100-sxm")


def decode(name: str, device: Device, batch: int = 1, context: int = 1) -> tuple[float, float, float]:
    """Seconds of arithmetic (of the matrices), seconds of memory, and the floor of one decode step."""
    step = price(name).price_step(device, Work.decode([context] * batch))
    matrices = max(flops / device.peak(number) for number, flops in step.cost.flops.items())
    return matrices, step.cost.memory_bytes / device.bandwidth, step.floor


def test_01_ops_a_byte_of_an_h100() -> None:
    text = 989e12 / 3.35e12
    assert text == pytest.approx(295, abs=0.5)
    assert h100().ridge("bf16") == pytest.approx(295.2, abs=0.05)


def test_02_batch_that_reaches_the_ridge_of_an_a100() -> None:
    """The text forgets KV. With it the batch grows with the context, until none reaches the ridge.

    The ledger also charges the write of the new position's KV, so its batches are up to 2 % above figures that read
    KV alone (487 at 512, 2,202 at 700).
    """
    assert 312e12 / 2e12 == 156
    llama, card = price("llama-3-8b"), a100()
    assert critical_batch(llama, card, 1) == pytest.approx(156, abs=0.5)
    read_alone = {128: 188, 256: 237, 512: 487, 700: 2202}
    ledger = {128: 188.3, 256: 236.8, 512: 489.1, 700: 2248.2}
    for context, batch in ledger.items():
        found = critical_batch(llama, card, context)
        assert found == pytest.approx(batch, rel=1e-3)
        assert found == pytest.approx(read_alone[context], rel=0.025)
    assert critical_batch(llama, card, 752) is not None
    assert critical_batch(llama, card, 753) is None
    assert critical_batch(llama, card, 2000) is None
    # The 80 GB card is a little faster than the text's: its ridge is 153.
    assert critical_batch(llama, load_device("a100-sxm-80gb"), 512) == pytest.approx(460.5, rel=1e-3)
    assert critical_batch(llama, h100(), 128) == pytest.approx(438, rel=0.005)
    assert critical_batch(llama, h100(), 390) is not None
    assert critical_batch(llama, h100(), 394) is None


def test_02_intensity_tops_out_below_the_ridge() -> None:
    """However large the batch: at 2,000 tokens each sequence brings its own bytes, 61 FLOPs for each of them."""
    cost = price("llama-3-8b").step(Work.decode([2000] * 100_000))
    assert cost.flops["bf16"] / cost.memory_bytes == pytest.approx(61, abs=0.5)


def test_03_kv_of_a_token() -> None:
    text = 2 * 32 * 8 * 128 * 2
    (spec,) = set(model("llama-3-8b").kv_specs)
    ledger = 32 * spec.bytes_per_token
    assert ledger == text == 131_072
    assert 2000 * ledger / 1e6 == pytest.approx(262, abs=0.2)  # the text rounds 250 MiB to "256 MB"
    assert 2000 * ledger / MIB == 250
    assert 32 * replace(spec, heads=32).bytes_per_token == 524_288 == 4 * ledger
    assert 32 * replace(spec, heads=1).bytes_per_token == 16_384


def test_04_llama_3_70b_does_not_fit_80_gb() -> None:
    kv = sum(spec.bytes_per_token for spec in model("llama-3-70b").kv_specs)
    assert kv == 327_680 == 320 * 1024
    assert 8192 * kv / 1e9 == pytest.approx(2.68, abs=0.005)  # the text: 2.6 GB
    counted = parameter_breakdown(model("llama-3-70b"))
    assert counted.total / 1e9 == pytest.approx(70.554, abs=0.001)
    assert counted.nbytes / 1e9 == pytest.approx(141.1, abs=0.05)  # the text: 140 GB
    assert counted.nbytes > h100().memory


def test_06_one_user_on_an_a100() -> None:
    """The text reads the whole table, embedding included; the ledger gathers one row of it."""
    text_memory, text_compute = 16e9 / 2e12, 2 * 8e9 / 312e12
    assert (text_memory * 1e3, 1 / text_memory) == pytest.approx((8, 125))
    assert text_compute * 1e3 == pytest.approx(0.05, abs=0.002)
    assert text_memory / text_compute == pytest.approx(156)  # "~160 x"
    compute, memory, floor = decode("llama-3-8b", a100())
    cost = price("llama-3-8b").step(Work.decode([1]))
    assert cost.weight_bytes / 2 / 1e9 == pytest.approx(7.505, abs=0.001)
    assert cost.weight_bytes / 1e9 == pytest.approx(15.01, abs=0.005)
    assert memory * 1e3 == pytest.approx(7.50, abs=0.01)
    assert floor == memory
    assert 1 / floor == pytest.approx(133, abs=0.5)
    assert compute * 1e3 == pytest.approx(0.048, abs=0.0005)
    assert memory / compute == pytest.approx(156, abs=0.5)
    assert compute / memory == pytest.approx(0.0064, abs=0.0001)  # the text: 0.6 %


def test_07_70b_on_one_h100() -> None:
    """140 GFLOP take 0.14 ms at the peak; 0.28 ms is at 500 TFLOP/s, which is achieved, not peak."""
    text_memory, text_compute = 140e9 / 3.35e12, 140e9 / 500e12
    assert text_memory * 1e3 == pytest.approx(42, abs=0.3)
    assert text_compute * 1e3 == pytest.approx(0.28)
    assert text_memory / text_compute == pytest.approx(149, abs=0.5)  # the text: "over 150 x"
    assert text_compute / text_memory == pytest.approx(0.0067, abs=1e-4)  # the text: "less than half a percent"
    compute, memory, _ = decode("llama-3-70b", h100())
    assert price("llama-3-70b").step(Work.decode([1])).weight_bytes / 1e9 == pytest.approx(139.0, abs=0.05)
    assert memory * 1e3 == pytest.approx(41.5, abs=0.05)
    assert compute * 1e3 == pytest.approx(0.141, abs=0.001)
    assert memory / compute == pytest.approx(295, abs=0.5)
    assert compute / memory == pytest.approx(0.0034, abs=1e-4)


def test_08_eight_prompt_tokens_and_thirty_of_output() -> None:
    """A prefill of eight tokens reads all weights for them: it is memory-bound, and it emits the first token itself."""
    text_prefill_flops = 2 * 8e9 * 8
    assert text_prefill_flops == 128e9
    assert 5 + 30 * 8 == 245
    card = h100()
    step = price("llama-3-8b").price_step(card, Work.of([StepSegment(8, 8)]))
    memory = step.cost.memory_bytes / card.bandwidth
    assert step.cost.total_flops / step.cost.memory_bytes == pytest.approx(8, rel=0.1)
    assert step.floor == memory
    assert memory * 1e3 == pytest.approx(4.48, abs=0.005)
    assert compute_seconds(step.cost, card) * 1e3 == pytest.approx(0.12, abs=0.01)
    # The head runs for the last token alone: 114 GFLOP, not 120.
    assert step.cost.flops["bf16"] / 1e9 == pytest.approx(112.7, abs=0.5)
    decodes = [decode("llama-3-8b", card, context=8 + i)[2] for i in range(1, 30)]
    assert (step.floor + sum(decodes)) * 1e3 == pytest.approx(134, abs=0.6)


def test_09_llama_3_1_405b_from_its_config() -> None:
    """The text is off by ten within a layer, and its walk-through would be a model without grouped heads."""
    d, ffn, vocabulary, layers = 16384, 53248, 128256, 126
    counted = parameter_breakdown(model("llama-3.1-405b"))
    assert counted.parameters["embedding"] == vocabulary * d
    assert counted.parameters["embedding"] / 1e9 == pytest.approx(2.10, abs=0.005)
    assert counted.layer["attention"] / 1e9 == pytest.approx(0.570, abs=0.001)  # the text: 5.7
    assert counted.layer["feed-forward"] / 1e9 == pytest.approx(2.617, abs=0.001)  # the text: 26.17
    assert sum(counted.layer.values()) / 1e9 == pytest.approx(3.188, abs=0.001)  # the text: 31.87
    assert counted.total == 405_853_388_800
    assert layers * sum(counted.layer.values()) / 1e9 == pytest.approx(401.6, abs=0.1)
    assert counted.nbytes / 1e9 == pytest.approx(811.7, abs=0.05)  # the text: ~810
    assert counted.layer["feed-forward"] / sum(counted.layer.values()) == pytest.approx(0.82, abs=0.002)
    as_mha = 2 * vocabulary * d + layers * (4 * d * d + 3 * d * ffn + 2 * d) + d
    assert as_mha / 1e9 == pytest.approx(469, abs=0.5)


def test_10_experts_save_flops_not_memory() -> None:
    counted = parameter_breakdown(model("qwen3-235b-a22b"))
    assert (counted.total / 1e9, counted.active / 1e9) == pytest.approx((235.09, 22.19), abs=0.005)
    experts = next(op for _, op in model("qwen3-235b-a22b").ops() if isinstance(op, Experts))
    touched = {batch: experts.touched(batch) for batch in (1, 8, 32, 64)}
    assert touched == pytest.approx({1: 8, 8: 51.6, 32: 111.8, 64: 125.9}, abs=0.05)
    assert counted.nbytes > 3 * load_device("h200-sxm").memory


def test_18_batching_32_users() -> None:
    """32 x only without KV: the longer the context, the less is shared."""
    card = a100()
    for context, gain in {128: 30.9, 512: 28.1, 2000: 20.9}.items():
        alone, together = (decode("llama-3-8b", card, batch, context)[2] for batch in (1, 32))
        assert 32 * alone / together == pytest.approx(gain, abs=0.05)


def test_21_share_of_the_feed_forward() -> None:
    """ "About two thirds": of all parameters 70 %, of a layer 81 %; with two matrices instead of three 47 %."""
    counted = parameter_breakdown(model("llama-3-8b"))
    share = counted.parameters["feed-forward"] / counted.total
    assert share == pytest.approx(0.702, abs=0.0005)
    assert counted.layer["feed-forward"] / sum(counted.layer.values()) == pytest.approx(0.808, abs=0.0005)
    assert share * 2 / 3 == pytest.approx(0.468, abs=0.0005)


def test_22_embedding_of_llama_3_8b() -> None:
    assert parameter_breakdown(model("llama-3-8b")).parameters["embedding"] == 525_336_576  # the text: ~525 M


def test_25_weight_tying_is_read_not_assumed() -> None:
    assert model("gpt2").tied
    assert not model("llama-2-7b").tied  # the text says it is


def test_26_prefill_is_compute_bound_from_a_length_on() -> None:
    """Not always: from about the ridge's number of tokens. The ledger is a little above it, since the head is read in
    full and runs for one token: 168 on the text's A100, 318 on an H100."""
    assert compute_bound_prompt(price("llama-3-8b"), a100()) == 168
    assert compute_bound_prompt(price("llama-3-8b"), h100()) == 318
    assert pytest.approx(156, rel=0.08) == 168
    assert pytest.approx(295, rel=0.08) == 318


def test_26_attention_overtakes_the_matmuls() -> None:
    """At S = parameters of a layer / d: causal pairs are S^2 / 2 of 4 d FLOPs, the matmuls S x 2 parameters."""
    linears = [
        op for path, op in model("llama-3-8b").ops() if ".layers.0." in path and isinstance(op, Linear | Projections)
    ]
    layer = sum(op.parameter_count() for op in linears)
    assert layer / 4096 == 53_248

    def excess(length: int) -> float:
        work = Work.of([StepSegment(length, length)])
        products = {"attend": 0.0, "linear": 0.0}
        for priced in price("llama-3-8b").ops:
            for kernel in priced.launches(work):
                name = "linear" if kernel.name.startswith("linear") else kernel.method
                if name in products:
                    products[name] += kernel.cost.total_flops * priced.count
        return products["attend"] - products["linear"]

    assert excess(53_246) < 0 == excess(53_247) < excess(53_248)


def test_kv_outweighs_weights_from_a_context_on() -> None:
    """At batch 1 the KV of 114,517 tokens weighs as much as all weights read; 32 users get there at 3,579 each."""
    assert context_where_kv_outweighs_weights(price("llama-3-8b")) == 114_517
    assert context_where_kv_outweighs_weights(price("llama-3-8b"), 32) == 3_579
