"""The encoder-decoder, in parts: attention to a sequence itself and to what an encoder gave, two stacks, a head.

A family's file puts them together; the residual stream is passed on as two summands, as in decoder.py.

Shapes: T rows of a step, E rows of an encoder, N rows of either, R rows that are wanted, D hidden, V vocabulary.
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
    """What a checkpoint calls the projections of an attention."""

    q: str
    k: str
    v: str
    output: str


PROJECTIONS = ProjectionNames("q_proj", "k_proj", "v_proj", "out_proj")
"""As BART calls them, and those that came after it."""
_EPS = 1e-5  # of torch's LayerNorm, which no config states


class PlainSelfAttention(nn.Module):
    """Attention of a sequence to itself, in either stack."""

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
        """key_bias, output_bias: whether the projection to keys, and the last, has one, where it is apart from the
        others.
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
        """x_ND [rows, hidden] -> [rows, hidden]."""
        q_NHD, k_NHD, v_NHD = (part.view(len(part), -1, self.head_dim) for part in self.qkv(x_ND))
        out: Tensor = self.all_reduce(getattr(self, self.output_name)(self.attend(q_NHD, k_NHD, v_NHD, kv)))
        return out


class CrossAttention(nn.Module):
    """Attention to an encoder's rows, whose keys and values are computed in the step that has them, and kept."""

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
        """key_bias: as PlainSelfAttention."""
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
        """x_TD [rows, hidden]; encoded_ED [encoder rows, hidden], None where no encoder runs -> [rows, hidden]."""
        q_THD = getattr(self, self.names.q)(x_TD).view(len(x_TD), -1, self.head_dim)
        k_EHD = v_EHD = None
        if encoded_ED is not None:
            k_EHD, v_EHD = (part.view(len(part), -1, self.head_dim) for part in self.kv(encoded_ED))
        out: Tensor = self.all_reduce(getattr(self, self.names.output)(self.attend(q_THD, k_EHD, v_EHD, kv)))
        return out


def _columns(d: Dimensions, bias: bool, key_bias: bool | None) -> tuple[MatrixSpec, MatrixSpec, MatrixSpec]:
    """What projects to queries, keys and values."""
    column, key = (
        d.column(d.hidden, d.heads * d.head_dim, bias=own) for own in (bias, bias if key_bias is None else key_bias)
    )
    return column, key, column


class FeedForward(MLP):
    """fc2(act(fc1(x))), both with a bias; neither is in a module of its own in checkpoints."""

    unnamed = True

    def __init__(self, d: Dimensions) -> None:
        up = {"fc1": d.column(d.hidden, d.width, bias=True)}
        super().__init__(d, up, "fc2", d.row(d.width, d.hidden, bias=True))


def attention_op(
    d: Dimensions, layer: int, reach: AttentionPattern, *, scale: float | None = None, bias: PositionBias | None = None
) -> Attention:
    """The op of one attention. layer: its place among those that keep something; -1 in an encoder."""
    heads = d.own_heads
    return Attention(
        layer,
        heads,
        KVSpec(heads, d.head_dim, d.head_dim, reach, d.dtype, d.storage.kv),
        scale=scale,
        bias=bias,
    )


class EncoderDecoder(Model):
    """A model of two stacks and a head. A family builds the stacks, says what they compute in `encode` and
    `hidden`, and calls `finish`.

    The head is the embedding where `ties` says so.
    """

    encodes = True

    def __init__(
        self, d: Dimensions, encoder_context: int, *, head_scale: float | None = None, head_bias: bool = False
    ) -> None:
        """encoder_context: positions that the encoder takes. head_scale: of the states before the head. head_bias:
        whether logits have one.
        """
        super().__init__()
        self.context, self.vocabulary, self.storage = d.context, d.vocabulary, d.storage
        self.encoder_context = encoder_context
        self._head = MatrixSpec(d.hidden, d.vocabulary, d.dtype, head_bias, "column", d.vocabulary_shard)
        self._head_scale, self._gathers = head_scale, all_gather(d.vocabulary, d.vocabulary_shard)

    def finish(self, ties: Mapping[str, str]) -> None:
        """Once the stacks are there: the head, what layers keep, what is tied."""
        self.lm_head = LMHead(self._head, scale=self._head_scale)
        self.all_gather = self._gathers
        self.note_kept()
        keeping = [op.layer for _, op in self.ops_of(Attention) if op.spec.kept]
        assert keeping == list(range(len(self.kv_specs)))
        self.ties = ties
        self.tie()

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        logits_RV: Tensor = self.all_gather(self.lm_head(x_RD))
        return logits_RV


def read_stack(fields: Fields, storage: StorageConfig, stack: str, context: int) -> Dimensions:
    """The sizes of the "encoder" or the "decoder", as BART and those that came after it spell them. context: its
    positions.
    """
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
