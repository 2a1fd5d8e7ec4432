"""The text model of Qwen3.5, dense and mixture of experts: Qwen3-Next with other projections in linear attention.

Linear attention has separate projections, each for all heads. Sizes and names are those of transformers'
modeling_qwen3_5.py and modeling_qwen3_5_moe.py.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import MTP, Decoder, GatedMLP
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.gated_delta_net import GatedDeltaNet, hybrid
from ridgeline.core.models.common.mixture import SHARED_EXPERT, Mixture, read_experts
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.gated_delta import DeltaSizes
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.router import RoutingRule


class PlainDeltaNet(GatedDeltaNet):
    """A GatedDeltaNet whose projections return queries, keys, values and gates each for all heads."""

    by_head = False

    @staticmethod
    @override
    def projections(d: Dimensions, sizes: DeltaSizes, keys: int, values: int) -> dict[str, MatrixSpec]:
        each = d.column(d.hidden, sizes.value_heads)
        return {
            **d.fused("in_proj_qkv", keys, keys, values),
            "in_proj_z": d.column(d.hidden, values),
            "in_proj_b": each,
            "in_proj_a": each,
        }

    @override
    def mixed(self, x_TD: Tensor, kv: KVContext) -> tuple[Tensor, ...]:
        q_TO, k_TO, v_TO, z_TO, b_TH, a_TH = self.in_proj(x_TD)
        widths = [q_TO.shape[1], k_TO.shape[1], v_TO.shape[1]]
        return *torch.split(self.conv1d(q_TO, kv, k_TO, v_TO), widths, dim=-1), b_TH, a_TH, z_TO


def _read(fields: Fields, storage: StorageConfig, width: int | None = None) -> Dimensions:
    """Read the sizes of a Qwen3.5 config, and check the settings that all releases share.

    These are gated attention, and recurrent states in fp32.
    """
    if not fields.flag("attn_output_gate", True):
        raise fields.refuse("attn_output_gate = false is not supported; every release has a gate, so set it to true")
    fields.require_off("mamba_ssm_dtype", "float32")
    fields.require_off("mlp_only_layers")
    fields.require("output_gate_type", "swish", "silu")  # two names of the gate in its linear attention
    unstated = {} if width is None else {"intermediate_size": width}
    return read_dimensions(fields, storage, head_dim=fields.count("head_dim", 256), unstated=unstated)


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the text model of a dense Qwen3.5 config."""
    d = _read(fields, storage)
    return hybrid(fields, d, PlainDeltaNet, lambda _: GatedMLP(d, d.gate_up()))


def build_mixture(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the text model of a Qwen3.5-35B-A3B config or a similar one: every layer is a mixture of experts."""
    sizes = read_experts(fields, "num_experts", "moe_intermediate_size")
    shared, rule = fields.count("shared_expert_intermediate_size", 512), RoutingRule(sizes.active, renormalise=True)
    d = _read(fields, storage, width=sizes.width)

    def feed_forward(_: int) -> nn.Module:
        return Mixture(d, sizes, rule, shared=shared, weighed=True)

    return hybrid(fields, d, PlainDeltaNet, feed_forward)


FAMILIES = (
    Family("Qwen3_5ForCausalLM", "qwen3_5_text", build, ignored=MTP),
    Family("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", build_mixture, renames=SHARED_EXPERT, ignored=MTP),
)
