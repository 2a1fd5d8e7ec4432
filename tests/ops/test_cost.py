"""Costs by hand, and the promises that a price rests on: rows as declared, one op a call, sums that are sums."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models.configs import CONFIGS
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import PLAIN
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.linear import Linear, LMHead
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import LayerNorm, RMSNorm
from ridgeline.core.ops.number_formats import kv_format_named
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import CAUSAL, ENCODER_FULL, LOGITS, StepSegment, Work, sliding_window
from ridgeline.price.price import Price, traced_calls
from support.checkpoints import random_ours

FP32, BF16 = torch.float32, torch.bfloat16
# 3 positions after 4, a whole sequence of 5, one position after 8; 2 of the 9 rows need logits.
WORK = Work.of([StepSegment(3, 7), StepSegment(5, 5), StepSegment(1, 9)], (CAUSAL, sliding_window(4)), logit_rows=2)


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_linear_cost() -> None:
    """9 rows of 3 -> 5 with a bias."""
    cost = Linear(MatrixSpec(3, 5, FP32, bias=True)).cost(WORK)
    assert cost == Cost({"fp32": 2 * 9 * 3 * 5}, weight_bytes=(15 + 5) * 4, activation_bytes=9 * (3 + 5) * 4)
    assert Linear(MatrixSpec(3, 5, BF16, transposed=True)).cost(WORK).weight_bytes == 15 * 2


def test_head_cost() -> None:
    """Only the rows that need logits, but the whole matrix."""
    cost = LMHead(MatrixSpec(3, 97, BF16)).cost(WORK, LOGITS)
    assert cost.flops == {"bf16": 2 * 2 * 3 * 97}
    assert cost.weight_bytes == 3 * 97 * 2


def test_embedding_cost() -> None:
    """The rows gathered, not the table."""
    assert Embedding(1000, 6, BF16).cost(WORK) == Cost(weight_bytes=9 * 6 * 2, activation_bytes=9 * 6 * 2)


def test_norm_cost() -> None:
    """Weights once, activations in and out; a norm of heads has a vector for each."""
    assert RMSNorm(6, 1e-5, BF16).cost(WORK).activation_bytes == 2 * 9 * 6 * 2
    assert RMSNorm(6, 1e-5, BF16, per_token=4).cost(WORK).activation_bytes == 2 * 9 * 4 * 6 * 2
    assert RMSNorm(6, 1e-5, BF16).cost(WORK, LOGITS).activation_bytes == 2 * 2 * 6 * 2
    assert RMSNorm(6, 1e-5, BF16).cost(WORK).weight_bytes == 6 * 2
    assert LayerNorm(6, 1e-5, BF16).cost(WORK).weight_bytes == 2 * 6 * 2


def test_attention_cost() -> None:
    """Pairs by the mask: (5+6+7) + 15 + 9 = 42, in a window of 4: 3x4 + (1+2+3+4+4) + 4 = 30; K and V by KV heads."""
    full = Attention(0, 8, KVSpec(2, 10, 10, CAUSAL, BF16)).cost(WORK)
    assert full.flops == {"bf16": 4 * 8 * 10 * 42}
    assert full.kv_read_bytes == (7 + 5 + 9) * 2 * 2 * 10 * 2
    assert full.kv_write_bytes == 9 * 2 * 2 * 10 * 2
    assert full.weight_bytes == 0
    in_window = Attention(0, 8, KVSpec(2, 10, 10, sliding_window(4), BF16)).cost(WORK)
    assert in_window.flops == {"bf16": 4 * 8 * 10 * 30}
    assert in_window.kv_read_bytes == (6 + 5 + 4) * 2 * 2 * 10 * 2


def test_narrower_keys_and_values_narrow_what_is_kept() -> None:
    """Read and written they are as stored, a scale for each head's K and V; as they come in they are the model's. An
    encoder's, which nothing keeps, are those throughout."""
    int8 = kv_format_named("int8")
    wide, narrow = (Attention(0, 8, KVSpec(2, 10, 10, CAUSAL, BF16, kv)).cost(WORK) for kv in (None, int8))
    assert narrow.kv_write_bytes == 9 * 2 * 2 * (10 + 2)
    assert narrow.kv_read_bytes == (7 + 5 + 9) * 2 * 2 * (10 + 2)
    assert narrow.activation_bytes == wide.activation_bytes == 9 * (2 * 8 + 2 * 2) * 10 * 2
    encoder = Work.of([StepSegment(1, 1, 6, runs_encoder=True)], (ENCODER_FULL,))
    wide, narrow = (Attention(-1, 8, KVSpec(8, 10, 10, ENCODER_FULL, BF16, kv)).cost(encoder) for kv in (None, int8))
    assert narrow == wide == Cost({"bf16": 4 * 8 * 10 * 36}, activation_bytes=6 * 4 * 8 * 10 * 2)


