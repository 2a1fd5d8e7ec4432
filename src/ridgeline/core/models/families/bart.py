"""BART (Lewis et al., arXiv:1910.13461), and Marian (arXiv:1804.00344) as in Helsinki-NLP's opus-mt models.

They have norms after each addition, biases, and a bias of the logits. Positions are learned (BART) or sinusoidal
(Marian).
"""

import math
from collections.abc import Callable

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.encoder_decoder import (
    PROJECTIONS,
    CrossAttention,
    EncoderDecoder,
    FeedForward,
    PlainSelfAttention,
    attention_op,
    read_stack,
)
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.embedding import Embedding, IndexedEmbedding, SinusoidalPositions
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.work import CAUSAL, CROSS, ENCODER_FULL

_RENAMES = (("final_logits_bias", "lm_head.bias"),)
_IGNORED = (r"(model\.)?(encoder|decoder)\.version",)
_IGNORED_OF_MARIAN = (r"(model\.)?(encoder|decoder)\.embed_positions\.weight",)  # positions are computed
_SHARED, _OF_ENCODER, _OF_DECODER, _HEAD = (
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
_OFFSET = 2  # rows of BART's position table before that of position 0


class BartBlock(nn.Module):
    """A post-norm block: norm(x + attention(x)), in a decoder norm(x + cross-attention(x)), then norm(x + mlp(x))."""

    def __init__(self, d: Dimensions, attention: PlainSelfAttention, cross: CrossAttention | None = None) -> None:
        super().__init__()
        self.self_attn, self.encoder_attn, self.mlp = attention, cross, FeedForward(d)
        self.self_attn_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.encoder_attn_layer_norm = None if cross is None else AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.final_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, x_ND: Tensor, kv: KVContext, encoded_ED: Tensor | None = None) -> Tensor:
        """Return the block's output [rows, hidden] for x_ND [rows, hidden]; encoded_ED are the encoder's states."""
        _, x_ND = self.self_attn_layer_norm(x_ND, self.self_attn(x_ND, kv))
        if self.encoder_attn is not None and self.encoder_attn_layer_norm is not None:
            _, x_ND = self.encoder_attn_layer_norm(x_ND, self.encoder_attn(x_ND, encoded_ED, kv))
        return self.final_layer_norm(x_ND, self.mlp(x_ND))[1]


class LearnedStart(nn.Module):
    """The start of a stack with learned positions: norm(token + position)."""

    unnamed = True

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.embed_positions = IndexedEmbedding(d.context + _OFFSET, d.hidden, d.dtype, offset=_OFFSET)
        self.layernorm_embedding = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, x_ND: Tensor, positions_N: Tensor) -> Tensor:
        """Return the stack's input [rows, hidden], from embedded tokens [rows, hidden] and their positions [rows]."""
        return self.layernorm_embedding(x_ND, self.embed_positions(positions_N))[1]


class BartStack(nn.Module):
    """The encoder or the decoder of BART: the module that adds positions, and the blocks."""

    def __init__(self, start: nn.Module, blocks: list[BartBlock]) -> None:
        super().__init__()
        self.start = start
        self.layers = nn.ModuleList(blocks)


class BartBackbone(nn.Module):
    """BART's encoder and decoder over one token embedding; checkpoints call it `model`."""

    def __init__(self, d: Dimensions, encoder: BartStack, decoder: BartStack, *, scaled: bool) -> None:
        """Join BART's encoder and decoder; `scaled` says whether embedded tokens are multiplied by sqrt(hidden)."""
        super().__init__()
        scale = math.sqrt(d.hidden) if scaled else None
        self.shared = Embedding(d.vocabulary, d.hidden, d.dtype, d.vocabulary_shard, scale=scale)
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.vocabulary_shard)
        self.encoder, self.decoder = encoder, decoder


