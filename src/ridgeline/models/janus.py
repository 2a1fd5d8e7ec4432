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

from ridgeline.models.aligner import Aligner
from ridgeline.models.decoder import Decoder, Trunk
from ridgeline.models.dimensions import Dimensions
from ridgeline.models.fields import MAX_LAYERS, Fields
from ridgeline.models.llama import read_activation, read_trunk
from ridgeline.models.model import Model, PlacedRows
from ridgeline.models.storage import Storage
from ridgeline.models.vision_tower import VisionTower, read_tower
from ridgeline.ops.activation import ActivatedProjections
from ridgeline.ops.embedding import EitherEmbedding, IndexedEmbedding, PlacedEmbedding
from ridgeline.ops.kv_context import KVContext
from ridgeline.ops.linear import Head
from ridgeline.ops.matrix import MatrixSpec
from ridgeline.ops.op import Op
from ridgeline.ops.shard import Indivisible

ARCHITECTURE = "JanusForConditionalGeneration"
_TEXT = ("model.language_model.", "model.")
READS = (_TEXT, ("lm_head", "lm_head"), ("model.", ""))
"""How names begin in checkpoints, and how in the model that reads."""
DRAWS = (
    _TEXT,
    ("model.generation_embeddings", "model.embed_tokens.generation_embeddings"),
    ("model.generation_aligner", "model.embed_tokens.generation_aligner"),
    ("model.", ""),
)
"""The same in the one that draws."""
PASSED_OVER_BY_READERS = (r"model\.(vqmodel|generation_\w+)\..*",)
PASSED_OVER_BY_DRAWERS = (r"lm_head\..*|model\.(vqmodel|vision_model|aligner)\..*",)


class JanusReader(Decoder):
    """Llama whose prompts may have images in them."""

    def __init__(
        self, d: Dimensions, trunk: Trunk, tower: VisionTower, aligner: Aligner, placeholder: int, *, tied: bool
    ) -> None:
        """placeholder: the id of a place in a prompt that a patch takes."""
        trunk.embed_tokens = PlacedEmbedding(d.vocabulary, d.hidden, d.dtype)
        super().__init__(d, trunk, tied=tied)
        self.images = PlacedRows(placeholder, tower.patches, tower.channels * tower.patch**2)
        self.vision_model, self.aligner = tower, aligner
        aligner.sees = True

    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """As Model.encode, of the patches of whole images: what stands for each."""
        out_ED: Tensor = self.aligner(self.vision_model(ids_E, positions_E, kv))
        return out_ED

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden; ids below 0 are rows of what `encode` gave, -1 the first."""
        out_RD: Tensor = self.get_submodule(self.trunk_name)(ids_T, positions_T, kv, rows_R, encoded_ED)
        return out_RD

    def decode_ops(self) -> list[Op]:
        """As Model.decode_ops: all but those of the tower and of its aligner."""
        return [op for path, op in self.ops() if not path.startswith(("vision_model.", "aligner."))]


class TwoVocabularies(nn.Module):
    """What stands in the place of a trunk's embedding: a row of its own width for each image token, brought to the
    trunk's, or the row of a token of text, whose id is moved on by the number of the image tokens."""

    def __init__(self, d: Dimensions, codes: int, width: int, aligner: Aligner) -> None:
        super().__init__()
        self.text = IndexedEmbedding(d.vocabulary, d.hidden, d.dtype, offset=-codes)
        self.text.unnamed = True
        self.generation_embeddings = IndexedEmbedding(codes, width, d.dtype)
        self.generation_aligner = aligner
        self.either = EitherEmbedding(codes, d.hidden, d.dtype)

    def forward(self, ids_T: Tensor) -> Tensor:
        """ids_T int64 [rows] -> [rows, hidden]. Both are looked up for each row: an aligner's product of a few rows is
        less than their sorting."""
        drawn_TD = self.generation_aligner(self.generation_embeddings(ids_T))
        return cast(Tensor, self.either(drawn_TD, self.text(ids_T), ids_T))


class GenerationHead(nn.Module):
    """vision_head(act(proj_out(x))), both with a bias."""

    part = "head"

    def __init__(self, inputs: int, width: int, codes: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.activated = ActivatedProjections({"proj_out": MatrixSpec(inputs, width, dtype, bias=True)}, activation)
        self.vision_head = Head(MatrixSpec(width, codes, dtype, bias=True))

    def forward(self, x_RD: Tensor) -> Tensor:
        """x_RD [R, hidden] -> logits fp32 [R, codes]."""
        logits_RV: Tensor = self.vision_head(self.activated(x_RD))
        return logits_RV


class JanusDrawer(Model):
    """Llama that writes the tokens of an image behind a prompt. side: how many on a side of it."""

    def __init__(
        self, d: Dimensions, trunk: Trunk, embeddings: TwoVocabularies, head: GenerationHead, side: int
    ) -> None:
        super().__init__()
        self.context, self.storage, self.side = d.context, d.storage, side
        self.outputs = head.vision_head.matrix.outputs
        self.vocabulary = self.outputs + d.vocabulary
        trunk.embed_tokens = embeddings
        self.model = trunk
        self.generation_head = head
        self.note_kept()

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden."""
        out_RD: Tensor = self.model(ids_T, positions_T, kv, rows_R)
        return out_RD

    def head(self, x_RD: Tensor) -> Tensor:
        """As Model.head, of image tokens."""
        logits_RV: Tensor = self.generation_head(x_RD)
        return logits_RV


def build(fields: Fields, storage: Storage) -> JanusReader:
    """The model that reads images and writes text."""
    d, trunk = _read(fields, storage)
    fields.passed_over("vq_config")  # of the one that draws
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


def build_drawer(fields: Fields, storage: Storage) -> JanusDrawer:
    """The model that reads text and writes the tokens of an image."""
    d, trunk = _read(fields, storage)
    fields.passed_over("image_token_id", "tie_word_embeddings")  # of the one that reads
    vision, vq = fields.section("vision_config"), fields.section("vq_config")
    side = vision.count("image_size", 384) // vision.count("patch_size", 16)
    codes, code, width = vq.count("num_embeddings", 16384), vq.count("embed_dim", 8), vq.count("projection_dim", 2048)
    if vq.count("image_token_embed_dim", 2048) != d.hidden or width != d.hidden:
        raise vq.refuse(f"image_token_embed_dim and projection_dim are not the text's hidden_size, {d.hidden}")
    activation = read_activation(vq, "hidden_act", "gelu")
    aligner = Aligner(code, width, _depth(vq, "num_hidden_layers"), activation, d.dtype)
    head = GenerationHead(d.hidden, width, codes, activation, d.dtype)
    return JanusDrawer(d, trunk, TwoVocabularies(d, codes, code, aligner), head, side)


def _read(fields: Fields, storage: Storage) -> tuple[Dimensions, Trunk]:
    """The text's trunk."""
    if storage.shard.size > 1:
        raise Indivisible("Janus is not divided over devices; give --devices 1")
    text = fields.inner("text_config", "torch_dtype", "dtype")
    text.refuse_but("model_type", "llama")
    d, trunk = read_trunk(text, storage)
    text.passed_over("tie_word_embeddings")  # the whole model's says it
    return d, trunk


def _depth(fields: Fields, name: str) -> int:
    """Matrices of an aligner."""
    return fields.count(name, 2, most=MAX_LAYERS)
