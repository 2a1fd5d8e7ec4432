"""The transformer that reads an image's patches (Dosovitskiy et al., arXiv:2010.11929), as SigLIP (arXiv:2303.15343)
and Janus have it: learned positions, LayerNorms before each part, no row that stands for all, a norm at the end.

Shapes: E patches of a step's images, I numbers of a patch, D hidden.
"""

from torch import Tensor, nn

from ridgeline.models.clip import Block, Layers
from ridgeline.models.dimensions import Dimensions
from ridgeline.models.encoder_decoder import Names, attention_op
from ridgeline.models.fields import Fields
from ridgeline.models.llama import divided, read_activation
from ridgeline.models.storage import Storage
from ridgeline.ops.embedding import Embedding
from ridgeline.ops.kv_context import KVContext
from ridgeline.ops.norm import AddLayerNorm
from ridgeline.ops.patches import PatchEmbedding
from ridgeline.ops.work import ENCODER_FULL

_PROJECTIONS = Names("q_proj", "k_proj", "v_proj", "projection_layer")


class Embeddings(nn.Module):
    """A patch's row and its position's, which the first norm adds."""

    part = "feed-forward"  # of the patches' matrix, which no part of a block has

    def __init__(self, d: Dimensions, channels: int, patch: int) -> None:
        super().__init__()
        self.patch_embedding = PatchEmbedding(channels, patch, d.hidden, d.dtype)
        self.position_embedding = Embedding(d.context, d.hidden, d.dtype)

    def forward(self, x_EI: Tensor, positions_E: Tensor) -> tuple[Tensor, Tensor]:
        """x_EI fp32 [patches, numbers], positions_E int64 [patches] -> two summands [patches, hidden]."""
        return self.patch_embedding(x_EI), self.position_embedding(positions_E)


class VisionTower(nn.Module):
    """What checkpoints call `vision_model`. channels, patch: of a pixel, and pixels of a patch's side."""

    sees = True  # of the bill

    def __init__(self, d: Dimensions, channels: int, patch: int, *, bias: bool) -> None:
        """d.context: patches of an image. bias: whether queries, keys and values have one."""
        super().__init__()
        self.channels, self.patch, self.patches = channels, patch, d.context
        self.embeddings = Embeddings(d, channels, patch)
        self.encoder = Layers(
            Block(d, attention_op(d, -1, ENCODER_FULL), _PROJECTIONS, bias=bias) for _ in range(d.layers)
        )
        self.post_layernorm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    def forward(self, x_EI: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """x_EI fp32 [patches, numbers], positions_E int64 [patches] -> the last states, normed [patches, hidden]."""
        x_ED, y_ED = self.embeddings(x_EI, positions_E)
        for block in self.encoder.layers:
            x_ED, y_ED = block(x_ED, y_ED, kv)
        out_ED: Tensor = self.post_layernorm(x_ED, y_ED)[1]
        return out_ED


def read_tower(fields: Fields, storage: Storage) -> tuple[Dimensions, VisionTower]:
    """The tower of a `vision_config`, as Janus spells it."""
    fields.refuse_if("use_qk_norm")  # the reference's does not fit its heads
    image, patch = fields.count("image_size", 384), fields.count("patch_size", 16)
    if image % patch:
        raise fields.refuse(f"image_size {image} does not divide into patches of {patch}")
    patches = (image // patch) ** 2
    tokens = fields.count("num_image_tokens", 576)
    if tokens != patches:
        raise fields.refuse(f"num_image_tokens is {tokens}; an image of {image} x {image} has {patches} patches")
    hidden, heads = fields.count("hidden_size", 1024), fields.count("num_attention_heads", 16)
    d = Dimensions(
        vocabulary=1,
        context=patches,
        layers=fields.layers if fields.has("num_hidden_layers") else 24,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "hidden_size", hidden, heads),
        width=int(hidden * fields.positive("mlp_ratio", 4.0)),
        activation=read_activation(fields, "hidden_act", "gelu"),
        eps=fields.positive("layer_norm_eps", 1e-6),
        storage=storage,
    )
    channels, bias = fields.count("num_channels", 3), fields.flag("attention_bias", True)
    return d, VisionTower(d, channels, patch, bias=bias)
