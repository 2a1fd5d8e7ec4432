"""The sizes that people ask for, of every family against transformers' reading of its config, and of known models."""

from copy import deepcopy

import pytest
from transformers import AutoConfig

from models.configs import CONFIGS
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.sizes import MixtureSizes, sizes_of


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "gpt2"])
def test_sizes_are_those_that_transformers_reads(kind: str) -> None:
    """Widths, heads and experts of every family, from its own config."""
    sizes, theirs = sizes_of(build(Fields(CONFIGS[kind], "c"))), AutoConfig.for_model(**deepcopy(CONFIGS[kind]))
    assert sizes.hidden == theirs.hidden_size
    heads = (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (sizes.heads, sizes.kv_heads) == heads
    if "experts" in str(CONFIGS[kind]):  # theirs have a count of Nemotron-H's, which may have no layer with them
        count = getattr(theirs, "num_experts", None) or theirs.num_local_experts
        width = getattr(theirs, "moe_intermediate_size", None) or theirs.intermediate_size
        assert sizes.mixture is not None
        assert (sizes.mixture.count, sizes.mixture.active, sizes.mixture.width) == (
            count,
            theirs.num_experts_per_tok,
            width,
        )
    else:
        assert sizes.mixture is None
        assert sizes.widths == (theirs.intermediate_size,)


def test_gpt2_is_plain() -> None:
    """It names its sizes otherwise, and each of its heads has its own keys and values."""
    sizes = sizes_of(build(read_config("gpt2")))
    assert (sizes.hidden, sizes.widths, sizes.heads, sizes.kv_heads, sizes.form) == (768, (3072,), 12, 12, "MHA")
    assert [each.form for each in sizes.sharing] == ["MHA", "MQA"]


def test_a_latent_for_all_heads() -> None:
    """DeepSeek-V3 keeps 576 numbers a token and layer, where keys and values of 128 heads would be 128 x 320."""
    sizes = sizes_of(build(read_config("deepseek-v3")))
    assert (sizes.heads, sizes.head_dim, sizes.form) == (128, 192, "MLA")
    assert [(each.form, each.kv_heads, each.bytes_per_token) for each in sizes.sharing] == [
        ("MHA", 128, 61 * 128 * 320 * 2), ("MLA", 1, 61 * 576 * 2),
    ]  # fmt: skip
    assert sizes.sharing[1].reduction == pytest.approx(71.1, abs=0.05)


def test_grouped_heads_and_their_factors() -> None:
    """Llama 3 8B keeps a quarter of what a head of its own for each query head would take; one head for all would keep
    a 32nd."""
    sizes = sizes_of(build(read_config("llama-3-8b")))
    assert (sizes.hidden, sizes.widths, sizes.heads, sizes.kv_heads, sizes.head_dim) == (4096, (14_336,), 32, 8, 128)
    assert [(each.form, each.kv_heads, each.bytes_per_token, each.reduction) for each in sizes.sharing] == [
        ("MHA", 32, 524_288, 1), ("GQA", 8, 131_072, 4), ("MQA", 1, 16_384, 32),
    ]  # fmt: skip
    one = build(Fields(CONFIGS["llama"] | {"num_key_value_heads": 1}, "c"))
    assert [each.form for each in sizes_of(one).sharing] == ["MHA", "MQA"]
    assert sizes_of(one).form == "MQA"


def test_experts_beside_dense_layers() -> None:
    """Of a model in which one layer is dense both widths are there."""
    sizes = sizes_of(build(Fields(CONFIGS["qwen3_moe"], "c")))
    assert (sizes.mixture, sizes.widths) == (MixtureSizes(7, 3, 14, 1), (44,))
    large = sizes_of(build(read_config("qwen3-235b-a22b")))
    assert (large.mixture, large.widths) == (MixtureSizes(128, 8, 1536, 94), ())
