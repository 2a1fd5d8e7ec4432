"""Two processes over gloo compute what one does: what is priced as tensor parallel can be run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

from models.rank import logits_of, run_rank
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.shard import WHOLE, Shard
from support.checkpoints import random_model

_COMMON: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 10,
    "max_position_embeddings": 64,
}
_LATENT: dict[str, Any] = {name: value for name, value in _COMMON.items() if name != "head_dim"} | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 14,
    "q_lora_rank": 9,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "n_group": 2,
    "topk_group": 1,
}
_DELTA: dict[str, Any] = {
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.4,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 7,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
}
_EXPERTS = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12,
}  # fmt: skip
_HEADS = {k: v for k, v in _COMMON.items() if k != "head_dim"} | {"hidden_size": 40, "num_key_value_heads": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-biases": ("llama", {**_COMMON, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {**_COMMON, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama-one-kv-head-for-two": ("llama", {**_COMMON, "num_key_value_heads": 1}),
    "ministral3-scaled-queries": (
        "ministral3",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "original_max_position_embeddings": 3,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "qwen3-odd-vocabulary": ("qwen3", {**_COMMON, "num_key_value_heads": 2, "vocab_size": 51}),
    "qwen3-moe": (
        "qwen3_moe",
        {**_COMMON, "num_key_value_heads": 2, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    ),
    "qwen2-moe-shared": (
        "qwen2_moe",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "hidden_size": 40,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 12,
        },
    ),
    "qwen3-next": ("qwen3_next", {**_COMMON, **_DELTA, **_EXPERTS}),
    "qwen3.5": ("qwen3_5_text", {**_COMMON, **_DELTA}),
    "minimax-m2": (
        "minimax_m2",
        {**_COMMON, "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "rotary_dim": 4},
    ),
    "llama4": (
        "llama4_text",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size_mlp": 12,
            "moe_layers": [1],
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 4,
            "floor_scale": 3,
        },
    ),
    "deepseek-v3": ("deepseek_v3", _LATENT),
    "deepseek-v2": ("deepseek_v2", {**_LATENT, "q_lora_rank": None, "topk_method": "greedy"}),
    "gpt-oss": (
        "gpt_oss",
        {**_COMMON, "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    "phi3-fused": (
        "phi3",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "hidden_size": 40,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma2": ("gemma2", {**_COMMON, "num_key_value_heads": 2, "sliding_window": 4, "final_logit_softcapping": 2.0}),
    "gemma3": ("gemma3_text", {**_COMMON, "num_key_value_heads": 2, "sliding_window": 4}),
    "granite": ("granite", {**_HEADS, "residual_multiplier": 0.5, "logits_scaling": 3.0}),
    "glm4-fused": ("glm4", {**_COMMON, "num_key_value_heads": 2, "head_dim": 12, "pad_token_id": 0}),
    "cohere-head-norms": ("cohere", {**_HEADS, "use_qk_norm": True}),
    "cohere-one-kv-head-for-two": ("cohere", {**_HEADS, "use_qk_norm": True, "num_key_value_heads": 1}),
    "exaone4": ("exaone4", {**_HEADS, "sliding_window": 4}),
    "olmo2": ("olmo2", _HEADS),
    "olmo2-one-kv-head-for-two": ("olmo2", {**_HEADS, "num_key_value_heads": 1}),
    "starcoder2-biases": ("starcoder2", _HEADS),
    "phi-biases": ("phi", {**_HEADS, "partial_rotary_factor": 0.4}),
    "nemotron-h": (
        "nemotron_h",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "mamba_num_heads": 6,
            "mamba_head_dim": 5,
            "n_groups": 2,
            "ssm_state_size": 7,
            "mlp_bias": True,
            "use_bias": True,
        },
    ),
    "nemotron-3": (
        "nemotron_h",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "layers_block_type": ["moe", "full_attention", "linear_attention"],
            "mamba_num_heads": 6,
            "mamba_head_dim": 5,
            "n_groups": 2,
            "ssm_state_size": 7,
            "mlp_bias": True,
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 14,
            "moe_shared_expert_intermediate_size": 22,
            "routed_scaling_factor": 2.5,
        },
    ),
    # Classes of transformers without a family here.
    "class-one-kv-head-for-two": ("arcee", {**_COMMON, "num_key_value_heads": 1, "vocab_size": 51}),
    "class-own-activation": ("apertus", {**_COMMON, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "class-whole-attention": ("stablelm", {**_HEADS, "use_qkv_bias": True}),
    "class-experts": (
        "afmoe",
        {
            **_COMMON,
            "num_key_value_heads": 2,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "num_shared_experts": 1,
            "num_dense_layers": 1,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "class-latent": ("youtu", {name: value for name, value in _LATENT.items() if "rout" not in name}),
    "gpt2-fused": ("gpt2", {"vocab_size": 51, "n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 64}),
}
_STACKS: dict[str, Any] = {
    "vocab_size": 51,
    "d_model": 36,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 26,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "suppress_tokens", "begin_suppress_tokens")),
}
ENCODER_DECODERS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "t5-biases-of-positions": (
        "t5",
        AutoModelForSeq2SeqLM,
        {
            "vocab_size": 51,
            "d_model": 24,
            "d_kv": 10,
            "d_ff": 20,
            "num_layers": 2,
            "num_heads": 4,
            "feed_forward_proj": "gated-gelu",
            "decoder_start_token_id": 0,
        },
    ),
    "bart-bias-of-logits": ("bart", AutoModelForSeq2SeqLM, {**_STACKS, "max_position_embeddings": 64}),
    "whisper": (
        "whisper",
        AutoModelForSpeechSeq2Seq,
        {**_STACKS, "num_mel_bins": 11, "max_source_positions": 13, "max_target_positions": 40},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of all cases, and the logits of two ranks beside them."""
    folder = tmp_path_factory.mktemp("parallel")
    for name, (model_type, config) in CASES.items():
        random_model(model_type, config, 0).save_pretrained(folder / name)
    for name, (model_type, auto, config) in ENCODER_DECODERS.items():
        theirs = random_model(model_type, config, 0, auto)
        for buffer, tensor in theirs.named_buffers():
            if "logits_bias" in buffer:
                tensor.copy_(torch.linspace(-1, 1, tensor.numel()))
        theirs.save_pretrained(folder / name)
    multiprocessing.spawn(run_rank, (str(folder), (*CASES, *ENCODER_DECODERS)), nprocs=2)
    return folder


