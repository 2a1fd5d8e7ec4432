"""ModernBERT (Warner et al., arXiv:2412.13663): a pre-norm encoder with rotary positions and gated MLPs.

Two of three layers attend to a neighbourhood. Every third attends to the whole text, with a rotary embedding of its
own.
"""

from collections import OrderedDict

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import MLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_activation
from ridgeline.core.models.common.embedder import Embedder, read_labels
from ridgeline.core.models.common.encoder import Encoder, uncached_kv_spec
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_own_rope, rope_sections
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_layer_types
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.norm import AddLayerNorm, LayerNorm
from ridgeline.core.ops.pooling import PoolingMode
from ridgeline.core.ops.rotary import Angles, Rope, RotaryTable
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.work import FULL, AttentionPattern

_RENAMES = ((".attn.Wo", ".attn.o_proj"),)


class ModernBertBlock(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); the next norm performs the second addition.

    The first block has no norm before its attention, because the embeddings are normed.
    """

    def __init__(self, d: Dimensions, attention: SelfAttention, mlp: MLP, *, first: bool, norm_bias: bool) -> None:
        super().__init__()
        if not first:
            self.attn_norm = AddLayerNorm(d.hidden, d.eps, d.dtype, with_bias=norm_bias)
        self.attn = attention
        self.mlp_norm = AddLayerNorm(d.hidden, d.eps, d.dtype, with_bias=norm_bias)
        self.mlp = mlp

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a block of ModernBERT; it comes and goes as two summands.

        The second summand that comes in is None in the first block.
        """
        normed_TD = x_TD
        if y_TD is not None:
            x_TD, normed_TD = self.attn_norm(x_TD, y_TD)
        x_TD, normed_TD = self.mlp_norm(x_TD, self.attn(normed_TD, angles, kv))
        return x_TD, self.mlp(normed_TD)


class ModernBertBackbone(nn.Module):
    """ModernBERT's encoder without its head: embeddings, blocks and final norm; checkpoints call it `model`."""

    def __init__(
        self, d: Dimensions, blocks: list[ModernBertBlock], sliding: list[bool], ropes: dict[bool, Rope], bias: bool
    ):
        """Put embeddings, rotary tables and a final norm around ModernBERT's blocks.

        Args:
            d: The sizes.
            blocks: The blocks in order.
            sliding: Whether each block attends to a neighbourhood.
            ropes: The rotary embeddings, by whether the layer attends to a neighbourhood.
            bias: Whether norms have a bias.
        """
        super().__init__()
        self.wanted = RowPicker()
        self.sliding = sliding
        table, norm = Embedding(d.vocabulary, d.hidden, d.dtype), LayerNorm(d.hidden, d.eps, d.dtype, with_bias=bias)
        self.embeddings = nn.Sequential(OrderedDict(tok_embeddings=table, norm=norm))
        self.rotary = nn.ModuleDict({_name(kind): RotaryTable(rope) for kind, rope in ropes.items() if kind in sliding})
        self.layers = nn.ModuleList(blocks)
        self.final_norm = AddLayerNorm(d.hidden, d.eps, d.dtype, with_bias=bias)

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """Return the last hidden states of the requested rows, after the final norm, [R, hidden]."""
        x_TD: Tensor = self.embeddings(ids_T)
        y_TD: Tensor | None = None
        angles = {name: table(positions_T) for name, table in self.rotary.items()}
        for block, sliding in zip(self.layers, self.sliding, strict=True):
            x_TD, y_TD = block(x_TD, y_TD, angles[_name(sliding)], kv)
        assert y_TD is not None
        return self.final_norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))[1]


def _name(sliding: bool) -> str:
    """Return the name in `layer_types` of layers with a window or with full attention."""
    return "sliding_attention" if sliding else "full_attention"


class ModernBertHead(nn.Module):
    """The part of ModernBERT's classifier after pooling: norm(act(dense(x))); checkpoints call it `head`."""

    part = "head"

    def __init__(self, d: Dimensions, fields: Fields, *, norm_bias: bool) -> None:
        super().__init__()
        activation = read_activation(fields, "classifier_activation", "gelu")
        dense = d.whole(d.hidden, d.hidden, bias=fields.flag("classifier_bias", False))
        self.fc = ActivatedProjections({"dense": dense}, activation)
        self.norm = LayerNorm(d.hidden, d.eps, d.dtype, with_bias=norm_bias)

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """Return norm(act(dense(x))) [R, hidden] of pooled states x_RD [R, hidden], which the classifier reads."""
        return self.norm(self.fc(x_RD))


