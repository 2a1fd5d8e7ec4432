"""Nemotron-H (arXiv:2504.03624) and Nemotron 3 (NVIDIA, 2025): a hybrid of Mamba-2, attention, MLPs and experts.

Each layer is a Mamba-2 mixer, attention without rotary positions, an MLP, or a mixture of experts without gates. Sizes
and names are those of transformers' modeling_nemotron_h.py.
"""

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import MixerBlock, Norms
from ridgeline.core.models.common.decoder import MLP, MTP, Backbone, Decoder, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, check_groups, read_activation
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields
from ridgeline.core.models.common.mixture import Mixture, read_corrected, read_experts
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.norm import AddRMSNorm
from ridgeline.core.ops.output_gate import GroupedRMSNorm
from ridgeline.core.ops.recurrence import ShortConvolution
from ridgeline.core.ops.rotary import Angles
from ridgeline.core.ops.state_space import StateSpace, StateSpaceSizes

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLD_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}
_OF_MIXTURES = (
    "n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
    "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
)  # fmt: skip
# Without effect: there is always one shared expert (the first field), and no rotary embedding (the last two).
_OF_NOTHING = (
    "n_shared_experts", "moe_shared_expert_overlap", "num_hidden_layers", "rms_norm_eps", "norm_eps",
    "rope_theta", "partial_rotary_factor",
)  # fmt: skip
_OF_TRAINING = (
    "time_step_max", "time_step_floor", "time_step_rank", "time_step_limit", "rescale_prenorm_residual", "expand",
    "chunk_size", "num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype",
)  # fmt: skip


class MambaMixer(nn.Module):
    """A Mamba-2 layer: a short convolution of x, B and C, the state-space scan, and a gated norm."""

    part = "attention"

    def __init__(self, fields: Fields, d: Dimensions, sizes: StateSpaceSizes, places: Iterator[int]) -> None:
        """Build a Mamba-2 layer.

        Args:
            fields: The config.
            d: The sizes of the model.
            sizes: The heads of all ranks together.
            places: Counts the caches of the model: the layer takes one for the convolution and one for the state.
        """
        super().__init__()
        inner, across, bias = sizes.heads * sizes.head, sizes.groups * sizes.state, fields.flag("use_bias", False)
        own = StateSpaceSizes(d.shard.part(sizes.groups, "groups of heads"), sizes.share, sizes.head, sizes.state)
        self.projections = Projections(d.fused("in_proj", inner, inner, across, across, sizes.heads, bias=bias))
        self.conv1d = ShortConvolution(
            next(places), (inner, across, across), fields.count("conv_kernel", 4), d.dtype,
            activation=read_activation(fields, "mamba_hidden_act", "silu"),
            bias=fields.flag("use_conv_bias", True), shard=d.shard,
        )  # fmt: skip
        self.scan = StateSpace(next(places), own, d.dtype, fields.positive("time_step_min", 0.001), d.shard)
        self.norm = GroupedRMSNorm(inner // sizes.groups, d.eps, d.dtype, own.groups, d.shard)
        self.out_proj = Linear(d.row(inner, d.hidden, bias=bias))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor, _: Angles | None, kv: KVContext) -> Tensor:
        """Return a Mamba-2 layer's output [rows, hidden] for x_TD [rows, hidden]; positions only give the order."""
        z_TX, x_TX, b_TX, c_TX, step_TH = self.projections(x_TD)
        widths = [x_TX.shape[1], b_TX.shape[1], c_TX.shape[1]]
        x_TX, b_TX, c_TX = torch.split(self.conv1d(x_TX, kv, b_TX, c_TX), widths, dim=-1)
        out_TX = self.scan(x_TX, b_TX, c_TX, step_TH, kv)
        return self.all_reduce(self.out_proj(self.norm(out_TX, z_TX)))


class MLPMixer(MLP):
    """An MLP that is called as attention is, for a layer without a mixer of positions."""

    @override
    def forward(self, x_TD: Tensor, *_: object) -> Tensor:
        """Return the MLP's output; ignore positions and the KV context."""
        return super().forward(x_TD)


class MixtureMixer(Mixture):
    """A mixture of experts that is called as attention is, for a layer without a mixer of positions."""

    @override
    def forward(self, x_TD: Tensor, *_: object) -> Tensor:
        return super().forward(x_TD)


