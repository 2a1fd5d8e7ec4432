"""Qwen3-Next: linear attention by the gated delta rule in three of four layers, and gated full attention in the others.

It has routed experts and a shared one. The norms add 1 to their stored weights, except that of linear attention. Sizes
and names are those of transformers' modeling_qwen3_next.py.
"""

from torch import nn

from ridgeline.core.models.common.decoder import MTP, Decoder, GatedMLP
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.gated_delta_net import GatedDeltaNet, hybrid
from ridgeline.core.models.common.mixture import SHARED_EXPERT, Mixture, read_dense_layers, read_experts
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.router import RoutingRule


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Qwen3-Next-80B-A3B config."""
    sizes = read_experts(fields, "num_experts", "moe_intermediate_size")
    rule = RoutingRule(sizes.active, renormalise=fields.flag("norm_topk_prob", True))
    shared, dense = fields.count("shared_expert_intermediate_size", 512), read_dense_layers(fields)
    d = read_dimensions(fields, storage, head_dim=fields.count("head_dim", 256))

    def feed_forward(layer: int) -> nn.Module:
        return GatedMLP(d, d.gate_up()) if layer in dense else Mixture(d, sizes, rule, shared=shared, weighed=True)

    return hybrid(fields, d, GatedDeltaNet, feed_forward)


FAMILY = Family("Qwen3NextForCausalLM", "qwen3_next", build, renames=SHARED_EXPERT, ignored=MTP)
