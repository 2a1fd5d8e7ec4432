"""CLIP's text half (Radford et al., arXiv:2103.00020): a position sees itself and those before it, as in GPT-2, so that
the last one, the end of the text, has seen it all and stands for it.

Diffusion models read prompts with it too, of whose states they take every one.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from ridgeline.models.decoder import MLP
from ridgeline.models.dimensions import Dimensions
from ridgeline.models.embedder import Embedder
from ridgeline.models.encoder import Encoder, looks_at
from ridgeline.models.encoder_decoder import PROJECTIONS, Names, SelfAttention
from ridgeline.models.fields import Fields
from ridgeline.models.llama import divided, read_activation
from ridgeline.models.storage import Storage
from ridgeline.ops.attention import Attention
from ridgeline.ops.embedding import Embedding
from ridgeline.ops.kv_context import KVContext
from ridgeline.ops.linear import Linear
from ridgeline.ops.norm import AddLayerNorm
from ridgeline.ops.rows import RowPicker
from ridgeline.ops.work import CAUSAL

BUFFERS = (r"(.*\.)?embeddings\.position_ids",)
IMAGE_HALF = (*BUFFERS, r"vision_model\..*", r"visual_projection\.weight", r"logit_scale")
"""What a checkpoint of both halves has beside the text's tensors."""


class Embeddings(nn.Module):
    """A token's row and its position's, which the first norm adds."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.token_embedding = Embedding(d.vocabulary, d.hidden, d.dtype)
        self.position_embedding = Embedding(d.context, d.hidden, d.dtype)

    def forward(self, ids_T: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """ids_T, positions_T int64 [rows] -> two summands [rows, hidden]."""
        return self.token_embedding(ids_T), self.position_embedding(positions_T)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the second sum is left to the norm that follows."""

    def __init__(self, d: Dimensions, attend: Attention, names: Names = PROJECTIONS, *, bias: bool = True) -> None:
        """names: of the projections. bias: whether those to queries, keys and values have one."""
        super().__init__()
        self.layer_norm1 = AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.self_attn = SelfAttention(d, attend, names, bias=bias, output_bias=True)
        self.layer_norm2 = AddLayerNorm(d.hidden, d.eps, d.dtype)
        up = {"fc1": d.column(d.hidden, d.width, bias=True)}
        self.mlp = MLP(d, up, "fc2", d.row(d.width, d.hidden, bias=True))

    def forward(self, x_TD: Tensor, y_TD: Tensor, kv: KVContext) -> tuple[Tensor, Tensor]:
        """The stream as two summands [rows, hidden] -> as two summands."""
        x_TD, normed_TD = self.layer_norm1(x_TD, y_TD)
        x_TD, normed_TD = self.layer_norm2(x_TD, self.self_attn(normed_TD, kv))
        return x_TD, self.mlp(normed_TD)


class Layers(nn.Module):
    """The blocks: what checkpoints call `encoder`."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)


class Trunk(nn.Module):
    """Embeddings, blocks and the last norm: what checkpoints call `text_model`."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.embeddings = Embeddings(d)
        self.encoder = Layers(Block(d, Attention(layer, d.own_heads, looks_at(d, CAUSAL))) for layer in range(d.layers))
        self.final_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """ids_T, positions_T int64 [rows] -> hidden states of the rows that are wanted, normed [R, hidden]."""
        x_TD, y_TD = self.embeddings(ids_T, positions_T)
        for block in self.encoder.layers:
            x_TD, y_TD = block(x_TD, y_TD, kv)
        out_RD: Tensor = self.final_layer_norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))[1]
        return out_RD


def _read(fields: Fields, storage: Storage) -> Dimensions:
    fields.passed_over("tie_word_embeddings")  # there is no head
    hidden, heads = fields.count("hidden_size", 512), fields.count("num_attention_heads", 8)
    return Dimensions(
        vocabulary=fields.count("vocab_size", 49408),
        context=fields.count("max_position_embeddings", 77),
        layers=fields.layers if fields.has("num_hidden_layers") else 12,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "hidden_size", hidden, heads),
        width=fields.count("intermediate_size", 2048),
        activation=read_activation(fields, "hidden_act", "quick_gelu"),
        eps=fields.positive("layer_norm_eps", 1e-5),
        storage=storage,
    )


def build(fields: Fields, storage: Storage) -> Encoder:
    """The states of a text, of which the last stands for it."""
    fields.passed_over("projection_dim")  # of the matrix that this architecture leaves out
    d = _read(fields, storage)
    return Encoder(d, Trunk(d), "text_model", mode="last")


def build_projected(fields: Fields, storage: Storage) -> Embedder:
    """The vector of a text in the space that it shares with images."""
    d, width = _read(fields, storage), fields.count("projection_dim", 512)
    projection = Linear(d.whole(d.hidden, width), exempt=True)
    encoder = Encoder(d, Trunk(d), "text_model", mode="last")
    return Embedder(encoder, "last", d.hidden, {"text_projection": projection}, width=width)


def build_half(fields: Fields, storage: Storage) -> Embedder:
    """The same of a checkpoint of both halves, whose config has one for each, and what they share."""
    fields.passed_over("text_config_dict", "vision_config_dict", "logit_scale_init_value")  # the first two: old copies
    return build_projected(fields.inner("text_config", "projection_dim"), storage)