def read_layer_kinds(fields: Fields) -> tuple[str, ...]:
    """Read the kind of each layer: from `layers_block_type`, else from the letters of `hybrid_override_pattern`."""
    pattern, listed = fields.value("hybrid_override_pattern"), fields.value("layers_block_type")
    if listed is None:
        letters = fields.text("hybrid_override_pattern")
        listed = [_LETTERS.get(letter, letter) for letter in letters]
    kinds = tuple(_OLD_NAMES.get(str(kind), str(kind)) for kind in listed) if isinstance(listed, list) else ()
    if not 1 <= len(kinds) <= MAX_LAYERS or not set(kinds) <= set(_LETTERS.values()):
        raise fields.refuse(
            f"hybrid_override_pattern {pattern!r} (layers_block_type) must list layers as {', '.join(_LETTERS)} "
            f"or {', '.join(_LETTERS.values())}"
        )
    return kinds


def read_sizes(fields: Fields) -> StateSpaceSizes:
    """Read the heads of the Mamba-2 layers from a config."""
    heads, groups = fields.count("mamba_num_heads", 128), fields.count("n_groups", 8)
    if heads % groups:
        raise fields.refuse(f"{heads} heads (mamba_num_heads) do not divide over {groups} groups (n_groups)")
    if fields.count("conv_kernel", 4) < 2:
        raise fields.refuse("conv_kernel is 1; it must be at least 2")
    return StateSpaceSizes(
        groups, heads // groups, fields.count("mamba_head_dim", 64), fields.count("ssm_state_size", 128)
    )


def read_mixture(fields: Fields, d: Dimensions, bias: bool) -> MixtureMixer:
    """Build a mixture-of-experts layer of Nemotron-H; `bias` says whether its shared expert has biases."""
    if fields.value("moe_latent_size"):
        raise fields.refuse(
            f"moe_latent_size = {fields.value('moe_latent_size')!r} is not supported; missing: experts that read and "
            "write a latent, with projections from the hidden states to the latent and back (Nemotron 3 Super)"
        )
    sizes = read_experts(fields, "n_routed_experts", "moe_intermediate_size")
    rule, shared = read_corrected(fields, sizes, 1.0), fields.count("moe_shared_expert_intermediate_size")
    return MixtureMixer(d, sizes, rule, names=("up_proj", "down_proj"), shared=shared, shared_bias=bias)


def read_dimensions(fields: Fields, storage: StorageConfig, layers: int) -> Dimensions:
    """Read the sizes of a Nemotron-H model with `layers` layers, except those of its Mamba-2 layers and experts."""
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    check_groups(fields, heads, kv_heads)
    return Dimensions(
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings"),
        layers=layers,
        hidden=fields.count("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.count("head_dim", fields.count("attention_head_dim", 128)),
        width=fields.count("intermediate_size"),
        activation=read_activation(fields, "mlp_hidden_act", "relu2"),
        eps=fields.positive("layer_norm_epsilon", 1e-5),
        storage=storage,
    )


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Nemotron-H, Nemotron Nano 2 or Nemotron 3 Nano config."""
    fields.ignore(*_OF_TRAINING, *_OF_NOTHING)
    for name in ("attention_bias", "mamba_proj_bias", "sliding_window", "residual_in_fp32", "tie_word_embeddings"):
        fields.require_off(name)
    kinds, sizes = read_layer_kinds(fields), read_sizes(fields)
    d, bias = read_dimensions(fields, storage, len(kinds)), fields.flag("mlp_bias", False)
    norms, places = Norms.rms(d, cast_last=True), count()
    if "moe" not in kinds:
        fields.ignore(*_OF_MIXTURES)

    def mixer(kind: str) -> nn.Module:
        if kind == "linear_attention":
            return MambaMixer(fields, d, sizes, places)
        if kind == "full_attention":
            return SelfAttention(d, Attention(next(places), d.own_heads, d.kv_spec()), d.qkv())
        if kind == "moe":
            return read_mixture(fields, d, bias)
        up = {"up_proj": d.column(d.hidden, d.width, bias=bias)}
        return MLPMixer(d, up, "down_proj", d.row(d.width, d.hidden, bias=bias))

    blocks = [MixerBlock(mixer(kind), first=layer == 0, norms=norms) for layer, kind in enumerate(kinds)]
    last = AddRMSNorm(d.hidden, d.eps, d.dtype, cast_last=True)
    return Decoder(d, Backbone(d, None, blocks, norm=last), tied=False)


FAMILY = Family(
    "NemotronHForCausalLM",
    "nemotron_h",
    build,
    renames=(("model.embeddings.", "model.embed_tokens."), ("model.norm_f.", "model.norm.")),
    ignored=MTP,
    prefixes=(("backbone.", "model."),),
)
