"""T5, T5 v1.1 and FLAN-T5 (arXiv:1910.10683), and UMT5 (arXiv:2304.09151): relative positions.

Scores are not scaled. A bias that depends on the distance is added to them. T5 has one table of biases per stack, which
its first layer holds; UMT5 has one per layer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import add_norm
from ridgeline.core.models.common.decoder import MLP
from ridgeline.core.models.common.dimensions import Dimensions, read_activation
from ridgeline.core.models.common.encoder import Encoder
from ridgeline.core.models.common.encoder_decoder import (
    CrossAttention,
    EncoderDecoder,
    PlainSelfAttention,
    ProjectionNames,
    attention_op,
)
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, MAX_WIDTH, Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.ops.attention import PositionBias
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.stored_module import StoredModule, weight
from ridgeline.core.ops.work import CAUSAL, CROSS, ENCODER_FULL, FULL, AttentionPattern

_RENAMES = ((".relative_attention_bias.", ".attend.bias."),)
_IGNORED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # never read
_BESIDE_ENCODER = (r"decoder\..*", r"lm_head\.weight")  # in the checkpoint of a whole model
_SHARED, _OF_ENCODER, _OF_DECODER, _HEAD = (
    "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
NAMES = ProjectionNames("q", "k", "v", "o")
"""The checkpoint's names of T5's attention projections."""
CONTEXT = 512
"""The number of positions of a T5 model whose config states none: that of T5's training.

See arXiv:1910.10683, section 3.1.2.
"""


class RelativeBias(StoredModule):
    """The relative position bias: a number per head and bucket of distances.

    Buckets are exact for small distances and logarithmic up to `farthest`.
    """

    def __init__(
        self, buckets: int, farthest: int, heads: int, shard: Shard, dtype: torch.dtype, *, causal: bool
    ) -> None:
        """Create the table of relative position biases for this rank's heads.

        Args:
            buckets: Number of buckets.
            farthest: The distance from which on all distances share one bucket.
            heads: Heads of all ranks together.
            shard: The part of the heads that this rank holds.
            dtype: The dtype of the table.
            causal: Whether no key follows its query.
        """
        super().__init__()
        self.shard, self.farthest, self._buckets = shard, farthest, buckets_of(buckets, farthest, causal=causal)
        self.weight = weight(buckets, shard.part(heads, "heads"), dtype=dtype)

    @override
    def forward(self, distance: Tensor) -> Tensor:
        """Return T5's biases on attention scores [heads, ...] for distances (key - query) int64 [...]."""
        if self._buckets.device != distance.device:
            self._buckets = self._buckets.to(distance.device)
        bucket = self._buckets[distance.clamp(-self.farthest, self.farthest) + self.farthest]
        return self.weight.T[:, bucket]

    @override
    def load_tensor(self, name: str, full: Tensor) -> dict[str, Tensor]:
        return {name: self.shard.slice(full, 1)}


def buckets_of(count: int, farthest: int, *, causal: bool) -> Tensor:
    """Return the bias bucket of each distance from -farthest to farthest, int64 [2 x farthest + 1]."""
    with torch.device("cpu"):
        distance = torch.arange(-farthest, farthest + 1)
        first = torch.zeros_like(distance)
        if causal:
            distance = (-distance).clamp_min(0)
        else:
            count //= 2
            first, distance = (distance > 0) * count, distance.abs()
        exact = count // 2
        ratio = (distance.clamp_min(1).float() / exact).log() / math.log(farthest / exact)
        far = (exact + (ratio * (count - exact)).long()).clamp_max(count - 1)
        return first + torch.where(distance < exact, distance, far)


