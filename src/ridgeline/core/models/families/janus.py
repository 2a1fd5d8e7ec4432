"""Janus and Janus-Pro (arXiv:2410.13848, arXiv:2501.17811): Llama that reads images through a tower, and draws them as
tokens of a vocabulary of their own.

It is loaded to read or to draw. Who reads has a tower, whose rows stand in the prompt for an image, and the head of
text. Who draws has the rows of image tokens beside those of text, and a head that knows image tokens alone; its ids are
those of image tokens, then those of text, moved on by as many. The autoencoder that makes pixels of tokens is another
network (vq_autoencoder.py).

Shapes: T rows of a step, E rows of a tower, R rows that are wanted, D hidden.
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
from ridgeline.core.models.common.llama_decoder import read_trunk
from ridgeline.core.models.common.model import Model, PlacedRows
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
    """A patch's row and its position's, which the first norm adds."""

    part = "feed-forward"  # of the patches' matrix, which no part of a block has

    def __init__(self, d: Dimensions, channels: int, patch: int) -> None:
        super().__init__()
        self.patch_embedding = PatchEmbedding(channels, patch, d.hidden, d.dtype)
        self.position_embedding = Embedding(d.context, d.hidden, d.dtype)

    @override
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
        self.embeddings = VisionEmbeddings(d, channels, patch)
        self.encoder = ClipLayers(
            ClipBlock(d, attention_op(d, -1, ENCODER_FULL), _PROJECTIONS, bias=bias) for _ in range(d.layers)
        )
        self.post_layernorm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, x_EI: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """x_EI fp32 [patches, numbers], positions_E int64 [patches] -> the last states, normed [patches, hidden]."""
        x_ED, y_ED = self.embeddings(x_EI, positions_E)
        for block in self.encoder.layers:
            x_ED, y_ED = block(x_ED, y_ED, kv)
        out_ED: Tensor = self.post_layernorm(x_ED, y_ED)[1]
        return out_ED


def read_tower(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, VisionTower]:
    """The tower of a `vision_config`, as Janus spells it."""
    fields.require_off("use_qk_norm")  # the reference's does not fit its heads
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


class Aligner(nn.Module):
    """`fc1`, then `hidden_layers`, so many matrices in all; each has a bias, and what each but the last gives passes an
    activation.
    """

    part = "feed-forward"
    sees = False  # whether it is of what reads images, for the bill

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
            else:  # which is unnamed: its matrix has the name of the layer
                self.hidden_layers[f"activated_{layer}"] = ActivatedProjections({layer: other}, activation)

    @override
    def forward(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]."""
        first = self.activated if self.hidden_layers else self.fc1
        x_TO: Tensor = first(x_TI)
        for layer in self.hidden_layers.values():
            x_TO = layer(x_TO)
        return x_TO


_ARCHITECTURE = "JanusForConditionalGeneration"
_TEXT = ("model.language_model.", "model.")
_READS = (_TEXT, ("lm_head", "lm_head"), ("model.", ""))
"""How names begin in checkpoints, and how in the model that reads."""
_DRAWS = (
    _TEXT,
    ("model.generation_embeddings", "model.embed_tokens.generation_embeddings"),
    ("model.generation_aligner", "model.embed_tokens.generation_aligner"),
    ("model.", ""),
)
"""The same in the one that draws."""
_PASSED_OVER_BY_READERS = (r"model\.(vqmodel|generation_\w+)\..*",)
_PASSED_OVER_BY_DRAWERS = (r"lm_head\..*|model\.(vqmodel|vision_model|aligner)\..*",)


class JanusReader(Decoder):
    """Llama whose prompts may have images in them."""

    def __init__(
        self, d: Dimensions, trunk: Backbone, tower: VisionTower, aligner: Aligner, placeholder: int, *, tied: bool
    ) -> None:
        """placeholder: the id of a place in a prompt that a patch takes."""
        trunk.embed_tokens = PlacedEmbedding(d.vocabulary, d.hidden, d.dtype)
        super().__init__(d, trunk, tied=tied)
        self.images = PlacedRows(placeholder, tower.patches, tower.channels * tower.patch**2)
        self.vision_model, self.aligner = tower, aligner
        aligner.sees = True

    @override
    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """As Model.encode, of the patches of whole images: what stands for each."""
        out_ED: Tensor = self.aligner(self.vision_model(ids_E, positions_E, kv))
        return out_ED

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden; ids below 0 are rows of what `encode` gave, -1 the first."""
        out_RD: Tensor = self.get_submodule(self.trunk_name)(ids_T, positions_T, kv, rows_R, encoded_ED)
        return out_RD

    @override
    def decode_ops(self) -> list[Op]:
        """As Model.decode_ops: all but those of the tower and of its aligner."""
        return [op for path, op in self.ops() if not path.startswith(("vision_model.", "aligner."))]


class TwoVocabularies(nn.Module):
    """What stands in the place of a trunk's embedding: a row of its own width for each image token, brought to the
    trunk's, or the row of a token of text, whose id is moved on by the number of the image tokens.
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
        """ids_T int64 [rows] -> [rows, hidden]. Both are looked up for each row: an aligner's product of a few rows is
        less than their sorting.
        """
        drawn_TD = self.generation_aligner(self.generation_embeddings(ids_T))
        return cast(Tensor, self.either(drawn_TD, self.text(ids_T), ids_T))


