"""BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692) and XLM-RoBERTa (arXiv:1911.02116): post-norm encoders.

They have learned positions, and a norm after each residual addition. They differ in the first position: RoBERTa's is
the row after that of its padding token, so that it has fewer positions than rows.
"""

from collections import OrderedDict

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.dimensions import Dimensions, divided, read_activation
from ridgeline.core.models.common.embedder import Embedder, read_labels
from ridgeline.core.models.common.encoder import Encoder, uncached_kv_spec
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.embedding import IndexedEmbedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.row_ops import RowPicker


class BertEmbeddings(nn.Module):
    """The sum of token, token-type and position embeddings, and the norm after it.

    The token type is that of the first or the second text of a pair.
    """

    def __init__(self, d: Dimensions, types: int, offset: int) -> None:
        """Build BERT's embeddings for `types` token types; `offset` is the row of the first position."""
        super().__init__()
        self.word_embeddings = IndexedEmbedding(d.vocabulary, d.hidden, d.dtype)
        self.token_type_embeddings = IndexedEmbedding(types, d.hidden, d.dtype, every=d.vocabulary)
        self.position_embeddings = IndexedEmbedding(d.context + offset, d.hidden, d.dtype, offset=offset)
        self.add = ResidualAdd(d.hidden, d.dtype)
        self.LayerNorm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return the normed embeddings [rows, hidden] of ids_T and positions_T, int64 [rows]."""
        x_TD = self.add(self.word_embeddings(ids_T), self.token_type_embeddings(ids_T))
        return self.LayerNorm(x_TD, self.position_embeddings(positions_T))[1]


class BertHeads(nn.Module):
    """The query, key and value projections and the attention op of a BERT block; checkpoints call it `self`."""

    def __init__(self, d: Dimensions, layer: int) -> None:
        super().__init__()
        spec = d.column(d.hidden, d.hidden, bias=True)
        self.head_dim = d.head_dim
        self.qkv = Projections({"query": spec, "key": spec, "value": spec})
        self.attend = Attention(layer, d.own_heads, uncached_kv_spec(d))

    @override
    def forward(self, x_TD: Tensor, kv: KVContext) -> Tensor:
        """Return the attention heads' outputs [rows, heads x head_dim] for x_TD [rows, hidden]."""
        q_THD, k_THD, v_THD = (part.reshape(len(part), -1, self.head_dim) for part in self.qkv(x_TD))
        return self.attend(q_THD, k_THD, v_THD, kv)


class BertOutput(nn.Module):
    """The end of an attention or feed-forward part: a projection, a residual addition and a norm."""

    def __init__(self, d: Dimensions, inputs: int) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.dense = Linear(d.row(inputs, d.hidden, bias=True))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)
        self.LayerNorm = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, x_TF: Tensor, residual_TD: Tensor, rows_R: Tensor | None = None) -> Tensor:
        """Return norm(residual + dense(x)), [rows, hidden], of the requested rows or of all."""
        y_TD: Tensor = self.all_reduce(self.dense(x_TF))
        if rows_R is not None:
            residual_TD, y_TD = self.wanted(residual_TD, rows_R), self.wanted(y_TD, rows_R)
        return self.LayerNorm(residual_TD, y_TD)[1]


class BertSelfAttention(nn.Module):
    """A post-norm attention part: norm(x + attention(x))."""

    part = "attention"

    def __init__(self, d: Dimensions, layer: int) -> None:
        super().__init__()
        self.add_module("self", BertHeads(d, layer))
        self.output = BertOutput(d, d.hidden)

    @override
    def forward(self, x_TD: Tensor, kv: KVContext) -> Tensor:
        """Return the attention part's output [rows, hidden] for x_TD [rows, hidden]."""
        return self.output(self.get_submodule("self")(x_TD, kv), x_TD)


class BertBlock(nn.Module):
    """A post-norm block: x = norm(x + attention(x)), then norm(x + mlp(x))."""

    part = "feed-forward"

    def __init__(self, d: Dimensions, layer: int) -> None:
        super().__init__()
        self.attention = BertSelfAttention(d, layer)
        first_half = ActivatedProjections({"dense": d.column(d.hidden, d.width, bias=True)}, d.activation)
        self.intermediate = nn.Sequential(OrderedDict(fc=first_half))
        self.output = BertOutput(d, d.width)

    @override
    def forward(self, x_TD: Tensor, kv: KVContext, rows_R: Tensor | None = None) -> Tensor:
        """Return a BERT block's output [rows, hidden] for x_TD [rows, hidden].

        The last block returns the requested rows only.
        """
        x_TD = self.attention(x_TD, kv)
        return self.output(self.intermediate(x_TD), x_TD, rows_R)


class BertLayers(nn.Module):
    """The list of BERT's blocks, which checkpoints call `encoder`."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertBlock(d, layer) for layer in range(d.layers))


class BertBackbone(nn.Module):
    """BERT's encoder without its head: embeddings and blocks; checkpoints call it `bert` or `roberta`."""

    def __init__(self, d: Dimensions, types: int, offset: int) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(d, types, offset)
        self.encoder = BertLayers(d)

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """Return the last hidden states of the requested rows, [R, hidden]."""
        x_TD = self.embeddings(ids_T, positions_T)
        *blocks, last = self.encoder.layer
        for block in blocks:
            x_TD = block(x_TD, kv)
        return last(x_TD, kv, rows_R)


class BertPooler(nn.Module):
    """BERT's pooler: tanh(dense(x)) of a text's first state."""

    part = "head"

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.fc = ActivatedProjections({"dense": d.whole(d.hidden, d.hidden, bias=True)}, "tanh")

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """Return the pooled states [R, hidden] for x_RD [R, hidden]."""
        return self.fc(x_RD)


