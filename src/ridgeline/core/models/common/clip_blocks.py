"""The block of CLIP (arXiv:2103.00020), used by its text encoder and by vision towers (arXiv:2303.15343).

Shapes: T rows of a step, D hidden.
"""

from collections.abc import Iterable

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import MLP
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.encoder_decoder import PROJECTIONS, PlainSelfAttention, ProjectionNames
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.norm import AddLayerNorm


class ClipBlock(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); the next norm performs the second addition."""

    def __init__(
        self, d: Dimensions, attend: Attention, names: ProjectionNames = PROJECTIONS, *, bias: bool = True
    ) -> None:
        """Build a CLIP block around an attention op.

        Args:
            d: The sizes.
            attend: The attention op.
            names: The checkpoint's names of the projections.
            bias: Whether the query, key and value projections have a bias.
        """
        super().__init__()
        self.layer_norm1 = AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.self_attn = PlainSelfAttention(d, attend, names, bias=bias, output_bias=True)
        self.layer_norm2 = AddLayerNorm(d.hidden, d.eps, d.dtype)
        up = {"fc1": d.column(d.hidden, d.width, bias=True)}
        self.mlp = MLP(d, up, "fc2", d.row(d.width, d.hidden, bias=True))

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a CLIP block; it comes and goes as two summands [rows, hidden]."""
        x_TD, normed_TD = self.layer_norm1(x_TD, y_TD)
        x_TD, normed_TD = self.layer_norm2(x_TD, self.self_attn(normed_TD, kv))
        return x_TD, self.mlp(normed_TD)


class ClipLayers(nn.Module):
    """The list of a CLIP model's blocks, which checkpoints call `encoder`."""

    def __init__(self, blocks: Iterable[ClipBlock]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