@pytest.mark.parametrize("name", [*CASES, *ENCODER_DECODERS])
def test_two_ranks_equal_one(folder: Path, name: str) -> None:
    expected = logits_of(load_model(str(folder / name)))
    for rank in range(2):
        got = torch.load(folder / f"{name}.{rank}.pt")
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def parameters(model: Model) -> dict[str, torch.Tensor]:
    """By the names of the checkpoint."""
    return {model.checkpoint_name(path): parameter for path, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_ranks_divide_the_matrices(folder: Path, name: str) -> None:
    """Each rank holds half of every feed-forward part's matrices, and of what stands in its place; routers and gates
    whole."""
    whole, halves = (parameters(load_model(str(folder / name), shard=shard)) for shard in (WHOLE, Shard(1, 2)))
    assert halves.keys() == whole.keys()
    parts = [n for n in whole if (".mlp." in n or ".mixer." in n) and not n.endswith("gate.weight")]
    matrices = [n for n in parts if whole[n].dim() == 2]
    assert len(matrices) >= 4
    for parameter in matrices:
        assert 2 * halves[parameter].numel() == whole[parameter].numel(), parameter


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_ranks_divide_both_stacks(folder: Path, name: str) -> None:
    """Projections of both attentions, the feed-forwards, and what T5 adds to the scores of a head."""
    whole, halves = (parameters(load_model(str(folder / name), shard=shard)) for shard in (WHOLE, Shard(1, 2)))
    ends = (".q.weight", ".o.weight", "wi_0.weight", "wo.weight", "relative_attention_bias.weight")
    ends += ("q_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight", "fc1.bias")
    divided = [name for name in whole if name.endswith(ends)]
    assert len({name.partition("decoder")[0] for name in divided}) >= 2, "of both stacks"
    assert len(divided) >= 20
    for parameter in divided:
        assert 2 * halves[parameter].numel() == whole[parameter].numel(), parameter


def test_heads_that_do_not_divide_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="do not divide over 3 devices"):
        load_model(str(folder / "llama-tied"), shard=Shard(0, 3))