@pytest.mark.parametrize(("name", "nbytes"), [("fp8", 576), ("int8", 576 + 2), ("nvfp4", 576 / 2 + 576 / 16)])
def test_a_narrower_latent_is_one_vector(name: str, nbytes: float) -> None:
    """Of DeepSeek-V3: one scale where a head's K and V would have two."""
    model = build(read_config("deepseek-v3"), recipe=replace(PLAIN, kv=kv_format_named(name)))
    assert {spec.slot_bytes for spec in model.kv_specs} == {nbytes}
    op = next(op for _, op in model.ops() if isinstance(op, LatentAttention))
    queries, latents = 128 * (192 + 128) * 2, 576 * 2
    assert op.cost(Work.decode([9], model.attention_patterns)).activation_bytes == queries + latents


def test_soft_caps_cost() -> None:
    """A division, a tanh and a product for each of 8 heads' 42 scores and for each of 2 x 97 logits, in fp32."""
    spec = KVSpec(2, 10, 10, CAUSAL, BF16)
    plain, capped = Attention(0, 8, spec).cost(WORK), Attention(0, 8, spec, softcap=50.0).cost(WORK)
    assert capped == plain + Cost({"fp32": 3 * 8 * 42})
    in_fp32 = KVSpec(2, 10, 10, CAUSAL, FP32)
    assert Attention(0, 8, in_fp32, softcap=50.0).cost(WORK).flops == {"fp32": (4 * 10 + 3) * 8 * 42}
    plain, capped = (LMHead(MatrixSpec(3, 97, BF16), softcap=cap).cost(WORK, LOGITS) for cap in (None, 30.0))
    assert capped == plain + Cost({"fp32": 3 * 2 * 97})


def test_ops_with_soft_caps_are_priced_by_themselves() -> None:
    """Else a model with some would have the price of the first of its kind."""
    spec = KVSpec(2, 10, 10, CAUSAL, BF16)
    assert Attention(0, 8, spec).signature() != Attention(0, 8, spec, softcap=50.0).signature()
    assert LMHead(MatrixSpec(3, 97, BF16)).signature() != LMHead(MatrixSpec(3, 97, BF16), softcap=30.0).signature()


@pytest.mark.parametrize(("kv_heads", "expected"), [(8, 131_072), (32, 524_288), (1, 16_384)])
def test_kv_bytes_of_an_8b(kv_heads: int, expected: int) -> None:
    """Seed number 3: a token of Llama-3-8B, of an MHA and of an MQA model of its size."""
    values = read_config("llama-3-8b").values | {"num_key_value_heads": kv_heads}
    model = build(Fields(values, "config.json"))
    assert sum(spec.bytes_per_token for spec in model.kv_specs) == expected


def test_a_decode_step_of_an_8b() -> None:
    """Seed number 6: 7.505 B parameters read = 15.01 GB, 15.0 GFLOP; the embedding is gathered, not read."""
    cost = Price(build(read_config("llama-3-8b"))).step(Work.of([StepSegment(1, 1)]))
    assert cost.weight_bytes == pytest.approx(15.01e9, rel=1e-3)
    assert cost.total_flops == pytest.approx(15.0e9, rel=2e-3)
    assert cost.weight_bytes / 2 == pytest.approx(7.505e9, rel=1e-3)


# -- promises ----------------------------------------------------------------------------------------------------------


def test_an_op_without_a_cost_is_an_error() -> None:
    """It cannot even be made, so nothing is ever priced as zero by omission."""

    class Costless(Op):
        kind = "linear"

        def signature(self) -> Any:
            return ()

    class Nameless(Op):
        kind = "linear"

        def cost_of(self, rows: int) -> Cost:
            return Cost()

    with pytest.raises(TypeError, match=r"abstract method '?cost_of"):
        Costless()
    with pytest.raises(TypeError, match=r"abstract method '?signature"):
        Nameless()


def test_every_parameter_belongs_to_an_op() -> None:
    """Weights outside of ops would be read for free."""
    for values in CONFIGS.values():
        model = build(Fields(values, "config.json"))
        owned = {id(parameter) for _, op in model.ops() for parameter in op.parameters()}
        assert {id(parameter) for parameter in model.parameters()} == owned
        assert sum(op.parameter_count() for _, op in model.ops()) >= sum(p.numel() for p in model.parameters())


