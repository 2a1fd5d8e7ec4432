"""The parts of an encoder-decoder: self-attention, cross-attention to an encoder's output, two stacks and a head.

The file of a model family puts them together. The residual stream is passed on as two summands, as in decoder.py.

Shapes: T rows of a step, E rows of an encoder, N rows of either, R requested rows, D hidden, V vocabulary.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import MLP
from ridgeline.core.models.common.dimensions import Dimensions, divided, read_activation
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention, PositionBias
from ridgeline.core.ops.collective import all_gather, all_reduce
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.linear import Linear, LMHead, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.work import AttentionPattern


class ProjectionNames(NamedTuple):
    """The checkpoint's names of the projections of an attention layer."""

    q: str
    k: str
    v: str
    output: str


PROJECTIONS = ProjectionNames("q_proj", "k_proj", "v_proj", "out_proj")
"""The checkpoint's names of attention projections in BART and its successors."""
_EPS = 1e-5  # the default of torch's LayerNorm; no config states it


class PlainSelfAttention(nn.Module):
    """The self-attention of an encoder or decoder layer, without rotary embedding or norms of queries and keys."""

    part = "attention"

    def __init__(
        self,
        d: Dimensions,
        attend: Attention,
        names: ProjectionNames,
        *,
        bias: bool = False,
        key_bias: bool | None = None,
        output_bias: bool | None = None,
    ) -> None:
        """Build the query, key, value and output projections around an attention op.

        Args:
            d: The sizes.
            attend: The attention op.
            names: The checkpoint's names of the projections.
            bias: Whether the projections have a bias.
            key_bias: The same for keys, if it differs.
            output_bias: The same for the output projection, if it differs.
        """
        super().__init__()
        self.head_dim, self.output_name = d.head_dim, names.output
        q, k, v = _columns(d, bias, key_bias)
        self.qkv = Projections({names.q: q, names.k: k, names.v: v})
        self.attend = attend
        output_bias = bias if output_bias is None else output_bias
        self.add_module(names.output, Linear(d.row(d.heads * d.head_dim, d.hidden, bias=output_bias)))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_ND: Tensor, kv: KVContext) -> Tensor:
        """Return the attention output [rows, hidden] for x_ND [rows, hidden]."""
        q_NHD, k_NHD, v_NHD = (part.view(len(part), -1, self.head_dim) for part in self.qkv(x_ND))
        return self.all_reduce(getattr(self, self.output_name)(self.attend(q_NHD, k_NHD, v_NHD, kv)))


class CrossAttention(nn.Module):
    """The attention to an encoder's rows, whose keys and values the encoder's step computes and caches."""

    part = "attention"

    def __init__(
        self,
        d: Dimensions,
        attend: Attention,
        names: ProjectionNames,
        *,
        bias: bool = False,
        key_bias: bool | None = None,
    ) -> None:
        """Build the query, key, value and output projections around a cross-attention op.

        Args:
            d: The sizes.
            attend: The attention op.
            names: The checkpoint's names of the projections.
            bias: Whether the projections have a bias.
            key_bias: The same for keys, if it differs.
        """
        super().__init__()
        self.head_dim, self.names = d.head_dim, names
        q, k, v = _columns(d, bias, key_bias)
        self.add_module(names.q, Linear(q))
        self.kv = Projections({names.k: k, names.v: v})
        self.attend = attend
        self.add_module(names.output, Linear(d.row(d.heads * d.head_dim, d.hidden, bias=bias)))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor, encoded_ED: Tensor | None, kv: KVContext) -> Tensor:
        """Return the attention output [rows, hidden] for x_TD [rows, hidden].

        encoded_ED [encoder rows, hidden] is the encoder's output; None if no encoder runs in this step.
        """
        q_THD = getattr(self, self.names.q)(x_TD).view(len(x_TD), -1, self.head_dim)
        k_EHD = v_EHD = None
        if encoded_ED is not None:
            k_EHD, v_EHD = (part.view(len(part), -1, self.head_dim) for part in self.kv(encoded_ED))
        return self.all_reduce(getattr(self, self.names.output)(self.attend(q_THD, k_EHD, v_EHD, kv)))


