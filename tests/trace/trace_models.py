"""Small random models of every family with an engine and a tokenizer of bytes, and a device made by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.trace import TraceOptions, TraceSubject, trace
from ridgeline.insight.trace.trace_ledger import Ledger
from ridgeline.insight.trace.tracer import HookCost
from ridgeline.price.device import Cache, Device, Efficiency
from support.checkpoints import random_model
from text.tiny_tokenizers import write_bytes

TEXT = "A ridge line, 17."
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
NO_HOOKS = HookCost(0.0, 0.0)

# Figures that no processor has, so that none is met by chance; the models below live in its L2.
DEVICE = Device(
    name="slate",
    title="Slate 2",
    kind="cpu",
    peaks={"fp32": 7e12, "bf16": 13e12},
    bandwidth=90e9,
    memory=24e9,
    caches=(Cache("L2", 2e6, 700e9), Cache("L3", 30e6, 300e9)),
    efficiency={"default": Efficiency(3e-6, 0.7, 0.8), "attention": Efficiency(9e-6, 0.5, 0.6)},
)

_BASE: dict[str, Any] = {
    "vocab_size": 263,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GPT2: dict[str, Any] = {
    "vocab_size": 263,
    "n_positions": 96,
    "n_embd": 36,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MOE = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 14, "norm_topk_prob": True}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 7, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3,
    "partial_rotary_factor": 0.4, "shared_expert_intermediate_size": 22,
}  # fmt: skip
_LATENT = {name: value for name, value in _BASE.items() if name != "head_dim"} | {
    "num_key_value_heads": 6, "kv_lora_rank": 17, "q_lora_rank": 11, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6,
    "v_head_dim": 9, "first_k_dense_replace": 1, "n_routed_experts": 6, "n_shared_experts": 1, "n_group": 3,
    "num_experts_per_tok": 2, "moe_intermediate_size": 14, "topk_group": 2,
}  # fmt: skip
_SCALED = {
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10_000.0, "original_max_position_embeddings": 3,
        "llama_4_scaling_beta": 0.5,
    }
}  # fmt: skip
_LLAMA4 = {
    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size_mlp": 26, "moe_layers": [1],
    "no_rope_layers": [1, 0, 1], "attention_chunk_size": 5, "floor_scale": 3, "attn_scale": 0.5,
}  # fmt: skip
_MAMBA = {name: value for name, value in _BASE.items() if name != "num_hidden_layers"} | {
    "layers_block_type": ["linear_attention", "full_attention", "moe"], "mamba_num_heads": 4, "mamba_head_dim": 5,
    "n_groups": 2, "ssm_state_size": 7, "conv_kernel": 3, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 14, "moe_shared_expert_intermediate_size": 22, "routed_scaling_factor": 2.5,
}  # fmt: skip
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _BASE),
    "llama-tied": ("llama", _BASE | {"tie_word_embeddings": True}),
    "mistral-window": ("mistral", _BASE | {"sliding_window": 5}),
    "ministral3": ("ministral3", _BASE | _SCALED),
    "qwen2": ("qwen2", _BASE | {"hidden_size": 60}),
    "qwen3": ("qwen3", _BASE),
    "phi3": ("phi3", _BASE | {"hidden_size": 60}),
    "mixtral": ("mixtral", _BASE | {"sliding_window": None, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3-moe": ("qwen3_moe", _BASE | _MOE | {"mlp_only_layers": [1]}),
    "qwen3-next": ("qwen3_next", _BASE | _MOE | _DELTA),
    "deepseek-v3": ("deepseek_v3", _LATENT),
    "llama4": ("llama4_text", _BASE | _LLAMA4),
    "nemotron-3": ("nemotron_h", _MAMBA),
    "gpt-oss": ("gpt_oss", _BASE | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5}),
    "gpt2": ("gpt2", _GPT2),
    "gemma2": ("gemma2", _BASE | {"sliding_window": 5, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 9.0}),
    "gemma3": ("gemma3_text", _BASE | {"sliding_window": 5, "sliding_window_pattern": 2}),
    "granite": ("granite", _BASE | {"residual_multiplier": 0.7, "logits_scaling": 2.0, "embedding_multiplier": 1.3}),
    "olmo2": ("olmo2", _BASE | {"hidden_size": 60}),
    "cohere2": ("cohere2", _BASE | {"hidden_size": 60, "sliding_window": 5, "sliding_window_pattern": 2}),
    "phi": ("phi", _BASE | {"hidden_size": 60, "partial_rotary_factor": 0.4}),
}
FAMILIES = tuple(_FAMILIES)


@dataclass(frozen=True)
class Tiny:
    """A model in transformers and here, and the ids of TEXT."""

    folder: Path
    theirs: PreTrainedModel
    llm: LLM

    @property
    def ids(self) -> list[int]:
        """TEXT as the model reads it."""
        return self.llm.encode(TEXT)

    def trace(
        self, wanted: TraceOptions | None = None, params: SamplingParams = GREEDY, device: Device = DEVICE, **how: Any
    ) -> Ledger:
        """Trace TEXT; every measured step is run once with hooks unless `wanted` says otherwise."""
        how = {"cost": NO_HOOKS} | how
        subject = TraceSubject("tiny", TEXT, lambda: self.llm.encode(TEXT))
        return trace(self.llm, subject, params, device, wanted or TraceOptions(repeats=1), **how)


def make(name: str, folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Tiny:
    """Write a family's checkpoint and load it."""
    model_type, config = _FAMILIES[name]
    theirs = random_model(model_type, config, seed=FAMILIES.index(name))
    theirs.to(dtype).save_pretrained(folder)
    write_bytes(folder)
    engine = EngineSettings(kv_bytes=1 << 20, limits=Limits(requests=2), **settings)
    return Tiny(folder, theirs, LLM(str(folder), engine))


Maker = Callable[..., Tiny]


class Ticks:
    """A clock that goes on by `tick` seconds whenever it is read."""

    def __init__(self, tick: float) -> None:
        self.tick, self.reads = tick, 0

    def __call__(self) -> float:
        self.reads += 1
        return self.reads * self.tick