class T5Sublayer(nn.Module):
    """A norm and the module after it; the next norm adds the module's output to the residual stream."""

    def __init__(self, name: str, module: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, module)
        self.layer_norm = norm

    @override
    def forward(self, x_ND: Tensor, y_ND: Tensor | None, *context: KVContext | Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the residual stream after one part of a T5 block, as two summands [rows, hidden].

        `context` are the module's arguments in addition to the rows.
        """
        x_ND, normed_ND = add_norm(self.layer_norm, x_ND, y_ND)
        return x_ND, getattr(self, self.name)(normed_ND, *context)


class T5Block(nn.Module):
    """A T5 block: self-attention, cross-attention in a decoder, and a feed-forward layer."""

    def __init__(self, parts: Mapping[str, nn.Module], d: Dimensions, *, first: bool) -> None:
        super().__init__()
        norms = [(RMSNorm if first and i == 0 else AddRMSNorm)(d.hidden, d.eps, d.dtype) for i in range(len(parts))]
        both = zip(parts.items(), norms, strict=True)
        self.layer = nn.ModuleList(T5Sublayer(name, module, norm) for (name, module), norm in both)
        self.crosses = len(parts) == 3

    @override
    def forward(
        self, x_ND: Tensor, y_ND: Tensor | None, kv: KVContext, encoded_ED: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a T5 block; it comes and goes as two summands [rows, hidden].

        encoded_ED is the encoder's output; None if no encoder runs in this step.
        """
        x_ND, y_ND = self.layer[0](x_ND, y_ND, kv)
        if self.crosses:
            x_ND, y_ND = self.layer[1](x_ND, y_ND, encoded_ED, kv)
        return self.layer[-1](x_ND, y_ND)


class T5Stack(nn.Module):
    """The blocks of T5's encoder or decoder, and the norm after them."""

    def __init__(self, d: Dimensions, blocks: Sequence[T5Block]) -> None:
        super().__init__()
        self.block = nn.ModuleList(blocks)
        self.final_layer_norm = AddRMSNorm(d.hidden, d.eps, d.dtype)


class T5(EncoderDecoder):
    """A T5 model: an encoder and a decoder over one token embedding, `shared`."""

    def __init__(self, d: Dimensions, encoder: T5Stack, decoder: T5Stack, *, tied: bool, scaled: bool) -> None:
        """Build the T5 model from its encoder and decoder.

        Args:
            d: The sizes.
            encoder: The encoder.
            decoder: The decoder.
            tied: Whether the head's weight is the embedding.
            scaled: Whether states are scaled before the head.
        """
        super().__init__(d, d.context, head_scale=d.hidden**-0.5 if scaled else None)
        self.wanted = RowPicker()
        self.shared = Embedding(d.vocabulary, d.hidden, d.dtype, d.vocabulary_shard)
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.vocabulary_shard)
        self.encoder, self.decoder = encoder, decoder
        self.finish({"lm_head.matrix.weight": "shared.weight"} if tied else {})
        self.tables = TokenTables(
            {_OF_DECODER: "shared", _OF_ENCODER: "encoder.embed_tokens", _HEAD: "lm_head.matrix"},
            dict.fromkeys((_OF_ENCODER, _OF_DECODER, _HEAD), _SHARED),
            untied=() if tied else (_HEAD,),
        )

    @override
    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        table = getattr(self.encoder, "embed_tokens", self.shared)
        x_ED: Tensor = self.all_reduce(table(ids_E))
        y_ED: Tensor | None = None
        for block in self.encoder.block:
            x_ED, y_ED = block(x_ED, y_ED, kv)
        return self.encoder.final_layer_norm(x_ED, y_ED)[1]

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        x_TD: Tensor = self.all_reduce(self.shared(ids_T))
        y_TD: Tensor | None = None
        for block in self.decoder.block:
            x_TD, y_TD = block(x_TD, y_TD, kv, encoded_ED)
        assert y_TD is not None
        return self.decoder.final_layer_norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))[1]


class T5EncoderBackbone(nn.Module):
    """T5's encoder and its token embedding `shared`; checkpoints hold both at the top."""

    unnamed = True

    def __init__(self, d: Dimensions, encoder: T5Stack) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.shared = Embedding(d.vocabulary, d.hidden, d.dtype)
        self.encoder = encoder

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """Return the hidden states of the requested rows, after the final norm, [R, hidden]."""
        x_TD: Tensor = self.shared(ids_T)
        y_TD: Tensor | None = None
        for block in self.encoder.block:
            x_TD, y_TD = block(x_TD, y_TD, kv)
        assert y_TD is not None
        return self.encoder.final_layer_norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))[1]


