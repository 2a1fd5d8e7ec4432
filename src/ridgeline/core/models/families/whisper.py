"""Whisper (Radford et al., arXiv:2212.04356): speech recognition with an audio encoder and a text decoder.

Log-mel frames pass two convolutions and the encoder, whose output the decoder reads by cross-attention. It has
LayerNorms, learned positions in the decoder, stored positions in the encoder, and a tied head.

Shapes: T rows of a step, E rows of an encoder (two frames each), N rows of either, R requested rows, D hidden, F
numbers of two frames.
"""

from typing import Final

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
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.convolution import Convolution
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.work import CAUSAL, CROSS, ENCODER_FULL

FRAMES: Final = 2
"""The log-mel frames per row of Whisper's encoder, whose second convolution halves their number."""
SECONDS_PER_ROW: Final = 0.02
"""The seconds of audio per row of Whisper's encoder, which is two frames of 10 ms.

Timestamps have the same spacing.
"""
_RENAMES = (("proj_out.", "lm_head."),)
_TABLE = "model.decoder.embed_tokens"


class WhisperBlock(nn.Module):
    """A pre-norm block: x + attention(norm(x)), in the decoder x + cross(norm(x)), then x + mlp(norm(x)).

    The next norm performs the last addition. Keys have no bias.
    """

    def __init__(self, d: Dimensions, attend: Attention, cross: Attention | None = None) -> None:
        super().__init__()
        self.self_attn_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.self_attn = PlainSelfAttention(d, attend, PROJECTIONS, bias=True, key_bias=False)
        self.encoder_attn: CrossAttention | None = None
        if cross is not None:
            self.encoder_attn_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)
            self.encoder_attn = CrossAttention(d, cross, PROJECTIONS, bias=True, key_bias=False)
        self.final_layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.mlp = FeedForward(d)

    @override
    def forward(
        self, x_ND: Tensor, y_ND: Tensor, kv: KVContext, encoded_ED: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a Whisper block; it comes and goes as two summands [rows, hidden]."""
        x_ND, normed_ND = self.self_attn_layer_norm(x_ND, y_ND)
        y_ND = self.self_attn(normed_ND, kv)
        if self.encoder_attn is not None:
            x_ND, normed_ND = self.encoder_attn_layer_norm(x_ND, y_ND)
            y_ND = self.encoder_attn(normed_ND, encoded_ED, kv)
        x_ND, normed_ND = self.final_layer_norm(x_ND, y_ND)
        return x_ND, self.mlp(normed_ND)


class AudioEncoder(nn.Module):
    """Whisper's audio encoder: two convolutions, positions, blocks with bidirectional attention, and a final norm."""

    part = "feed-forward"  # for the convolutions, which lie outside the blocks

    def __init__(self, d: Dimensions, bins: int) -> None:
        """Build Whisper's encoder for log-mel frames of `bins` bins.

        `d.context` is the number of rows of a window of audio.
        """
        super().__init__()
        self.conv1 = Convolution(bins, d.hidden, d.dtype, kernel=3, positions=FRAMES, stride=1, stretch=d.context)
        self.conv2 = Convolution(d.hidden, d.hidden, d.dtype, kernel=3, positions=FRAMES, stride=2, stretch=d.context)
        self.embed_positions = Embedding(d.context, d.hidden, d.dtype)
        self.layers = nn.ModuleList(WhisperBlock(d, attention_op(d, -1, ENCODER_FULL)) for _ in range(d.layers))
        self.layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, x_EF: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """Return the encoder's states [rows, hidden] for x_EF fp32 [rows, numbers of two log-mel frames]."""
        x_ED, y_ED = self.conv2(self.conv1(x_EF)), self.embed_positions(positions_E)
        for block in self.layers:
            x_ED, y_ED = block(x_ED, y_ED, kv)
        return self.layer_norm(x_ED, y_ED)[1]


class TextDecoder(nn.Module):
    """Whisper's text decoder: embeddings, blocks with causal self-attention and cross-attention, and a final norm."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.embed_tokens = Embedding(d.vocabulary, d.hidden, d.dtype, d.vocabulary_shard)
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.vocabulary_shard)
        self.embed_positions = Embedding(d.context, d.hidden, d.dtype)
        self.layers = nn.ModuleList(
            WhisperBlock(d, attention_op(d, 2 * layer, CAUSAL), attention_op(d, 2 * layer + 1, CROSS))
            for layer in range(d.layers)
        )
        self.layer_norm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None
    ) -> Tensor:
        """Return the last hidden states of the requested rows, after the final norm, [R, hidden]."""
        x_TD: Tensor = self.all_reduce(self.embed_tokens(ids_T))
        y_TD: Tensor = self.embed_positions(positions_T)  # the first norm adds it
        for block in self.layers:
            x_TD, y_TD = block(x_TD, y_TD, kv, encoded_ED)
        return self.layer_norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))[1]


class WhisperStacks(nn.Module):
    """Whisper's encoder and decoder; checkpoints call it `model`."""

    def __init__(self, encoder: AudioEncoder, decoder: TextDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


class Whisper(EncoderDecoder):
    """A Whisper model: an audio encoder, a text decoder, and a head that is tied to its embedding."""

    def __init__(self, encoder: Dimensions, decoder: Dimensions, bins: int) -> None:
        """Build Whisper from the sizes of its encoder and decoder; `bins` is the number of bins of a log-mel frame."""
        super().__init__(decoder, encoder.context)
        self.bins, self.encoder_width = bins, FRAMES * bins
        self.model = WhisperStacks(AudioEncoder(encoder, bins), TextDecoder(decoder))
        self.finish({"lm_head.matrix.weight": f"{_TABLE}.weight"})
        uses = {f"{_TABLE}.weight": _TABLE, "lm_head.weight": "lm_head.matrix"}
        self.tables = TokenTables(uses, {"lm_head.weight": f"{_TABLE}.weight"})

    @override
    def encode(self, x_EF: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """Return the encoder's last hidden states, of whole windows of `encoder_context` rows."""
        return self.model.encoder(x_EF, positions_E, kv)

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        return self.model.decoder(ids_T, positions_T, kv, rows_R, encoded_ED)


def build(fields: Fields, storage: StorageConfig) -> Whisper:
    """Build the model of a Whisper config, which names the sizes of each stack."""
    fields.ignore("num_hidden_layers")  # repeats encoder_layers
    fields.ignore(  # for training, word timestamps, classification and generation
        "classifier_proj_size", "use_weighted_layer_sum", "median_filter_width", "is_encoder_decoder",
        "apply_spec_augment", *(f"mask_{of}_{what}" for of in ("time", "feature") for what in ("prob", "length")),
        "mask_time_min_masks", "mask_feature_min_masks", "forced_decoder_ids",
    )  # fmt: skip
    fields.require_off("scale_embedding")
    if not fields.flag("tie_word_embeddings", True):
        raise fields.refuse("tie_word_embeddings = false is not supported")
    bins = fields.count("num_mel_bins", 80, most=1024)
    encoder = read_stack(fields, storage, "encoder", fields.count("max_source_positions", 1500))
    decoder = read_stack(fields, storage, "decoder", fields.count("max_target_positions", 448))
    return Whisper(encoder, decoder, bins)


FAMILY = Family("WhisperForConditionalGeneration", "whisper", build, renames=_RENAMES, kind="speech")
