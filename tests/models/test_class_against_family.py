"""A class of transformers and our family that builds the same model: the same logits, and the same price.

Each checks the other: the class is the release's own code, and the family's costs are counted by other code.
"""

import re
from pathlib import Path

import pytest
import torch

from models.comparing import off
from models.parity_cases import CASES
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import PLAIN
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.small_layers import keep_layers
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price
from support.checkpoints import random_model
from support.engines import uncached_logits
from support.registered_classes import load_class

LAYERS = 8
"""The layers of each model: as many as the costs outside the layers need to be a small part."""
TOLERANCE = 1e-5  # of the largest logit
SAME_LOGITS = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "gpt_oss", "gemma2",
    "gemma3_text", "granite", "olmo2", "olmo3", "smollm3", "glm", "glm4", "cohere", "cohere2", "starcoder2", "exaone4",
    "phi", "gpt2", "deepseek_v2", "deepseek_v3",
)  # fmt: skip
SAME_PRICE = (
    "qwen3-0.6b", "qwen2.5-7b", "llama-3.1-8b", "mistral-7b-v0.3", "gemma-3-1b", "mixtral-8x7b", "qwen3-30b-a3b",
    "qwen1.5-moe-a2.7b", "olmo-2-7b", "olmo-3-7b", "smollm3-3b", "gpt-oss-20b", "minimax-m2",
)  # fmt: skip
"""Releases of which also the bytes of activations agree."""
OTHER_ACTIVATIONS = {
    "glm-4-9b-0414": "its gate and up matrix is one, and the class activates its result in a pass of its own",
    "phi-3-mini-4k": "the same",
    "phi-2": "the class activates in a pass of its own, as its MLP has no gate",
    "starcoder2-3b": "the same",
    "gpt2": "the same",
    "granite-3.3-2b": "the class divides all logits in a pass of its own",
    "command-r-35b": "the class multiplies all logits in a pass of its own, and adds all three parts of a block in one",
    "ministral-3-8b": "the class scales queries in the pass of their rotary embedding",
}
"""Releases of which the bytes of activations differ, with the reason."""
DIVIDED = ("qwen3-0.6b", "llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "smollm3-3b", "gpt-oss-20b", "qwen3-30b-a3b")
"""Releases whose price on several devices is compared."""
WHOLE_ATTENTION = {
    "olmo-2-7b": r"Olmo2Attention \(\d\d%\)",  # it norms the queries of all heads together
}
"""Releases whose class has attention that ranks cannot divide, with what names it."""
STEPS = {
    "a prompt": [StepSegment(512, 512)],
    "a decode step": [StepSegment(1, 3000)],
    "a batch": [*(StepSegment(1, 1000 + place) for place in range(15)), StepSegment(256, 700)],
}


@pytest.mark.parametrize("model_type", SAME_LOGITS)
def test_the_same_logits(model_type: str, tmp_path: Path) -> None:
    """Compare both models of one checkpoint, of two sequences at once."""
    case = next(case for case in CASES if case.model_type == model_type and not case.layout)
    random_model(case.model_type, case.config, case.seed).save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(case.config["vocab_size"], (length,), generator=generator).tolist() for length in (29, 11)]
    ours, by_class = (uncached_logits(model, texts) for model in (load_model(str(tmp_path)), load_class(tmp_path)))
    for own, other in zip(ours, by_class, strict=True):
        assert off(other, own) <= TOLERANCE


def both(name: str, shard: Shard = WHOLE, experts: Shard | None = None) -> tuple[Model, Model]:
    """Return the family's model and the class's model of a release, in bf16 and with few layers.

    Args:
        name: The release.
        shard: The tensor-parallel rank.
        experts: The expert-parallel rank.
    """
    values = keep_layers(dict(read_config(name).values), LAYERS)
    values.pop("quantization_config", None)
    ours, by_class = (Fields(values, "config.json") for _ in range(2))
    return (
        build(ours, torch.bfloat16, recipe=PLAIN, shard=shard, experts=experts),
        build(by_class, torch.bfloat16, recipe=PLAIN, shard=shard, experts=experts, family=class_family(by_class)),
    )


def costs(model: Model) -> dict[str, Cost]:
    """Return the cost of each of STEPS."""
    price = Price(model)
    return {name: price.step(Work.of(segments, model.attention_patterns)) for name, segments in STEPS.items()}