class RobertaHead(BertPooler):
    """The classification head of RoBERTa: a pooler and a projection to labels; checkpoints call it `classifier`."""

    def __init__(self, d: Dimensions, labels: int) -> None:
        super().__init__(d)
        self.out_proj = Linear(d.whole(d.hidden, labels, bias=True), exempt=True)

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """Return the scores of labels [R, labels] for x_RD [R, hidden]."""
        return self.out_proj(super().forward(x_RD))


def _read(fields: Fields, storage: StorageConfig, offset: int, vocabulary: int | None) -> tuple[Dimensions, int]:
    """Read the sizes and the number of token types of a BERT or RoBERTa config.

    Args:
        fields: The config.
        storage: The dtype and the rank.
        offset: The row of the first position.
        vocabulary: The default vocabulary size; None if the config must state it, because similar models have other
            sizes.
    """
    for name in ("is_decoder", "add_cross_attention"):
        fields.require_off(name)
    if fields.text("position_embedding_type", "absolute") != "absolute":
        raise fields.refuse(f"position_embedding_type {fields.value('position_embedding_type')!r} is not supported")
    fields.ignore("tie_word_embeddings")  # of the masked-language-model head
    hidden, heads = fields.count("hidden_size", 768), fields.count("num_attention_heads", 12)
    rows = fields.count("max_position_embeddings", 512)
    if rows <= offset:
        raise fields.refuse(
            f"max_position_embeddings is {rows}; it must be more than {offset}, because the first {offset} are not used"
        )
    d = Dimensions(
        vocabulary=fields.count("vocab_size", vocabulary),
        context=rows - offset,
        layers=fields.layers if fields.has("num_hidden_layers") else 12,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "hidden_size", hidden, heads),
        width=fields.count("intermediate_size", 3072),
        activation=read_activation(fields, "hidden_act", "gelu"),
        eps=fields.positive("layer_norm_eps", 1e-12),
        storage=storage,
    )
    return d, fields.count("type_vocab_size", 2)


def _bert(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Encoder]:
    """Read a BERT config; return the sizes and the encoder."""
    d, types = _read(fields, storage, 0, 30_522)
    return d, Encoder(d, BertBackbone(d, types, 0), "bert", segments=types)


def _roberta(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Encoder]:
    """Read a RoBERTa config; return the sizes and the encoder."""
    offset = (fields.natural("pad_token_id") if fields.has("pad_token_id") else 1) + 1
    d, types = _read(fields, storage, offset, None)
    return d, Encoder(d, BertBackbone(d, types, offset), "roberta", segments=types)


def build(fields: Fields, storage: StorageConfig) -> Encoder:
    """Build the encoder of a BERT config, without the heads of its training."""
    return _bert(fields, storage)[1]


def build_roberta(fields: Fields, storage: StorageConfig) -> Encoder:
    """Build the encoder of a RoBERTa or XLM-RoBERTa config, without the heads of its training.

    Padding tokens inside a text get positions here, whereas the reference gives them none. No tokenizer writes such
    texts.
    """
    return _roberta(fields, storage)[1]


def build_classifier(fields: Fields, storage: StorageConfig) -> Embedder:
    """Build a BERT classifier: tanh(dense(x)) of a text's first state, then a projection to the scores of labels."""
    d, encoder = _bert(fields, storage)
    scores = read_labels(fields)
    classifier = Linear(d.whole(d.hidden, scores["labels"], bias=True), exempt=True)
    return Embedder(encoder, "cls", d.hidden, {"pooler": BertPooler(d), "classifier": classifier}, **scores)


def build_roberta_classifier(fields: Fields, storage: StorageConfig) -> Embedder:
    """Build a RoBERTa or XLM-RoBERTa classifier, which returns the scores of labels."""
    d, encoder = _roberta(fields, storage)
    scores = read_labels(fields)
    return Embedder(encoder, "cls", d.hidden, {"classifier": RobertaHead(d, scores["labels"])}, **scores)


_OLD_NORMS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
_POSITIONS = r"(.*\.)?embeddings\.position_ids"
_BERT_HEADS = (_POSITIONS, r"(bert\.)?pooler\..*", r"cls\..*")
_ROBERTA_HEADS = (_POSITIONS, r"(roberta\.)?pooler\..*", r"lm_head\..*")

FAMILIES = (
    Family(
        "BertModel", "bert", build, "bert.", ignored=_BERT_HEADS, also=("BertForMaskedLM", "BertForPreTraining"),
        old_names=_OLD_NORMS, kind="encoder",
    ),
    Family(
        "RobertaModel", "roberta", build_roberta, "roberta.", ignored=_ROBERTA_HEADS, also=("RobertaForMaskedLM",),
        kind="encoder",
    ),
    Family(
        "XLMRobertaModel", "xlm-roberta", build_roberta, "roberta.", ignored=_ROBERTA_HEADS,
        also=("XLMRobertaForMaskedLM",), kind="encoder",
    ),
    Family(
        "BertForSequenceClassification", "bert", build_classifier, "bert.", (("bert.pooler.", "pooler."),),
        ignored=(_POSITIONS,), old_names=_OLD_NORMS, kind="encoder",
    ),
    Family(
        "RobertaForSequenceClassification", "roberta", build_roberta_classifier, "roberta.",
        ignored=_ROBERTA_HEADS[:2], also=("XLMRobertaForSequenceClassification",), kind="encoder",
    ),
)  # fmt: skip