def forward(model: Model, device: str, logit_rows: list[int]) -> tuple[Tensor, Work]:
    """Run two sequences of 9 and 4 positions; the logits, and the work that it was."""
    lengths = [9, 4]
    ids_T = torch.arange(13, device=device) % model.vocabulary
    positions_T = torch.cat([torch.arange(n, device=device) for n in lengths])
    segments = [StepSegment(n, n) for n in lengths]
    with torch.no_grad():
        logits = model(ids_T, positions_T, Uncached(segments), torch.tensor(logit_rows, device=device))
    return logits, Work.of(segments, model.attention_patterns, len(logit_rows))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("family", CONFIGS)
def test_declared_rows_are_rows_seen(family: str, device: str) -> None:
    """Every op runs once a forward, over as many rows as it is priced for; on meta, without weights, as with them."""
    values = CONFIGS[family]
    model = random_ours(values) if device == "cpu" else build(Fields(values, "config.json"))
    seen: dict[str, list[int]] = {}
    for path, op in model.ops():

        def note(_: nn.Module, args: tuple[Any, ...], path: str = path) -> None:
            seen.setdefault(path, []).append(args[0].shape[0])

        op.register_forward_pre_hook(note)
    logits, work = forward(model, device, [8, 12, 0, 3, 3])
    assert logits.shape == (5, model.vocabulary)
    assert logits.dtype == torch.float32
    assert logits.device.type == device
    ran, declared = {path: list(rows) for path, rows in seen.items()}, dict[str, list[int]]()
    for path, _, space in traced_calls(model):
        declared.setdefault(path, []).append(work.rows[space])
    assert ran == declared
    assert {rows for calls in declared.values() for rows in calls} == {13, 5}


SEGMENTS = st.integers(1, 40).flatmap(lambda kv: st.integers(1, kv).map(lambda q: StepSegment(q, kv)))
MODELS = {family: build(Fields(values, "config.json")) for family, values in CONFIGS.items()}
PRICES = {family: Price(model) for family, model in MODELS.items()}


@settings(max_examples=80)
@given(st.sampled_from(sorted(MODELS)), st.lists(SEGMENTS, min_size=1, max_size=5), st.integers(0, 6))
def test_a_price_is_the_sum_of_its_ops(family: str, segments: list[StepSegment], rows: int) -> None:
    """Ops that are priced as one cost the same, and the groups add up to all ops of the model, field by field."""
    model = MODELS[family]
    work = Work.of(segments, model.attention_patterns, rows)
    first: dict[Any, Cost] = {}
    total = Cost()
    for _, op, space in traced_calls(model):
        cost = op.cost(work, space)
        assert first.setdefault((type(op), op.signature(), space), cost) == cost
        total += cost
    price = PRICES[family].step(work)
    assert price.flops == pytest.approx(total.flops)
    for name in ("weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes", "communication_bytes"):
        assert getattr(price, name) == pytest.approx(getattr(total, name))
    assert sum(priced.count for priced in PRICES[family].ops) == len(model.ops())


@settings(max_examples=50)  # each of which prices every family
@given(st.lists(SEGMENTS, min_size=1, max_size=3), st.lists(SEGMENTS, min_size=1, max_size=3))
def test_more_work_never_costs_less(some: list[StepSegment], more: list[StepSegment]) -> None:
    """A step with further sequences in it reads and computes at least as much, and less than two steps would."""
    for family, model in MODELS.items():
        one, other = (Work.of(segments, model.attention_patterns) for segments in (some, more))
        apart = [PRICES[family].step(work) for work in (one, other)]
        together = PRICES[family].step(one + other)
        flops = sum(cost.total_flops for cost in apart)
        if any(isinstance(op, LatentAttention) for _, op in model.ops()):
            # Sequences of a class are attended to in one form, which need not be the cheaper one for each of them.
            assert flops <= together.total_flops * (1 + 1e-9) <= 2 * flops
        else:
            assert together.total_flops == pytest.approx(flops)
        assert together.kv_read_bytes == sum(cost.kv_read_bytes for cost in apart)
        assert max(cost.weight_bytes for cost in apart) <= together.weight_bytes
        assert together.weight_bytes < sum(cost.weight_bytes for cost in apart)


def test_costs_add_and_multiply() -> None:
    """Format by format, place by place."""
    one = Cost({"fp32": 1.0, "bf16": 2.0}, 3.0, 4.0, 5.0, 6.0, {"all_reduce": 7.0})
    more = Cost({"fp32": 1.0}, 1.0, 1.0, 1.0, 1.0, {"all_reduce": 1.0, "all_gather": 2.0})
    both = {"all_reduce": 8.0, "all_gather": 2.0}
    assert one + more == Cost({"fp32": 2.0, "bf16": 2.0}, 4.0, 5.0, 6.0, 7.0, both)
    assert one * 2 == one + one
    assert one.total_flops == 3
    assert (one.memory_bytes, one.total_bytes) == (12, 18)
    assert one.intensity == 3 / 18
    assert Cost().intensity == float("inf")
