"""Latent attention in both of its forms, against transformers and against each other; and the rule between them."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from models.comparing import TOLERANCE, off
from models.parity_cases import CASES
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import Fields, build
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention, LatentSizes
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.rotary import Rope
from ridgeline.core.ops.work import CAUSAL, AttentionSum, StepSegment, Work
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.price.price import Price
from support.audit import audited
from support.checkpoints import random_model
from support.engines import RecordingRunner, complete, token_engine, uncached_logits

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = ([5, 3, 88, 41, 9, 12, 70, 33, 2, 61, 17], [4], list(range(20, 43)))
DEEPSEEK = [case for case in CASES if case.id in ("deepseek-v2-plain", "deepseek-v3-plain", "deepseek-v3-mscale")]


def op_of(sizes: LatentSizes, heads: int = 2) -> LatentAttention:
    """One op without numbers."""
    spec = KVSpec(1, sizes.kept, 0, CAUSAL, torch.float32)
    matrix = MatrixSpec(sizes.latent, heads * (sizes.nope + sizes.value), torch.float32)
    with torch.device("meta"):
        return LatentAttention(0, heads, sizes, matrix, spec, rope=Rope(sizes.rotary, 1e4), scale=1.0)


@pytest.mark.parametrize("expanded", [True, False], ids=["expanded", "absorbed"])
@pytest.mark.parametrize("case", DEEPSEEK, ids=lambda case: case.id)
def test_either_form_is_transformers(
    case: Any, expanded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_only: None
) -> None:
    """Whole sequences, chunks over pages and decode steps, all in one form: logits and greedy tokens."""
    monkeypatch.setattr(LatentAttention, "expands", lambda *_: expanded)
    theirs = random_model(case.model_type, case.config, 3)
    theirs.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path))
    engine = token_engine(ours, runner=RecordingRunner, page_size=4, limits=Limits(tokens=16, chunk=5))
    outputs = complete(engine, PROMPTS, GREEDY)
    assert isinstance(engine.executor, RecordingRunner)
    for request, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True), start=1):
        ids = (list(prompt) + output)[:-1]
        with torch.no_grad():
            reference_TV = theirs(torch.tensor([ids])).logits[0]
        paged_TV = torch.stack([engine.executor.logits[request, position] for position in range(len(ids))])
        (whole_TV,) = uncached_logits(ours, [ids])
        for logits_TV in (paged_TV, whole_TV):
            assert off(logits_TV, reference_TV) <= TOLERANCE
        assert reference_TV[len(prompt) - 1 :].argmax(dim=-1).tolist() == output


V3 = LatentSizes(512, 128, 64, 128)


def test_the_rule_takes_the_form_of_fewer_flops() -> None:
    """By hand, for a head of DeepSeek-V3 and sequences of many lengths: never the dearer one."""
    op, chosen = op_of(V3), set()
    for queries in (1, 2, 8, 64, 170, 172, 512, 2048):
        for before in (0, 1, 16, 500, 8000, 100_000):
            keys = before + queries
            pairs = sum(range(before + 1, keys + 1))
            expanded = keys * 512 * (128 + 128) + pairs * (192 + 128)
            absorbed = queries * 512 * (128 + 128) + pairs * (576 + 512)
            assert op.expands(AttentionSum(1, queries, pairs, keys, queries)) == (expanded <= absorbed)
            chosen.add((queries, before, expanded <= absorbed))
    assert (1, 8000, False) in chosen  # a decode step reads latents
    assert (2048, 0, True) in chosen  # a prompt is expanded
    assert (64, 100_000, False) in chosen  # a short chunk behind a long context is not


def test_an_engine_and_a_price_take_the_same_form(torch_only: None) -> None:
    """What an engine's batch sums up is what its plan is priced by."""
    model, asked = build(Fields(CONFIG, "test")), []
    with torch.device("meta"):
        model.create_parameters()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(torch.zeros(parameter.shape), requires_grad=False))
    op = next(op for _, op in model.ops() if isinstance(op, LatentAttention))
    engine = token_engine(model, page_size=4, limits=Limits(tokens=24, chunk=9))
    original = LatentAttention.expanded

    def noted(self: LatentAttention, attention: Any) -> tuple[bool, bool, bool]:
        forms = original(self, attention)
        if self is op:
            asked.append((attention, forms))
        return forms

    plans = []
    execute = engine.executor.execute
    engine.executor.execute = lambda plan, *more: (plans.append(plan), execute(plan, *more))[1]  # type: ignore[method-assign]
    LatentAttention.expanded = noted  # type: ignore[method-assign]
    try:
        complete(engine, [list(range(30)), list(range(11)), [7]], GREEDY)
    finally:
        LatentAttention.expanded = original  # type: ignore[method-assign]
    works = [plan.work(model.attention_patterns) for plan in plans]
    assert [attention for attention, _ in asked] == [work.attention[CAUSAL] for work in works]
    forms = {form for _, forms in asked for form in forms}
    assert forms == {True, False}
    assert len(works) > 8


CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 41, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "torch_dtype": "float32", "kv_lora_rank": 13, "q_lora_rank": 9, "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 6, "v_head_dim": 5, "first_k_dense_replace": 2, "n_routed_experts": 6, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 18, "n_group": 3, "topk_group": 2,
}  # fmt: skip


def test_the_price_of_a_decode_step_by_hand() -> None:
    """Two sequences of 9 and 3 positions, one layer's attention absorbed: 576-like numbers a token, read once for all
    heads, and the matrix once."""
    model = build(Fields(CONFIG, "test"))
    op = next(op for _, op in model.ops() if isinstance(op, LatentAttention))
    cost = op.cost(Work.decode([9, 3], model.attention_patterns))
    heads, latent, turned, plain, value = 4, 13, 6, 7, 5
    products = 2 * 2 * latent * heads * (plain + value)
    scores = 2 * heads * (latent + turned + latent) * (9 + 3)
    turning = 3 * (2 * heads + 2) * turned
    assert cost.total_flops == products + scores + turning
    assert cost.kv_read_bytes == (9 + 3) * (latent + turned) * 4
    assert cost.kv_write_bytes == 2 * (latent + turned) * 4
    assert cost.weight_bytes == latent * heads * (plain + value) * 4
    assert Price(model).step(Work.decode([9, 3], model.attention_patterns)).kv_read_bytes == 2 * cost.kv_read_bytes


def test_the_price_of_a_prompt_by_hand() -> None:
    """Seven positions, expanded: the matrix over each key, and heads of their own width."""
    model = build(Fields(CONFIG, "test"))
    op = next(op for _, op in model.ops() if isinstance(op, LatentAttention))
    cost = op.cost(Work.of([StepSegment(7, 7)], model.attention_patterns))
    products, scores = 2 * 7 * 13 * 4 * (7 + 5), 2 * 4 * (7 + 6 + 5) * 28
    assert cost.total_flops == products + scores + 3 * (7 * 4 + 7) * 6
    kernels = op.launches(Work.of([StepSegment(7, 7)], model.attention_patterns))
    assert sum(kernel.cost.total_flops for kernel in kernels) == cost.total_flops
    assert sum(kernel.cost.total_bytes for kernel in kernels) >= cost.total_bytes


@pytest.mark.parametrize("expanded", [True, False], ids=["expanded", "absorbed"])
def test_products_with_the_matrix_are_those_that_torch_makes(
    expanded: bool, monkeypatch: pytest.MonkeyPatch, torch_only: None
) -> None:
    """Beside those of attention itself, which aten counts without its mask, or not at all."""
    monkeypatch.setattr(LatentAttention, "expands", lambda *_: expanded)
    model = build(Fields(CONFIG, "test"))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(torch.randn(parameter.shape), requires_grad=False))
    path = next(path for path, op in model.ops() if isinstance(op, LatentAttention))
    with audited(model) as audit:
        uncached_logits(model, [list(range(12))])
    products, entries = 2 * 12 * 13 * 4 * (7 + 5), 7 + 6 + 5 if expanded else 13 + 6 + 13
    unmasked = 2 * 4 * entries * 12 * 12  # which torch counts where it takes attention apart
    assert audit.flops[path] in (products, products + unmasked)


def test_a_release_says_what_its_further_layers_are() -> None:
    """Layers that predict further tokens are passed over by name, and no others."""

    patterns = build(Fields(CONFIG | {"num_nextn_predict_layers": 1}, "test")).ignored_tensors
    assert any(re.fullmatch(pattern, "model.layers.2.eh_proj.weight") for pattern in patterns)
    assert not any(re.fullmatch(pattern, "model.layers.1.mlp.up_proj.weight") for pattern in patterns)
    assert not any(re.fullmatch(pattern, "model.layers.20.mlp.up_proj.weight") for pattern in patterns)
    assert build(Fields(CONFIG, "test")).ignored_tensors == ()
