"""Janus and Janus-Pro (arXiv:2410.13848, arXiv:2501.17811): Llama that reads images or generates their tokens.

A checkpoint is loaded for one of the two. The reader has a vision tower, whose rows represent an image in the prompt,
and the text head. The generator (drawer) has embeddings of image tokens next to those of text, and a head over image
tokens only. Its ids are those of image tokens, then those of text, shifted by the number of image tokens. The
autoencoder that turns tokens into pixels is another network (vq_autoencoder.py).

Shapes: T rows of a step, E rows of a tower, R requested rows, D hidden.
"""

from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.clip_blocks import ClipBlock, ClipLayers
from ridgeline.core.models.common.decoder import Backbone, Decoder
from ridgeline.core.models.common.dimensions import Dimensions, divided, read_activation
from ridgeline.core.models.common.encoder_decoder import ProjectionNames, attention_op
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields
from ridgeline.core.models.common.llama_decoder import build_backbone
from ridgeline.core.models.common.model import ImagePlaceholders, Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.embedding import EitherEmbedding, Embedding, IndexedEmbedding, PlacedEmbedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear, LMHead
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.patches import PatchEmbedding
from ridgeline.core.ops.shard import Indivisible
from ridgeline.core.ops.work import ENCODER_FULL

_PROJECTIONS = ProjectionNames("q_proj", "k_proj", "v_proj", "projection_layer")


class VisionEmbeddings(nn.Module):
    """The patch and position embeddings of Janus's vision tower, which the first norm adds up."""

    part = "feed-forward"  # for the patch embedding, which lies outside the blocks

    def __init__(self, d: Dimensions, channels: int, patch: int) -> None:
        super().__init__()
        self.patch_embedding = PatchEmbedding(channels, patch, d.hidden, d.dtype)
        self.position_embedding = Embedding(d.context, d.hidden, d.dtype)

    @override
    def forward(self, x_EI: Tensor, positions_E: Tensor) -> tuple[Tensor, Tensor]:
        """Return patch and position embeddings, [patches, hidden] each, from patches fp32 [patches, numbers]."""
        return self.patch_embedding(x_EI), self.position_embedding(positions_E)


class VisionTower(nn.Module):
    """The vision tower of Janus, a SigLIP-like encoder of patches; checkpoints call it `vision_model`."""

    sees = True  # counts as VISION in the parameter breakdown

    def __init__(self, d: Dimensions, channels: int, patch: int, *, bias: bool) -> None:
        """Build the vision tower of Janus.

        Args:
            d: The sizes; its context is the number of patches of an image.
            channels: Channels of a pixel.
            patch: Pixels on a side of a patch.
            bias: Whether queries, keys and values have a bias.
        """
        super().__init__()
        self.channels, self.patch, self.patches = channels, patch, d.context
        self.embeddings = VisionEmbeddings(d, channels, patch)
        self.encoder = ClipLayers(
            ClipBlock(d, attention_op(d, -1, ENCODER_FULL), _PROJECTIONS, bias=bias) for _ in range(d.layers)
        )
        self.post_layernorm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, x_EI: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """Return the last hidden states of the patches, after the final norm, [patches, hidden]."""
        x_ED, y_ED = self.embeddings(x_EI, positions_E)
        for block in self.encoder.layers:
            x_ED, y_ED = block(x_ED, y_ED, kv)
        return self.post_layernorm(x_ED, y_ED)[1]


