"""The text encoder of CLIP (Radford et al., arXiv:2103.00020), with causal attention as in GPT-2.

Because attention is causal, the last position, the end of the text, has seen the whole text and represents it.
Diffusion models read prompts with this encoder too, and use the states of all positions.
"""

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.clip_blocks import ClipBlock, ClipLayers
from ridgeline.core.models.common.dimensions import Dimensions, divided, read_activation
from ridgeline.core.models.common.embedder import Embedder
from ridgeline.core.models.common.encoder import Encoder, uncached_kv_spec
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.work import CAUSAL

_BUFFERS = (r"(.*\.)?embeddings\.position_ids",)
_IMAGE_HALF = (*_BUFFERS, r"vision_model\..*", r"visual_projection\.weight", r"logit_scale")
"""Patterns of the image encoder's tensors, in checkpoints of a whole CLIP model."""


class ClipEmbeddings(nn.Module):
    """CLIP's token and position embeddings, which the first norm adds up."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.token_embedding = Embedding(d.vocabulary, d.hidden, d.dtype)
        self.position_embedding = Embedding(d.context, d.hidden, d.dtype)

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return token and position embeddings, [rows, hidden] each, for ids_T and positions_T, int64 [rows]."""
        return self.token_embedding(ids_T), self.position_embedding(positions_T)


class ClipBackbone(nn.Module):
    """CLIP's text encoder: embeddings, blocks and final norm; checkpoints call it `text_model`."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.embeddings = ClipEmbeddings(d)
        self.encoder = ClipLayers(
            ClipBlock(d, Attention(layer, d.own_heads, uncached_kv_spec(d, CAUSAL))) for layer in range(d.layers)
        )
        self.final_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """Return the last hidden states of the requested rows, after the final norm, [R, hidden]."""
        x_TD, y_TD = self.embeddings(ids_T, positions_T)
        for block in self.encoder.layers:
            x_TD, y_TD = block(x_TD, y_TD, kv)
        return self.final_layer_norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))[1]


def _read(fields: Fields, storage: StorageConfig) -> Dimensions:
    """Read the sizes of CLIP's text encoder from its config."""
    fields.ignore("tie_word_embeddings")  # there is no head
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


def build(fields: Fields, storage: StorageConfig) -> Encoder:
    """Build CLIP's text encoder that returns hidden states; the last one represents the text."""
    fields.ignore("projection_dim")  # the width of a projection that this architecture lacks
    d = _read(fields, storage)
    return Encoder(d, ClipBackbone(d), "text_model", mode="last")


def build_projected(fields: Fields, storage: StorageConfig) -> Embedder:
    """Build CLIP's text encoder that returns one vector per text, in the space that texts and images share."""
    d, width = _read(fields, storage), fields.count("projection_dim", 512)
    projection = Linear(d.whole(d.hidden, width), exempt=True)
    encoder = Encoder(d, ClipBackbone(d), "text_model", mode="last")
    return Embedder(encoder, "last", d.hidden, {"text_projection": projection}, width=width)


def build_half(fields: Fields, storage: StorageConfig) -> Embedder:
    """Build the projected text encoder from the config of a whole CLIP model, which also has a vision config."""
    fields.ignore("text_config_dict", "vision_config_dict", "logit_scale_init_value")  # the first two are old copies
    return build_projected(fields.inner("text_config", "projection_dim"), storage)


FAMILIES = (
    Family("CLIPTextModel", "clip_text_model", build, "text_model.", ignored=_BUFFERS, kind="encoder"),
    Family(
        "CLIPTextModelWithProjection", "clip_text_model", build_projected, "text_model.", ignored=_BUFFERS,
        kind="encoder",
    ),
    Family("CLIPModel", "clip", build_half, "text_model.", ignored=_IMAGE_HALF, kind="encoder"),
)  # fmt: skip