class T5Stacks:
    """The reader of a T5 config, which builds the encoder and the decoder."""

    def __init__(self, fields: Fields, storage: StorageConfig, projection: str, *, shared_bias: bool) -> None:
        """Read the sizes of a T5 config.

        Args:
            fields: The config.
            storage: The dtype, the KV format and the rank.
            projection: The default of `feed_forward_proj`.
            shared_bias: Whether all layers of a stack share one table of biases.

        Raises:
            ModelRefused: If a size is missing or invalid, or the activation is not supported.
        """
        fields.ignore("is_encoder_decoder")
        self.layers = fields.count("num_layers", most=MAX_LAYERS)
        self.decoder_layers = fields.count("num_decoder_layers", self.layers, most=MAX_LAYERS)
        self._gated, activation = _read_projection(fields, projection)
        self.d = _read_dimensions(fields, storage, self.decoder_layers, activation)
        self._buckets = fields.count("relative_attention_num_buckets", 32)
        self._farthest = fields.count("relative_attention_max_distance", 128)
        self._shared_bias = shared_bias
        if self._buckets < 4 or self._farthest <= self._buckets // 2:
            raise fields.refuse(
                f"relative_attention_num_buckets is {self._buckets} and relative_attention_max_distance is "
                f"{self._farthest}; give at least 4 buckets, and a distance of more than half their number"
            )

    def encoder(self, reach: AttentionPattern) -> T5Stack:
        """Build the T5 encoder, whose positions attend to each other in the pattern `reach`."""
        return self._stack(
            {
                "SelfAttention": PlainSelfAttention(
                    self.d, attention_op(self.d, -1, reach, scale=1.0, bias=bias), NAMES
                ),
                "DenseReluDense": self._feed_forward(),
            }
            for bias in self._biases(self.layers, causal=False)
        )

    def decoder(self) -> T5Stack:
        """Build T5's decoder, whose blocks also have cross-attention to the encoder."""
        d = self.d
        return self._stack(
            {
                "SelfAttention": PlainSelfAttention(d, attention_op(d, 2 * i, CAUSAL, scale=1.0, bias=bias), NAMES),
                "EncDecAttention": CrossAttention(d, attention_op(d, 2 * i + 1, CROSS, scale=1.0), NAMES),
                "DenseReluDense": self._feed_forward(),
            }
            for i, bias in enumerate(self._biases(self.decoder_layers, causal=True))
        )

    def _stack(self, blocks: Iterable[Mapping[str, nn.Module]]) -> T5Stack:
        """Build an encoder or decoder of T5 from the parts of its blocks."""
        return T5Stack(self.d, [T5Block(parts, self.d, first=i == 0) for i, parts in enumerate(blocks)])

    def _biases(self, count: int, *, causal: bool) -> list[PositionBias]:
        """Return the relative position bias of each of `count` layers; T5's layers share one, UMT5's do not."""
        d, sizes = self.d, (self._buckets, self._farthest)
        tables = [
            RelativeBias(*sizes, d.heads, d.shard, d.dtype, causal=causal)
            for _ in range(1 if self._shared_bias else count)
        ]
        # With one table, the layers after the first have none and call that of the first.
        return [*tables, *[tables[0].forward] * (count - len(tables))]

    def _feed_forward(self) -> MLP:
        """Return the feed-forward layer of a T5 block."""
        d, names = self.d, ("wi_0", "wi_1") if self._gated else ("wi",)
        return MLP(d, dict.fromkeys(names, d.column(d.hidden, d.width)), "wo", d.row(d.width, d.hidden))


def _stacks(fields: Fields, storage: StorageConfig) -> T5Stacks:
    """Read a T5, T5 v1.1 or FLAN-T5 config, with one table of position biases per stack."""
    return T5Stacks(fields, storage, "relu", shared_bias=True)


def _stacks_umt5(fields: Fields, storage: StorageConfig) -> T5Stacks:
    """Read a UMT5 config, with a table of position biases in every layer."""
    fields.ignore("scalable_attention")  # in the releases; transformers never reads it
    return T5Stacks(fields, storage, "gated-gelu", shared_bias=False)


