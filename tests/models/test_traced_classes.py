"""The price of a class of transformers is that of our own definition of the same model.

FLOPs of products, weights and KV bytes are equal. Elementwise code is traced: its bytes are nearly those of our ops.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from models.configs import CONFIGS
from ridgeline.core.models import Fields, build
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.ops.op import NOT_MODELLED
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price

STEPS = {
    "prompt": [StepSegment(100, 100)],
    "chunk": [StepSegment(20, 60)],
    "decode": [StepSegment(1, 50), StepSegment(1, 7), StepSegment(1, 99)],
}
# As large as models are: in small ones, the last norm, which a class computes for rows without logits too, is much.
WIDE = {
    "num_hidden_layers": 12,
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 32000,
}  # fmt: skip
FAMILIES = {
    "llama": WIDE, "qwen3": WIDE, "gemma3_text": WIDE, "olmo2": WIDE,
    "mixtral": WIDE, "qwen3_moe": {**WIDE, "moe_intermediate_size": 768},
}  # fmt: skip


def prices(family: str, changed: Mapping[str, Any]) -> tuple[Price, Price]:
    """Return the price of our definition, and that of the class."""
    values = {**CONFIGS[family], "torch_dtype": "bfloat16", **changed}
    if len(values.get("layer_types", ())) < values["num_hidden_layers"]:
        values.pop("layer_types", None)
    own = Price(build(Fields(dict(values), "config.json")))
    fields = Fields(dict(values), "config.json")
    return own, Price(build(fields, family=class_family(fields)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_class_costs_what_our_definition_does(family: str) -> None:
    own, traced = prices(family, FAMILIES[family])
    assert traced.weight_bytes == own.weight_bytes
    for name, segments in STEPS.items():
        ours, theirs = (price.step(Work.of(segments, price.reaches)) for price in (own, traced))
        assert theirs.flops["bf16"] == ours.flops["bf16"], name
        assert theirs.weight_bytes == pytest.approx(ours.weight_bytes, rel=1e-12), name
        assert (theirs.kv_read_bytes, theirs.kv_write_bytes) == (ours.kv_read_bytes, ours.kv_write_bytes), name
        assert theirs.activation_bytes == pytest.approx(ours.activation_bytes, rel=0.05), name


def test_code_without_an_op_is_listed_with_its_class_and_layer() -> None:
    _, traced = prices("qwen3", {})
    rows = {(row.path, row.op.extra_repr()) for row in traced.ops if row.op.kind == NOT_MODELLED}
    assert ("causal.model.backbone.layers.0.unmodelled_elementwise", "Qwen3DecoderLayer elementwise: add") in rows
    assert len(traced.ops) < 20  # layers that are alike are the same op


def test_reports_name_ops_as_the_checkpoint_does() -> None:
    values = {**CONFIGS["qwen3"], "torch_dtype": "bfloat16"}
    fields = Fields(dict(values), "config.json")
    model = build(fields, family=class_family(fields))
    shown = {model.shown_path(path) for path, _ in model.ops()}
    assert {"model.embed_tokens", "model.layers.0.self_attn.q_proj+k_proj+v_proj", "model.norm", "lm_head"} <= shown
    own = build(Fields(dict(values), "config.json"))
    assert all(own.shown_path(path) == path for path, _ in own.ops())