def _columns(d: Dimensions, bias: bool, key_bias: bool | None) -> tuple[MatrixSpec, MatrixSpec, MatrixSpec]:
    """Return the matrix specs of the query, key and value projections of an attention layer."""
    column, key = (
        d.column(d.hidden, d.heads * d.head_dim, bias=own) for own in (bias, bias if key_bias is None else key_bias)
    )
    return column, key, column


class FeedForward(MLP):
    """A feed-forward layer fc2(act(fc1(x))) with biases, whose matrices lie directly in the block in checkpoints."""

    unnamed = True

    def __init__(self, d: Dimensions) -> None:
        up = {"fc1": d.column(d.hidden, d.width, bias=True)}
        super().__init__(d, up, "fc2", d.row(d.width, d.hidden, bias=True))


def attention_op(
    d: Dimensions, layer: int, reach: AttentionPattern, *, scale: float | None = None, bias: PositionBias | None = None
) -> Attention:
    """Return the attention op of an encoder's or a decoder's layer.

    Args:
        d: The sizes.
        layer: The index of its KV cache among the caches of the model; -1 in an encoder, which has none.
        reach: The attention pattern.
        scale: The factor of the scores. Default: 1 / sqrt(head_dim).
        bias: The position bias that is added to the scores.
    """
    heads = d.own_heads
    return Attention(
        layer,
        heads,
        KVSpec(heads, d.head_dim, d.head_dim, reach, d.dtype, d.storage.kv),
        scale=scale,
        bias=bias,
    )


class EncoderDecoder(Model):
    """A sequence-to-sequence model of an encoder, a decoder and a head.

    A family builds the stacks, implements `encode` and `hidden`, and calls `finish`. The head is the embedding if
    `ties` says so.
    """

    has_cross_attention = True

    def __init__(
        self, d: Dimensions, encoder_context: int, *, head_scale: float | None = None, head_bias: bool = False
    ) -> None:
        """Prepare the language-model head, which `finish` adds when the stacks are built.

        Args:
            d: The sizes of the decoder.
            encoder_context: Maximum number of positions of the encoder.
            head_scale: The factor of the states before the head.
            head_bias: Whether the head has a bias.
        """
        super().__init__()
        self.context, self.vocabulary, self.storage = d.context, d.vocabulary, d.storage
        self.encoder_context = encoder_context
        self._head = MatrixSpec(d.hidden, d.vocabulary, d.dtype, head_bias, "column", d.vocabulary_shard)
        self._head_scale, self._gathers = head_scale, all_gather(d.vocabulary, d.vocabulary_shard)

    def finish(self, ties: Mapping[str, str]) -> None:
        """Add the head to an encoder-decoder, record its KV caches and tie parameters, once the stacks are built."""
        self.lm_head = LMHead(self._head, scale=self._head_scale)
        self.all_gather = self._gathers
        self.collect_cache_specs()
        keeping = [op.layer for _, op in self.ops_of(Attention) if op.spec.is_cached]
        assert keeping == list(range(len(self.kv_specs)))
        self.ties = ties
        self.tie()

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        return self.all_gather(self.lm_head(x_RD))


def read_stack(fields: Fields, storage: StorageConfig, stack: str, context: int) -> Dimensions:
    """Read the sizes of the "encoder" or "decoder" stack as BART spells them; `context` is its number of positions."""
    hidden, heads = fields.count("d_model"), fields.count(f"{stack}_attention_heads")
    return Dimensions(
        vocabulary=fields.count("vocab_size"),
        context=context,
        layers=fields.count(f"{stack}_layers", most=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "d_model", hidden, heads),
        width=fields.count(f"{stack}_ffn_dim"),
        activation=read_activation(fields, "activation_function", "gelu"),
        eps=_EPS,
        storage=storage,
    )
