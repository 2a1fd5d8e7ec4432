"""Small random models, what they say without a cache, and the poison for pages that nobody should read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import PLAIN
from ridgeline.core.ops.kv_layout import NULL_PAGE
from ridgeline.core.ops.number_formats import kv_format_named
from ridgeline.engine.engine import Engine
from ridgeline.engine.runner import Runner
from support.engines import uncached_logits

WEIGHT_STD = 0.2  # large enough that the likeliest token is likelier than the next by far more than rounding

_SIZES = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
LLAMA = {"architectures": ["LlamaForCausalLM"], **_SIZES}
SLIDING = {"architectures": ["MistralForCausalLM"], "sliding_window": 21, **_SIZES}
MIXED = {
    "architectures": ["Qwen2ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 6,
    "max_window_layers": 1,
    **_SIZES,
}
# Latents, of which short prompts are expanded and long contexts absorbed; experts picked within groups.
LATENT = _SIZES | {
    "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4, "kv_lora_rank": 13, "q_lora_rank": 9,
    "qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 5, "first_k_dense_replace": 1, "n_routed_experts": 6,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 18, "n_group": 3, "topk_group": 2,
}  # fmt: skip
# Linear attention, which keeps a state, around full attention.
DELTA = _SIZES | {
    "architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 3, "head_dim": 8, "partial_rotary_factor": 0.5,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 7, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 18, "mlp_only_layers": [0, 1, 2],
    "rms_norm_eps": 0.01,
}  # fmt: skip

# Mamba-2, attention that does not turn, and an MLP, one a layer.
MAMBA = {name: value for name, value in _SIZES.items() if name not in ("rms_norm_eps", "num_hidden_layers")} | {
    "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M*-M", "mamba_num_heads": 4,
    "mamba_head_dim": 7, "n_groups": 2, "ssm_state_size": 5, "conv_kernel": 3, "head_dim": 8,
    "layer_norm_epsilon": 0.01,
}  # fmt: skip


def small_model(config: Mapping[str, Any], seed: int = 0, kv: str | None = None) -> Model:
    """The fp32 model of a config with weights from `seed`; scales of norms lie around 1. kv: the format of its keys and
    values."""
    recipe = None if kv is None else replace(PLAIN, kv=kv_format_named(kv))
    model = build(Fields(config, "test"), recipe=recipe)
    with torch.device("meta"):
        model.create_parameters()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        path, _, attribute = name.rpartition(".")
        noise = torch.randn(parameter.shape, generator=generator) * WEIGHT_STD
        scale = parameter.dim() == 1 and attribute == "weight"
        setattr(model.get_submodule(path), attribute, nn.Parameter(1 + noise if scale else noise, requires_grad=False))
    model.tie()
    return model


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says greedily after a prompt. logits: of every position that ran, [positions, vocabulary]."""

    tokens: list[int]
    logits: Tensor
    smallest_gap: float


def greedy(logits_of: Callable[[Sequence[int]], Tensor], prompt: Sequence[int], count: int) -> Answer:
    """`count` greedy tokens by a whole forward for each. logits_of: tokens -> of every position."""
    tokens = list(prompt)
    for _ in range(count):
        logits = logits_of(tokens)
        tokens.append(int(logits[-1].argmax()))
    return _answer(tokens, logits, len(prompt))


def _answer(tokens: Sequence[int], logits: Tensor, asked: int) -> Answer:
    """What was said after a prompt of `asked` tokens, of which `logits` are those of the last forward."""
    largest = logits[asked - 1 :].topk(2).values
    return Answer(list(tokens[asked:]), logits, float((largest[:, 0] - largest[:, 1]).min()))


def uncached_answers(model: Model, wanted: Sequence[tuple[Sequence[int], int]]) -> list[Answer]:
    """What the model itself says without a cache after each prompt, so many tokens; they share whole forwards."""
    said, logits = [list(prompt) for prompt, _ in wanted], [torch.empty(0)] * len(wanted)
    for step in range(max(count for _, count in wanted)):
        growing = [index for index, (_, count) in enumerate(wanted) if step < count]
        for index, own in zip(growing, uncached_logits(model, [said[index] for index in growing]), strict=True):
            said[index].append(int(own[-1].argmax()))
            logits[index] = own
    each = zip(said, logits, wanted, strict=True)
    return [_answer(tokens, own, len(prompt)) for tokens, own, (prompt, _) in each]


def uncached_answer(model: Model, prompt: Sequence[int], count: int) -> Answer:
    """The same of one prompt."""
    (answer,) = uncached_answers(model, [(prompt, count)])
    return answer


def poison_free_pages(engine: Engine) -> None:
    """Fill every free page with NaN: whoever reads one of its slots, even with weight 0, says NaN."""
    runner = engine.executor
    assert isinstance(runner, Runner)
    buffer = runner.store.buffer
    buffer[torch.tensor(engine.kv_cache_manager.pool.free_pages, dtype=torch.int64)] = 0xFF  # NaN in every format
    assert not buffer[NULL_PAGE].any(), "the page of zeros was written"


def assert_nothing_held(engine: Engine) -> None:
    """No request, no table, no copy, and every page free or cached."""
    engine.kv_cache_manager.check()
    assert not engine.requests
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert not engine.kv_cache_manager.tables
    assert not engine.kv_cache_manager.copies
    assert engine.kv_cache_manager.pool.available == engine.kv_cache_manager.pool.size