def _ropes(fields: Fields, head_dim: int) -> dict[bool, Rope]:
    """Return ModernBERT's rotary embeddings of full attention (False) and of neighbourhoods (True).

    It reads the new spelling (rope_parameters) and the old one (global_rope_theta).
    """
    full, near = rope_sections(fields)
    return {
        False: read_own_rope(fields, full, head_dim, fields.positive("global_rope_theta", 160_000.0)),
        True: read_own_rope(fields, near, head_dim, fields.positive("local_rope_theta", 10_000.0)),
    }


def _sliding(fields: Fields) -> list[bool]:
    """Return for each layer whether it attends to a neighbourhood only.

    It follows `layer_types`, else it is all layers but every n-th, beginning with the first.
    """
    every, listed = fields.count("global_attn_every_n_layers", 3), read_layer_types(fields)
    return list(listed) if listed is not None else [bool(layer % every) for layer in range(fields.layers)]


def _build(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Encoder, bool]:
    """Return the sizes and the encoder of a ModernBERT config, and whether its norms have a bias."""
    fields.require_off("rope_scaling")
    # Fields of the masked-language-model head, of training and of how transformers runs it, and repeated fields.
    fields.ignore("decoder_bias", "sparse_prediction", "sparse_pred_ignore_index", "tie_word_embeddings")
    fields.ignore("classifier_pooling", "classifier_bias", "classifier_activation")  # read if there is a classifier
    fields.ignore("layer_norm_eps", "position_embedding_type", "reference_compile", "repad_logits_with_grad")
    hidden, heads = fields.count("hidden_size", 768), fields.count("num_attention_heads", 12)
    if hidden % heads or hidden // heads % 2:
        raise fields.refuse(f"hidden_size {hidden} does not divide into {heads} heads of an even size")
    d = Dimensions(
        vocabulary=fields.count("vocab_size", 50368),
        context=fields.count("max_position_embeddings", 8192),
        layers=fields.layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        width=fields.count("intermediate_size", 1152),
        activation=read_activation(fields, "hidden_activation", "gelu"),
        eps=fields.positive("norm_eps", 1e-5),
        storage=storage,
    )
    near = fields.count("local_attention", 128) // 2
    if not near:
        raise fields.refuse("local_attention is 1; it must be at least 2")
    biases = {name: fields.flag(f"{name}_bias", False) for name in ("attention", "mlp", "norm")}
    sliding = _sliding(fields)
    ropes = _ropes(fields, d.head_dim)

    def block(layer: int) -> ModernBertBlock:
        reach = AttentionPattern("local", near) if sliding[layer] else FULL
        attend = Attention(layer, d.own_heads, uncached_kv_spec(d, reach), rope=ropes[sliding[layer]])
        qkv = d.fused("Wqkv", *[d.hidden] * 3, bias=biases["attention"])
        attention = SelfAttention(d, attend, qkv, output_bias=biases["attention"])
        gate_up = d.fused("Wi", d.width, d.width, bias=biases["mlp"])
        mlp = MLP(d, gate_up, "Wo", d.row(d.width, d.hidden, bias=biases["mlp"]))
        return ModernBertBlock(d, attention, mlp, first=layer == 0, norm_bias=biases["norm"])

    trunk = ModernBertBackbone(d, [block(layer) for layer in range(d.layers)], sliding, ropes, biases["norm"])
    return d, Encoder(d, trunk, "model"), biases["norm"]


def build(fields: Fields, storage: StorageConfig) -> Encoder:
    """Build the encoder of a ModernBERT config, without the head of its training."""
    return _build(fields, storage)[1]


def build_classifier(fields: Fields, storage: StorageConfig) -> Embedder:
    """Build a ModernBERT classifier, which returns the scores of labels."""
    d, encoder, norm_bias = _build(fields, storage)
    mode: PoolingMode = "mean" if fields.text("classifier_pooling", "cls") == "mean" else "cls"
    if fields.text("classifier_pooling", "cls") not in ("cls", "mean"):
        raise fields.refuse(
            f"classifier_pooling {fields.value('classifier_pooling')!r} is not supported; cls and mean are"
        )
    scores = read_labels(fields)
    head, classifier = (
        ModernBertHead(d, fields, norm_bias=norm_bias),
        Linear(d.whole(d.hidden, scores["labels"], bias=True), exempt=True),
    )
    return Embedder(encoder, mode, d.hidden, {"prediction": head, "classifier": classifier}, **scores)


FAMILIES = (
    Family(
        "ModernBertModel", "modernbert", build, renames=_RENAMES, ignored=(r"head\..*", r"decoder\..*"),
        also=("ModernBertForMaskedLM",), kind="encoder",
    ),
    Family(
        "ModernBertForSequenceClassification", "modernbert", build_classifier,
        renames=(*_RENAMES, ("head.", "prediction.")), kind="encoder",
    ),
)  # fmt: skip