class Bart(EncoderDecoder):
    """A BART or Marian model: a backbone, and a head with a bias that is tied to the embedding."""

    def __init__(self, d: Dimensions, trunk: BartBackbone) -> None:
        super().__init__(d, d.context, head_bias=True)
        self.wanted = RowPicker()
        self.model = trunk
        self.finish({"lm_head.matrix.weight": "model.shared.weight"})
        self.tables = TokenTables(
            {_OF_DECODER: "model.shared", _OF_ENCODER: "model.encoder.embed_tokens", _HEAD: "lm_head.matrix"},
            dict.fromkeys((_HEAD, _OF_DECODER, _OF_ENCODER), _SHARED),
        )

    @override
    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        table = getattr(self.model.encoder, "embed_tokens", self.model.shared)
        x_ED: Tensor = self.model.encoder.start(self.model.all_reduce(table(ids_E)), positions_E)
        for block in self.model.encoder.layers:
            x_ED = block(x_ED, kv)
        return x_ED

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        x_TD: Tensor = self.model.decoder.start(self.model.all_reduce(self.model.shared(ids_T)), positions_T)
        for block in self.model.decoder.layers:
            x_TD = block(x_TD, kv, encoded_ED)
        return self.wanted(x_TD, rows_R)


def build(fields: Fields, storage: StorageConfig) -> Bart:
    """Build the model of a BART config."""
    fields.ignore("force_bos_token_to_be_generated")  # a setting of generation
    for name in ("static_position_embeddings", "extra_pos_embeddings"):
        fields.require_off(name, *((_OFFSET,) if name.startswith("extra") else ()))
    if not fields.flag("normalize_embedding", True):
        raise fields.refuse("normalize_embedding = false is not supported")
    return _build(fields, storage, LearnedStart)


def build_marian(fields: Fields, storage: StorageConfig) -> Bart:
    """Build the model of an opus-mt config, with one vocabulary for both languages."""
    fields.require_off("normalize_embedding")
    for name in ("static_position_embeddings", "share_encoder_decoder_embeddings"):
        if not fields.flag(name, True):
            raise fields.refuse(f"{name} = false is not supported")
    if fields.has("decoder_vocab_size") and fields.count("decoder_vocab_size") != fields.count("vocab_size"):
        raise fields.refuse("a decoder_vocab_size that differs from vocab_size is not supported")
    return _build(fields, storage, lambda d: SinusoidalPositions(d.context, d.hidden, d.dtype))


def _build(fields: Fields, storage: StorageConfig, start: Callable[[Dimensions], nn.Module]) -> Bart:
    """Build a BART or Marian model whose stacks begin with the module that `start` returns.

    This module adds positions and may norm the sum.
    """
    fields.ignore("is_encoder_decoder", "num_hidden_layers")  # the latter repeats encoder_layers
    for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits"):
        fields.require_off(name)
    if not fields.flag("tie_word_embeddings", True):
        raise fields.refuse("tie_word_embeddings = false is not supported")
    context = fields.count("max_position_embeddings", 1024)
    of_encoder, of_decoder = (read_stack(fields, storage, stack, context) for stack in ("encoder", "decoder"))
    encoder = [
        BartBlock(
            of_encoder,
            PlainSelfAttention(of_encoder, attention_op(of_encoder, -1, ENCODER_FULL), PROJECTIONS, bias=True),
        )
        for _ in range(of_encoder.layers)
    ]
    decoder = [
        BartBlock(
            of_decoder,
            PlainSelfAttention(of_decoder, attention_op(of_decoder, 2 * i, CAUSAL), PROJECTIONS, bias=True),
            CrossAttention(of_decoder, attention_op(of_decoder, 2 * i + 1, CROSS), PROJECTIONS, bias=True),
        )
        for i in range(of_decoder.layers)
    ]
    stacks = BartStack(start(of_encoder), encoder), BartStack(start(of_decoder), decoder)
    return Bart(of_decoder, BartBackbone(of_decoder, *stacks, scaled=fields.flag("scale_embedding", False)))


FAMILIES = (
    Family("BartForConditionalGeneration", "bart", build, "model.", _RENAMES, _IGNORED, kind="encoder-decoder"),
    Family("MarianMTModel", "marian", build_marian, "model.", _RENAMES, _IGNORED_OF_MARIAN, kind="encoder-decoder"),
)