@pytest.mark.parametrize("name", [*SAME_PRICE, *OTHER_ACTIVATIONS])
def test_the_same_price(name: str) -> None:
    """Compare weights, the KV cache, and the FLOPs and bytes of three steps."""
    ours, by_class = both(name)
    # MiniMax M2's class has the router's biases in bf16; releases store them in fp32.
    assert Price(by_class).weight_bytes == pytest.approx(Price(ours).weight_bytes, rel=1e-6)
    assert [spec.bytes_per_token for spec in by_class.kv_specs] == [spec.bytes_per_token for spec in ours.kv_specs]
    assert by_class.attention_patterns == ours.attention_patterns
    found, near = costs(by_class), []
    for step, cost in costs(ours).items():
        other = found[step]
        # The class's elementwise code is counted, which families do not count; sinks are read with attention here.
        assert other.total_flops == pytest.approx(cost.total_flops, rel=1e-3), step
        assert other.weight_bytes == pytest.approx(cost.weight_bytes, rel=1e-5), step
        assert (other.kv_read_bytes, other.kv_write_bytes) == (cost.kv_read_bytes, cost.kv_write_bytes), step
        near.append(other.activation_bytes == pytest.approx(cost.activation_bytes, rel=0.05))
    assert all(near) == (name not in OTHER_ACTIVATIONS), dict(zip(STEPS, near, strict=True))


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", DIVIDED)
def test_the_same_price_of_a_rank(name: str, devices: int) -> None:
    """Compare what one of several devices holds, computes, and sends to the others."""
    check_parts(*both(name, Shard(devices - 1, devices)))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_the_same_price_of_divided_experts(name: str) -> None:
    """Compare devices with attention of their own, each of which has a part of every expert."""
    check_parts(*both(name, experts=Shard(1, 4)))


def check_parts(ours: Model, by_class: Model) -> None:
    """Check that two models of one rank have the same weights, KV bytes, FLOPs and communication."""
    assert Price(by_class).weight_bytes == pytest.approx(Price(ours).weight_bytes, rel=1e-6)
    assert [spec.bytes_per_token for spec in by_class.kv_specs] == [spec.bytes_per_token for spec in ours.kv_specs]
    found = costs(by_class)
    for step, cost in costs(ours).items():
        other = found[step]
        assert other.total_flops == pytest.approx(cost.total_flops, rel=2e-3), step
        assert other.weight_bytes == pytest.approx(cost.weight_bytes, rel=1e-5), step
        assert other.communication == pytest.approx(cost.communication), step
        assert (other.kv_read_bytes, other.kv_write_bytes) == (cost.kv_read_bytes, cost.kv_write_bytes), step


@pytest.mark.parametrize("name", WHOLE_ATTENTION)
def test_attention_that_is_whole_on_each_rank(name: str) -> None:
    """Check that the model names what ranks do not divide, and that the rest is divided."""
    ours, by_class = both(name, Shard(1, 2))
    whole = both(name)[1]
    assert re.fullmatch(WHOLE_ATTENTION[name], by_class.undivided)
    assert Price(ours).weight_bytes < Price(by_class).weight_bytes < Price(whole).weight_bytes
    assert [spec.bytes_per_token for spec in by_class.kv_specs] == [spec.bytes_per_token for spec in whole.kv_specs]


@pytest.mark.parametrize("shard", [WHOLE, Shard(3, 4)])
@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_latent_attention(name: str, shard: Shard) -> None:
    """Compare DeepSeek's models: both keep a latent of each token, from which keys and values are computed.

    Each of several devices keeps the whole latents, and a part of the heads.
    """
    ours, by_class = both(name, shard)
    assert [spec.bytes_per_token for spec in ours.kv_specs] == [2 * (512 + 64)] * LAYERS
    assert by_class.kv_specs == ours.kv_specs
    # The class has its routers' matrices in fp32, and each rank has them whole; releases store them in bf16.
    assert Price(by_class).weight_bytes == pytest.approx(Price(ours).weight_bytes, rel=1e-3 * shard.size)
    found = costs(by_class)
    for step, cost in costs(ours).items():
        other = found[step]
        assert other.total_flops == pytest.approx(cost.total_flops, rel=1e-3), step
        assert other.weight_bytes == pytest.approx(cost.weight_bytes, rel=2e-3 * shard.size), step
        assert (other.kv_read_bytes, other.kv_write_bytes) == (cost.kv_read_bytes, cost.kv_write_bytes), step
