"""Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905): Llama's block with fused projections in the checkpoint."""

import torch
from torch import Tensor, nn

from ridgeline.models.decoder import Block, Decoder, SelfAttention
from ridgeline.models.fields import Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.mistral import read_window
from ridgeline.models.settings import DecoderSettings
from ridgeline.models.storage import Storage
from ridgeline.ops.activation import Activation
from ridgeline.ops.collective import all_reduce


class FusedSelfAttention(SelfAttention):
    """Queries, keys and values from one stored matrix."""

    def project(self, s: DecoderSettings) -> None:
        parts = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        self.qkv_proj = s.column(s.hidden, sum(parts), parts=parts)
        self.sizes = [s.shard.part(size, "projections") for size in parts]

    def qkv(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_TI, k_TI, v_TI = torch.split(self.qkv_proj(x_TD), self.sizes, dim=-1)
        return q_TI, k_TI, v_TI


class FusedMLP(nn.Module):
    """A gated MLP whose gate and up are one stored matrix."""

    part = "feed-forward"

    def __init__(self, s: DecoderSettings) -> None:
        super().__init__()
        self.gate_up_proj = s.column(s.hidden, 2 * s.width, parts=[s.width, s.width])
        self.down_proj = s.row(s.width, s.hidden)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.shard)
        self.act = Activation(s.activation, s.shard.part(s.width, "MLP columns"), s.dtype, gated=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        gate_TF, up_TF = self.gate_up_proj(x_TD).chunk(2, dim=-1)
        out: Tensor = self.all_reduce(self.down_proj(self.act(gate_TF, up_TF)))
        return out


class FusedBlock(Block):
    """Phi-3's block."""

    attention = FusedSelfAttention

    def feed_forward(self, s: DecoderSettings, layer: int) -> nn.Module:
        return FusedMLP(s)


class Phi3(Decoder):
    """Phi-3, Phi-3.5 and Phi-4 in their text-only form."""

    block = FusedBlock


def build(fields: Fields, storage: Storage) -> Phi3:
    """Contexts stretched by longrope are refused where the rope is read."""
    windows = (read_window(fields),) * fields.layers
    settings = read_settings(fields, storage, partial_rotary=True, windows=windows)
    if settings.rope.scaling is not None:  # old Phi-3 configs say "yarn" and mean longrope
        raise fields.refuse("rope scaling of Phi-3 is not supported; its checkpoints use longrope under several names")
    return Phi3(settings)