def _both(fields: Fields, stacks: T5Stacks) -> T5:
    """Build the encoder-decoder of a T5 or UMT5 config."""
    tied = fields.flag("tie_word_embeddings", True)
    # transformers 5 always writes that the head is tied. T5 v1.1, which is not tied, does not scale its states.
    scaled = fields.flag("scale_decoder_outputs", tied)
    return T5(stacks.d, stacks.encoder(ENCODER_FULL), stacks.decoder(), tied=tied and scaled, scaled=scaled)


def _alone(fields: Fields, stacks: T5Stacks) -> Encoder:
    """Build the encoder of a T5 or UMT5 config without its decoder."""
    fields.ignore("num_decoder_layers", "decoder_start_token_id", "tie_word_embeddings", "scale_decoder_outputs")
    model = Encoder(stacks.d, T5EncoderBackbone(stacks.d, stacks.encoder(FULL)), "trunk")
    model.tables = TokenTables({_OF_ENCODER: "trunk.shared"}, {_OF_ENCODER: _SHARED})
    return model


def build(fields: Fields, storage: StorageConfig) -> T5:
    """Build the model of a T5, T5 v1.1 or FLAN-T5 config."""
    return _both(fields, _stacks(fields, storage))


def build_umt5(fields: Fields, storage: StorageConfig) -> T5:
    """Build the model of a UMT5 config."""
    return _both(fields, _stacks_umt5(fields, storage))


def build_encoder(fields: Fields, storage: StorageConfig) -> Encoder:
    """Build the encoder alone of a T5, T5 v1.1 or FLAN-T5 config, which embeds texts or prompts of diffusion models."""
    return _alone(fields, _stacks(fields, storage))


def build_umt5_encoder(fields: Fields, storage: StorageConfig) -> Encoder:
    """Build the encoder alone of a UMT5 config."""
    return _alone(fields, _stacks_umt5(fields, storage))


def _read_projection(fields: Fields, default: str) -> tuple[bool, str]:
    """Return whether T5's feed-forward layer has a gate, and its activation.

    Some pipelines' configs leave out `feed_forward_proj`; then they are read from `is_gated_act` and `dense_act_fn`.
    """
    fields.ignore("dense_act_fn", "is_gated_act")
    if not fields.has("feed_forward_proj") and fields.has("dense_act_fn"):
        return fields.flag("is_gated_act", False), read_activation(fields, "dense_act_fn", "relu")
    stated = fields.text("feed_forward_proj", default)
    activation = "gelu_new" if stated == "gated-gelu" else stated.removeprefix("gated-")
    if activation not in ACTIVATIONS:
        raise fields.refuse(
            f"feed_forward_proj {stated!r} is not supported; {', '.join(ACTIVATIONS)} are, also after gated-"
        )
    return stated.startswith("gated-"), activation


def _read_dimensions(fields: Fields, storage: StorageConfig, layers: int, activation: str) -> Dimensions:
    """Read the sizes of a T5 config, which has names of its own for them."""
    heads, head_dim = fields.count("num_heads"), fields.count("d_kv")
    if heads * head_dim > MAX_WIDTH:
        raise fields.refuse(f"num_heads {heads} x d_kv {head_dim} is more than {MAX_WIDTH}")
    return Dimensions(
        vocabulary=fields.count("vocab_size"),
        context=fields.count("n_positions", CONTEXT),
        layers=layers,
        hidden=fields.count("d_model"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        width=fields.count("d_ff"),
        activation=activation,
        eps=fields.positive("layer_norm_epsilon", 1e-6),
        storage=storage,
    )


FAMILIES = (
    Family(
        "T5ForConditionalGeneration", "t5", build, "", _RENAMES, _IGNORED, upcasts_fp16=True, kind="encoder-decoder"
    ),
    Family(
        "UMT5ForConditionalGeneration", "umt5", build_umt5, "", _RENAMES, _IGNORED, upcasts_fp16=True,
        kind="encoder-decoder",
    ),
    Family(
        "T5EncoderModel", "t5", build_encoder, "", _RENAMES, _BESIDE_ENCODER, upcasts_fp16=True, kind="encoder"
    ),
    Family(
        "UMT5EncoderModel", "umt5", build_umt5_encoder, "", _RENAMES, _BESIDE_ENCODER, upcasts_fp16=True,
        kind="encoder",
    ),
)  # fmt: skip