def read_tower(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, VisionTower]:
    """Read the vision tower of a `vision_config` as Janus spells it; return its sizes and the tower."""
    fields.require_off("use_qk_norm")  # the reference's norms do not fit its heads
    image, patch = fields.count("image_size", 384), fields.count("patch_size", 16)
    if image % patch:
        raise fields.refuse(f"image_size {image} does not divide into patches of {patch}")
    patches = (image // patch) ** 2
    tokens = fields.count("num_image_tokens", 576)
    if tokens != patches:
        raise fields.refuse(f"num_image_tokens is {tokens}, but an image of {image} x {image} has {patches} patches")
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


class Aligner(nn.Module):
    """An MLP of `depth` matrices with biases, with an activation between them, which changes the width of rows.

    Checkpoints call the first matrix `fc1` and the others `hidden_layers`.
    """

    part = "feed-forward"
    sees = False  # whether it counts as VISION in the parameter breakdown

    def __init__(self, inputs: int, outputs: int, depth: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        first, other = (MatrixSpec(width, outputs, dtype, bias=True) for width in (inputs, outputs))
        if depth == 1:
            self.fc1: nn.Module = Linear(first)
        else:
            self.activated = ActivatedProjections({"fc1": first}, activation)
        self.hidden_layers = nn.ModuleDict()
        for layer in map(str, range(depth - 1)):
            if layer == str(depth - 2):
                self.hidden_layers[layer] = Linear(other)
            else:  # unnamed: its matrix has the name of the layer
                self.hidden_layers[f"activated_{layer}"] = ActivatedProjections({layer: other}, activation)

    @override
    def forward(self, x_TI: Tensor) -> Tensor:
        """Return the output of the MLP, [rows, outputs], for x_TI [rows, inputs]."""
        first = self.activated if self.hidden_layers else self.fc1
        x_TO: Tensor = first(x_TI)
        for layer in self.hidden_layers.values():
            x_TO = layer(x_TO)
        return x_TO


_ARCHITECTURE = "JanusForConditionalGeneration"
_TEXT = ("model.language_model.", "model.")
_READS = (_TEXT, ("lm_head", "lm_head"), ("model.", ""))
"""Pairs of a prefix of the checkpoint's names and the prefix in the model that reads images."""
_DRAWS = (
    _TEXT,
    ("model.generation_embeddings", "model.embed_tokens.generation_embeddings"),
    ("model.generation_aligner", "model.embed_tokens.generation_aligner"),
    ("model.", ""),
)
"""Pairs of a prefix of the checkpoint's names and the prefix in the model that generates images."""
_PASSED_OVER_BY_READERS = (r"model\.(vqmodel|generation_\w+)\..*",)
_PASSED_OVER_BY_DRAWERS = (r"lm_head\..*|model\.(vqmodel|vision_model|aligner)\..*",)


class JanusReader(Decoder):
    """The Janus model that reads images: Llama whose prompts may contain images."""

    def __init__(
        self, d: Dimensions, trunk: Backbone, tower: VisionTower, aligner: Aligner, placeholder: int, *, tied: bool
    ) -> None:
        """Build the Janus model that reads images, from its parts.

        Args:
            d: The sizes of the text model.
            trunk: The backbone of the text model.
            tower: The vision tower.
            aligner: The projection of the tower's rows to the text's width.
            placeholder: The token id at each position of an image.
            tied: Whether the head's weight is the embedding.
        """
        trunk.embed_tokens = PlacedEmbedding(d.vocabulary, d.hidden, d.dtype)
        super().__init__(d, trunk, tied=tied)
        self.images = ImagePlaceholders(placeholder, tower.patches, tower.channels * tower.patch**2)
        self.vision_model, self.aligner = tower, aligner
        aligner.sees = True

    @override
    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """Return the vision tower's row for each patch of whole images, in the text's width."""
        return self.aligner(self.vision_model(ids_E, positions_E, kv))

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states of the requested rows, of prompts that may contain images.

        Ids below 0 are rows of the encoded images, -1 the first.
        """
        return self.get_submodule(self.trunk_name)(ids_T, positions_T, kv, rows_R, encoded_ED)

    @override
    def decode_ops(self) -> list[Op]:
        """Return the ops that a decode step of Janus runs: all but those of the vision tower and the aligner."""
        return [op for path, op in self.ops() if not path.startswith(("vision_model.", "aligner."))]


class TwoVocabularies(nn.Module):
    """The embedding of image and text tokens, which takes the place of a backbone's embedding.

    Image tokens have rows of their own width, which the aligner projects to the backbone's. The ids of text tokens are
    shifted by the number of image tokens.
    """

    def __init__(self, d: Dimensions, codes: int, width: int, aligner: Aligner) -> None:
        super().__init__()
        self.text = IndexedEmbedding(d.vocabulary, d.hidden, d.dtype, offset=-codes)
        self.text.unnamed = True
        self.generation_embeddings = IndexedEmbedding(codes, width, d.dtype)
        self.generation_aligner = aligner
        self.either = EitherEmbedding(codes, d.hidden, d.dtype)

    @override
    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the embeddings [rows, hidden] of image and text tokens ids_T int64 [rows].

        It looks up both tables for each row, because the aligner's product of a few rows costs less than sorting them.
        """
        drawn_TD = self.generation_aligner(self.generation_embeddings(ids_T))
        return cast(Tensor, self.either(drawn_TD, self.text(ids_T), ids_T))


class GenerationHead(nn.Module):
    """Janus's head over image tokens: vision_head(act(proj_out(x))), both with a bias."""

    part = "head"

    def __init__(self, inputs: int, width: int, codes: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.activated = ActivatedProjections({"proj_out": MatrixSpec(inputs, width, dtype, bias=True)}, activation)
        self.vision_head = LMHead(MatrixSpec(width, codes, dtype, bias=True))

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """Return the logits of image tokens, fp32 [R, codes], for x_RD [R, hidden]."""
        return self.vision_head(self.activated(x_RD))


class JanusImageModel(Model):
    """The Janus model that generates images: Llama that continues a prompt with the tokens of an image.

    `side` is the number of tokens on a side of the image.
    """

    def __init__(
        self, d: Dimensions, trunk: Backbone, embeddings: TwoVocabularies, head: GenerationHead, side: int
    ) -> None:
        super().__init__()
        self.context, self.storage, self.side = d.context, d.storage, side
        self.sampled_vocab_size = head.vision_head.matrix.outputs
        self.vocabulary = self.sampled_vocab_size + d.vocabulary
        trunk.embed_tokens = embeddings
        self.model, self.trunk_name = trunk, "model"
        self.generation_head = head
        self.collect_cache_specs()

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        """Return the logits of image tokens."""
        return self.generation_head(x_RD)


def build(fields: Fields, storage: StorageConfig) -> JanusReader:
    """Build the Janus model that reads images and generates text."""
    d, trunk = _read(fields, storage)
    fields.ignore("vq_config")  # of the model that generates images
    vision = fields.inner("vision_config")
    tower_d, tower = read_tower(vision, storage)
    width = vision.count("projection_dim", 2048)
    aligner = Aligner(tower_d.hidden, width, _depth(vision, "depth"), tower_d.activation, d.dtype)
    if width != d.hidden:
        raise fields.refuse(f"projection_dim of vision_config must be the text's hidden_size, {d.hidden}")
    placeholder = fields.natural("image_token_id") if fields.has("image_token_id") else 100581
    if placeholder >= d.vocabulary:
        raise fields.refuse(f"image_token_id is {placeholder}; it must be from 0 to {d.vocabulary - 1}")
    return JanusReader(d, trunk, tower, aligner, placeholder, tied=fields.flag("tie_word_embeddings", True))


def build_janus_image_model(fields: Fields, storage: StorageConfig) -> JanusImageModel:
    """Build the Janus model that reads text and generates the tokens of an image."""
    d, trunk = _read(fields, storage)
    fields.ignore("image_token_id", "tie_word_embeddings")  # of the model that reads images
    vision, vq = fields.section("vision_config"), fields.section("vq_config")
    side = vision.count("image_size", 384) // vision.count("patch_size", 16)
    codes, code, width = vq.count("num_embeddings", 16384), vq.count("embed_dim", 8), vq.count("projection_dim", 2048)
    if vq.count("image_token_embed_dim", 2048) != d.hidden or width != d.hidden:
        raise vq.refuse(f"image_token_embed_dim and projection_dim must be the text's hidden_size, {d.hidden}")
    activation = read_activation(vq, "hidden_act", "gelu")
    aligner = Aligner(code, width, _depth(vq, "num_hidden_layers"), activation, d.dtype)
    head = GenerationHead(d.hidden, width, codes, activation, d.dtype)
    return JanusImageModel(d, trunk, TwoVocabularies(d, codes, code, aligner), head, side)


def _read(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Backbone]:
    """Read the text model of a Janus config; return its sizes and its backbone."""
    if storage.shard.size > 1:
        raise Indivisible("Janus cannot be divided over devices; give --devices 1")
    text = fields.inner("text_config", "torch_dtype", "dtype")
    text.require("model_type", "llama")
    d, trunk = build_backbone(text, storage)
    text.ignore("tie_word_embeddings")  # the outer config states it
    return d, trunk


def _depth(fields: Fields, name: str) -> int:
    """Read the number of matrices of an aligner (an MLP) of Janus."""
    return fields.count(name, 2, most=MAX_LAYERS)


FAMILIES = (
    Family(_ARCHITECTURE, "janus", build, ignored=_PASSED_OVER_BY_READERS, prefixes=_READS, kind="vision"),
    Family(
        _ARCHITECTURE, "janus", build_janus_image_model, ignored=_PASSED_OVER_BY_DRAWERS, prefixes=_DRAWS, kind="drawer"
    ),
)
