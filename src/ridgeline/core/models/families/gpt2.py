"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases, a plain MLP; matrices stored [in, out]."""

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import MLP, Decoder
from ridgeline.core.models.common.dimensions import Dimensions, divided, read_activation
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.row_ops import RowPicker


class Gpt2SelfAttention(nn.Module):
    """The self-attention of GPT-2, which stores one matrix for queries, keys and values."""

    part = "attention"

    def __init__(self, d: Dimensions, layer: int) -> None:
        super().__init__()
        self.head_dim = d.head_dim
        self.qkv = Projections(d.fused("c_attn", *[d.hidden] * 3, bias=True, transposed=True))
        self.attend = Attention(layer, d.own_heads, d.kv_spec())
        self.c_proj = Linear(d.row(d.hidden, d.hidden, bias=True, transposed=True))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor, kv: KVContext) -> Tensor:
        """Return the attention output [rows, hidden] for x_TD [rows, hidden]."""
        q_THD, k_THD, v_THD = (part.reshape(len(part), -1, self.head_dim) for part in self.qkv(x_TD))
        return self.all_reduce(self.c_proj(self.attend(q_THD, k_THD, v_THD, kv)))


class Gpt2Block(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); the next norm performs the second addition."""

    def __init__(self, d: Dimensions, layer: int) -> None:
        super().__init__()
        self.ln_1 = AddLayerNorm(d.hidden, d.eps, d.dtype)
        self.attn = Gpt2SelfAttention(d, layer)
        self.ln_2 = AddLayerNorm(d.hidden, d.eps, d.dtype)
        up = d.fused("c_fc", d.width, bias=True, transposed=True)
        self.mlp = MLP(d, up, "c_proj", d.row(d.width, d.hidden, bias=True, transposed=True))

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a GPT-2 block; it comes and goes as two summands [rows, hidden]."""
        x_TD, normed_TD = self.ln_1(x_TD, y_TD)
        x_TD, normed_TD = self.ln_2(x_TD, self.attn(normed_TD, kv))
        return x_TD, self.mlp(normed_TD)


class Gpt2Backbone(nn.Module):
    """GPT-2's decoder without its head: token and position embeddings, blocks and final norm.

    Checkpoints call it `transformer`.
    """

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.wte = Embedding(d.vocabulary, d.hidden, d.dtype, d.vocabulary_shard)
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.vocabulary_shard)
        self.wpe = Embedding(d.context, d.hidden, d.dtype)
        self.h = nn.ModuleList(Gpt2Block(d, layer) for layer in range(d.layers))
        self.ln_f = AddLayerNorm(d.hidden, d.eps, d.dtype)

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """Return the last hidden states of the requested rows, after the final norm, [R, hidden]."""
        x_TD: Tensor = self.all_reduce(self.wte(ids_T))
        y_TD: Tensor = self.wpe(positions_T)  # the first norm adds it
        for block in self.h:
            x_TD, y_TD = block(x_TD, y_TD, kv)
        _, normed_RD = self.ln_f(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))
        return normed_RD


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a GPT-2 config, which has names of its own for the sizes."""
    fields.ignore("n_ctx")  # repeats n_positions
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.require_off(name)
    if not fields.flag("scale_attn_weights", True):
        raise fields.refuse("scale_attn_weights = false is not supported")
    hidden, heads = fields.count("n_embd"), fields.count("n_head")
    d = Dimensions(
        vocabulary=fields.count("vocab_size"),
        context=fields.count("n_positions"),
        layers=fields.count("n_layer", most=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=divided(fields, "n_embd", hidden, heads),
        width=fields.count("n_inner", 4 * hidden),
        activation=read_activation(fields, "activation_function", "gelu_new"),
        eps=fields.positive("layer_norm_epsilon", 1e-5),
        storage=storage,
    )
    tied = fields.flag("tie_word_embeddings", True)
    return Decoder(d, Gpt2Backbone(d), tied=tied, names=("transformer", "wte"))


FAMILY = Family("GPT2LMHeadModel", "gpt2", build, "transformer.", ignored=(r"(.*\.)?h\.\d+\.attn\.(masked_)?bias",))