class GenerationHead(nn.Module):
    """vision_head(act(proj_out(x))), both with a bias."""

    part = "head"

    def __init__(self, inputs: int, width: int, codes: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.activated = ActivatedProjections({"proj_out": MatrixSpec(inputs, width, dtype, bias=True)}, activation)
        self.vision_head = LMHead(MatrixSpec(width, codes, dtype, bias=True))

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """x_RD [R, hidden] -> logits fp32 [R, codes]."""
        logits_RV: Tensor = self.vision_head(self.activated(x_RD))
        return logits_RV


class JanusDrawer(Model):
    """Llama that writes the tokens of an image behind a prompt. side: how many on a side of it."""

    def __init__(
        self, d: Dimensions, trunk: Backbone, embeddings: TwoVocabularies, head: GenerationHead, side: int
    ) -> None:
        super().__init__()
        self.context, self.storage, self.side = d.context, d.storage, side
        self.sampled_vocab_size = head.vision_head.matrix.outputs
        self.vocabulary = self.sampled_vocab_size + d.vocabulary
        trunk.embed_tokens = embeddings
        self.model = trunk
        self.generation_head = head
        self.note_kept()

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        out_RD: Tensor = self.model(ids_T, positions_T, kv, rows_R)
        return out_RD

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        """As Model.head, of image tokens."""
        logits_RV: Tensor = self.generation_head(x_RD)
        return logits_RV


def build(fields: Fields, storage: StorageConfig) -> JanusReader:
    """The model that reads images and writes text."""
    d, trunk = _read(fields, storage)
    fields.ignore("vq_config")  # of the one that draws
    vision = fields.inner("vision_config")
    tower_d, tower = read_tower(vision, storage)
    width = vision.count("projection_dim", 2048)
    aligner = Aligner(tower_d.hidden, width, _depth(vision, "depth"), tower_d.activation, d.dtype)
    if width != d.hidden:
        raise fields.refuse(f"projection_dim of vision_config is not the text's hidden_size, {d.hidden}")
    placeholder = fields.natural("image_token_id") if fields.has("image_token_id") else 100581
    if placeholder >= d.vocabulary:
        raise fields.refuse(f"image_token_id is {placeholder}; the text has ids 0 to {d.vocabulary - 1}")
    return JanusReader(d, trunk, tower, aligner, placeholder, tied=fields.flag("tie_word_embeddings", True))


def build_drawer(fields: Fields, storage: StorageConfig) -> JanusDrawer:
    """The model that reads text and writes the tokens of an image."""
    d, trunk = _read(fields, storage)
    fields.ignore("image_token_id", "tie_word_embeddings")  # of the one that reads
    vision, vq = fields.section("vision_config"), fields.section("vq_config")
    side = vision.count("image_size", 384) // vision.count("patch_size", 16)
    codes, code, width = vq.count("num_embeddings", 16384), vq.count("embed_dim", 8), vq.count("projection_dim", 2048)
    if vq.count("image_token_embed_dim", 2048) != d.hidden or width != d.hidden:
        raise vq.refuse(f"image_token_embed_dim and projection_dim are not the text's hidden_size, {d.hidden}")
    activation = read_activation(vq, "hidden_act", "gelu")
    aligner = Aligner(code, width, _depth(vq, "num_hidden_layers"), activation, d.dtype)
    head = GenerationHead(d.hidden, width, codes, activation, d.dtype)
    return JanusDrawer(d, trunk, TwoVocabularies(d, codes, code, aligner), head, side)


def _read(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Backbone]:
    """The text's trunk."""
    if storage.shard.size > 1:
        raise Indivisible("Janus is not divided over devices; give --devices 1")
    text = fields.inner("text_config", "torch_dtype", "dtype")
    text.require("model_type", "llama")
    d, trunk = read_trunk(text, storage)
    text.ignore("tie_word_embeddings")  # the whole model's says it
    return d, trunk


def _depth(fields: Fields, name: str) -> int:
    """Matrices of an aligner."""
    return fields.count(name, 2, most=MAX_LAYERS)


FAMILIES = (
    Family(_ARCHITECTURE, "janus", build, ignored=_PASSED_OVER_BY_READERS, prefixes=_READS, kind="vision"),
    Family(_ARCHITECTURE, "janus", build_drawer, ignored=_PASSED_OVER_BY_DRAWERS, prefixes=_DRAWS, kind="drawer"),
)
