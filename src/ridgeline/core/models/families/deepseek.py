"""DeepSeek-V2 (arXiv:2405.04434), DeepSeek-V3 and R1 (arXiv:2412.19437), Kimi-K2 and Moonlight.

They have multi-head latent attention (MLA), and mixtures of experts from some layer on.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, further_layers
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import Mixture, read_corrected, read_experts, read_groups
from ridgeline.core.models.common.rope import RopeDefaults, read_rope, rope_section
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.experts import ExpertSizes
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention, LatentSizes, latent_scale
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.rotary import Angles, Rope
from ridgeline.core.ops.router import RoutingRule
from ridgeline.core.ops.work import CAUSAL

LATENT_EPS = 1e-6  # of the norms of latents; the config's is that of the others


class LatentSelfAttention(nn.Module):
    """Multi-head latent attention (MLA): the heads' keys and values are computed from one cached latent per position.

    The rotated part of a key does not come from the latent. It is cached next to it and is the same for all heads.
    Queries come from the hidden states, or from a latent of their own.
    """

    part = "attention"

    def __init__(
        self, d: Dimensions, layer: int, sizes: LatentSizes, rope: Rope, scale: float, *, q_rank: int | None, bias: bool
    ) -> None:
        """Build the projections of multi-head latent attention around its op.

        Args:
            d: The sizes of the model.
            layer: The index of the layer's KV cache.
            sizes: The sizes of latents and heads.
            rope: The rotary embedding.
            scale: The factor of the scores.
            q_rank: Width of the queries' latent; None if they have none.
            bias: Whether the projections to latents, and the output projection, have a bias.
        """
        super().__init__()
        wide = d.heads * sizes.key
        if q_rank is None:
            queries: Mapping[str, MatrixSpec] = {"q_proj": d.column(d.hidden, wide)}
        else:
            queries = {"q_a_proj": d.whole(d.hidden, q_rank, bias=bias)}
        latents = {"kv_a_proj_with_mqa": d.whole(d.hidden, sizes.kept, bias=bias)}
        self.down, self.sizes = Projections({**queries, **latents}), sizes
        self.q_a_layernorm = None if q_rank is None else RMSNorm(q_rank, LATENT_EPS, d.dtype)
        self.q_b_proj = None if q_rank is None else Linear(d.column(q_rank, wide))
        self.kv_a_layernorm = RMSNorm(sizes.latent, LATENT_EPS, d.dtype)
        spec = KVSpec(1, sizes.kept, 0, CAUSAL, d.dtype, d.storage.kv)
        kv_b = d.column(sizes.latent, d.heads * (sizes.nope + sizes.value))
        self.attend = LatentAttention(layer, d.own_heads, sizes, kv_b, spec, rope=rope, scale=scale)
        self.o_proj = Linear(d.row(d.heads * sizes.value, d.hidden, bias=bias))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor, angles: Angles, kv: KVContext) -> Tensor:
        """Return the attention output [rows, hidden] for x_TD [rows, hidden]."""
        q_TO, kept_TE = self.down(x_TD)
        if self.q_a_layernorm is not None and self.q_b_proj is not None:
            q_TO = self.q_b_proj(self.q_a_layernorm(q_TO))
        latent_TC, turned_TR = torch.split(kept_TE, [self.sizes.latent, self.sizes.rotary], dim=-1)
        q_THD = q_TO.view(len(q_TO), -1, self.sizes.key)
        out_TO = self.attend(q_THD, self.kv_a_layernorm(latent_TC), turned_TR, kv, angles)
        return self.all_reduce(self.o_proj(out_TO))


def read_latents(fields: Fields) -> LatentSizes:
    """Read the sizes of the cached latent and of the heads computed from it."""
    return LatentSizes(
        fields.count("kv_lora_rank"),
        fields.count("qk_nope_head_dim"),
        fields.count("qk_rope_head_dim"),
        fields.count("v_head_dim"),
    )


def read_scale(fields: Fields, key: int) -> float:
    """Return the factor of attention scores, which includes YaRN's temperature if `mscale_all_dim` requests it."""
    section = rope_section(fields)
    has_scale = section.text("rope_type", section.text("type", "default")) != "default" and section.value(
        "mscale_all_dim"
    )
    factor, magnitude = (section.positive("factor"), section.positive("mscale_all_dim")) if has_scale else (1.0, 1.0)
    return latent_scale(key, factor, magnitude)


def _build(
    fields: Fields, storage: StorageConfig, sizes: ExpertSizes, rule: RoutingRule, *, interleaved: bool
) -> Decoder:
    """Build a DeepSeek model with the parts that V2 and V3 share, for given experts and routing rule."""
    # Null means none; an absent field gets the default of transformers.
    none = "q_lora_rank" in fields.values and not fields.has("q_lora_rank")
    q_rank = None if none else fields.count("q_lora_rank", 1536)
    latents, heads = read_latents(fields), fields.count("num_attention_heads")
    if fields.has("num_key_value_heads") and fields.count("num_key_value_heads") != heads:
        raise fields.refuse(
            "num_key_value_heads must equal num_attention_heads, because latent attention has no groups of heads"
        )
    fields.ignore("head_dim", "qk_head_dim", "seq_aux")  # the first two are derived, the last is for training
    fields.require_off("moe_layer_freq", 1)
    d = read_dimensions(fields, storage, kv_heads=heads, head_dim=latents.key)
    bias = fields.flag("attention_bias", False)
    rope = read_rope(fields, latents.rotary, RopeDefaults(interleaved=interleaved))
    scale = read_scale(fields, latents.key)
    dense = fields.natural("first_k_dense_replace")
    shared = fields.natural("n_shared_experts") * sizes.width

    def block(layer: int) -> Block:
        attention = LatentSelfAttention(d, layer, latents, rope, scale, q_rank=q_rank, bias=bias)
        feed_forward = GatedMLP(d, d.gate_up()) if layer < dense else Mixture(d, sizes, rule, shared=shared)
        return Block(d, attention, feed_forward, first=layer == 0)

    built = build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])
    built.ignored_tensors = further_layers(fields, d.layers, "num_nextn_predict_layers")
    return built


def build_v2(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a DeepSeek-V2 or V2-Lite config: softmax scores that are not renormalised."""
    sizes = read_experts(fields, "n_routed_experts", "moe_intermediate_size")
    fields.require_off("norm_topk_prob")
    fields.require_off("scoring_func", "softmax")
    method, scale = fields.text("topk_method", "greedy"), fields.positive("routed_scaling_factor", 1.0)
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.refuse(f"topk_method {method!r} is not supported; greedy and group_limited_greedy are")
    groups, best = (1, 1) if method == "greedy" else read_groups(fields, sizes)
    fields.ignore("n_group", "topk_group")
    rule = RoutingRule(sizes.active, scale=scale, groups=groups, top_groups=best, wide=True)
    return _build(fields, storage, sizes, rule, interleaved=True)


def build_v3(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a DeepSeek-V3, V3.1, R1, Kimi-K2 or Moonlight config.

    Its routing has sigmoid scores, with a correction for the choice of experts.
    """
    sizes = read_experts(fields, "n_routed_experts", "moe_intermediate_size")
    fields.require_off("scoring_func", "sigmoid")
    fields.require_off("topk_method", "noaux_tc")
    rule = read_corrected(fields, sizes, 2.5)
    return _build(fields, storage, sizes, rule, interleaved=fields.flag("rope_interleave", True))


FAMILIES = (
    Family("DeepseekV2ForCausalLM", "deepseek_v2", build_v2),
    Family("DeepseekV3ForCausalLM", "deepseek_v3", build_v3),
)
