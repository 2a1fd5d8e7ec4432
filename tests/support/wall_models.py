"""Models that use what no shipped family does, and what each computes in a few lines of plain torch.

An encoder-decoder, decoders that keep latents or keys and values of different widths, decoders whose layers reach
differently, and an encoder without a head. Sizes are small and awkward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.blocks import add_norm
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention, PositionBias
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.linear import Linear, LMHead, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import AddLayerNorm, AddRMSNorm, RMSNorm
from ridgeline.core.ops.rotary import Rope, RotaryTable
from ridgeline.core.ops.stored_module import StoredModule, weight
from ridgeline.core.ops.work import CAUSAL, CROSS, ENCODER_FULL, FULL, AttentionPattern, sliding_window

FP32 = torch.float32
VOCABULARY, HIDDEN, WIDTH, EPS = 67, 24, 31, 1e-5
CONTEXT = 96
M = TypeVar("M", bound=Model)
FAR = 6  # distances beyond it have the same bias


@dataclass(frozen=True, slots=True)
class Layer:
    """Self-attention of one layer. biased: whether it has a learned bias of the distance. value_dim: of a latent."""

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    reach: AttentionPattern = CAUSAL
    rope: Rope | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    biased: bool = False
    value_dim: int | None = None

    @property
    def spec(self) -> KVSpec:
        """What it keeps."""
        return KVSpec(self.kv_heads, self.k_dim, self.v_dim, self.reach, FP32)

    @property
    def width(self) -> int:
        """Of a head's result."""
        return self.v_dim or self.value_dim or 0


LATENT = (Layer(3, 1, 14, 0, rope=Rope(4, 100.0), scale=0.3, value_dim=9),) * 2
WIDTHS = (
    Layer(4, 2, 12, 5, rope=Rope(6, 1000.0)),
    Layer(3, 3, 5, 12, sliding_window(6), softcap=2.0),
)
_FULL = Layer(4, 2, 6, 6, softcap=1.5, sinks=True)
_WINDOWED = Layer(3, 1, 10, 10, sliding_window(5), rope=Rope(8, 100.0), sinks=True)
MIXED = (_FULL, _WINDOWED, Layer(2, 2, 8, 8, AttentionPattern("chunked", 4), rope=Rope(8, 50.0)), _FULL, _WINDOWED)
EVERYTHING = (
    Layer(3, 1, 14, 0, sliding_window(5), rope=Rope(4, 100.0), value_dim=9),
    Layer(4, 2, 12, 5, AttentionPattern("chunked", 7), sinks=True, softcap=3.0),
    Layer(2, 1, 8, 8, biased=True, scale=0.5),
    Layer(3, 1, 13, 0, sinks=True, value_dim=13),
)
ENCODING = Layer(3, 3, 6, 6, ENCODER_FULL, biased=True)
DECODING = Layer(3, 1, 10, 10, biased=True)
CROSSING = Layer(4, 2, 6, 6, CROSS)
BOTH_WAYS = Layer(3, 3, 10, 10, FULL)


# -- parts ------------------------------------------------------------------------------------------------------------


def matrix(inputs: int, outputs: int, *, bias: bool = False) -> MatrixSpec:
    """A matrix of one rank."""
    return MatrixSpec(inputs, outputs, FP32, bias)


class DistanceBias(StoredModule):
    """A number a head for each distance of a key from its query, `FAR` at most (as T5's, without its buckets)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = weight(heads, 2 * FAR + 1, dtype=FP32)

    def forward(self, distance: Tensor) -> Tensor:
        """int64 [...] -> [heads, ...]."""
        return self.weight[:, distance.clamp(-FAR, FAR) + FAR]


def attention_op(layer: Layer, place: int) -> Attention:
    """The op of a layer; `place`: among those that keep something."""
    bias: PositionBias | None = DistanceBias(layer.heads) if layer.biased else None
    return Attention(
        place,
        layer.heads,
        layer.spec,
        rope=layer.rope,
        scale=layer.scale,
        softcap=layer.softcap,
        sinks=layer.sinks,
        bias=bias,
        value_dim=layer.value_dim,
    )


class SelfAttention(nn.Module):
    """Attention of rows to their own sequence; a latent has no projection to values."""

    part = "attention"

    def __init__(self, layer: Layer, place: int, *, bias: bool = False) -> None:
        super().__init__()
        self.k_dim, self.v_dim = layer.k_dim, layer.v_dim
        widths = {
            "q_proj": layer.heads * layer.k_dim,
            "k_proj": layer.kv_heads * layer.k_dim,
            "v_proj": layer.kv_heads * layer.v_dim,
        }
        self.qkv = Projections({name: matrix(HIDDEN, width, bias=bias) for name, width in widths.items() if width})
        self.rotary = None if layer.rope is None else RotaryTable(layer.rope)
        self.attend = attention_op(layer, place)
        self.o_proj = Linear(matrix(layer.heads * layer.width, HIDDEN, bias=bias))

    def forward(self, x_TD: Tensor, positions_T: Tensor, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden], positions_T [rows] -> [rows, hidden]."""
        q, k, *v = self.qkv(x_TD)
        q_THD, k_TKD = (part.view(len(part), -1, self.k_dim) for part in (q, k))
        v_TKW = v[0].view(len(x_TD), -1, self.v_dim) if v else None
        angles = None if self.rotary is None else self.rotary(positions_T)
        out: Tensor = self.o_proj(self.attend(q_THD, k_TKD, v_TKW, kv, angles))
        return out


class CrossAttention(nn.Module):
    """Attention to an encoder's rows, whose keys and values are kept from the step that has them."""

    part = "attention"

    def __init__(self, layer: Layer, place: int) -> None:
        super().__init__()
        self.dim = layer.k_dim
        self.q_proj = Linear(matrix(HIDDEN, layer.heads * layer.k_dim))
        self.kv = Projections(dict.fromkeys(("k_proj", "v_proj"), matrix(HIDDEN, layer.kv_heads * layer.k_dim)))
        self.attend = attention_op(layer, place)
        self.o_proj = Linear(matrix(layer.heads * layer.width, HIDDEN))

    def forward(self, x_TD: Tensor, encoded_ED: Tensor | None, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden], encoded_ED [encoder rows, hidden] -> [rows, hidden]."""
        q_THD = self.q_proj(x_TD).view(len(x_TD), -1, self.dim)
        k_EKD = v_EKD = None
        if encoded_ED is not None:
            k_EKD, v_EKD = (part.view(len(part), -1, self.dim) for part in self.kv(encoded_ED))
        out: Tensor = self.o_proj(self.attend(q_THD, k_EKD, v_EKD, kv))
        return out


class MLP(nn.Module):
    """down(gelu(up(x)))."""

    part = "feed-forward"

    def __init__(self) -> None:
        super().__init__()
        self.activated = ActivatedProjections({"up_proj": matrix(HIDDEN, WIDTH)}, "gelu")
        self.down_proj = Linear(matrix(WIDTH, HIDDEN))

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        out: Tensor = self.down_proj(self.activated(x_TD))
        return out


class Block(nn.Module):
    """A norm before self-attention, before cross-attention where it looks at an encoder, and before the MLP."""

    def __init__(self, attention: SelfAttention, cross: CrossAttention | None = None, *, first: bool) -> None:
        """first: nothing is to be added by the first norm."""
        super().__init__()
        self.attention_norm = (RMSNorm if first else AddRMSNorm)(HIDDEN, EPS, FP32)
        self.attention = attention
        self.cross_norm = None if cross is None else AddRMSNorm(HIDDEN, EPS, FP32)
        self.cross = cross
        self.mlp_norm = AddRMSNorm(HIDDEN, EPS, FP32)
        self.mlp = MLP()

    def forward(
        self, x_TD: Tensor, y_TD: Tensor | None, positions_T: Tensor, kv: KVContext, encoded_ED: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The stream as two summands [rows, hidden] -> as two summands."""
        x_TD, normed_TD = add_norm(self.attention_norm, x_TD, y_TD)
        y_TD = self.attention(normed_TD, positions_T, kv)
        if self.cross_norm is not None and self.cross is not None:
            x_TD, normed_TD = self.cross_norm(x_TD, y_TD)
            y_TD = self.cross(normed_TD, encoded_ED, kv)
        x_TD, normed_TD = self.mlp_norm(x_TD, y_TD)
        return x_TD, self.mlp(normed_TD)


class PostNormBlock(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)); the second norm is left to whoever follows (BERT's order)."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.norm = AddLayerNorm(HIDDEN, EPS, FP32)
        self.attention = SelfAttention(layer, -1, bias=True)
        self.mlp_norm = AddLayerNorm(HIDDEN, EPS, FP32)
        self.mlp = MLP()

    def forward(self, x_TD: Tensor, y_TD: Tensor, positions_T: Tensor, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Two summands [rows, hidden] -> two summands."""
        _, x_TD = self.norm(x_TD, y_TD)
        _, x_TD = self.mlp_norm(x_TD, self.attention(x_TD, positions_T, kv))
        return x_TD, self.mlp(x_TD)


# -- models -----------------------------------------------------------------------------------------------------------


class WallModel(Model):
    """What the models below have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.context, self.vocabulary, self.storage = CONTEXT, VOCABULARY, StorageConfig(FP32)

    def finish(self, ties: Mapping[str, str]) -> None:
        """Once all parts are there."""
        attention = [op for _, op in self.ops() if isinstance(op, Attention) and op.spec.is_cached]
        assert [op.layer for op in attention] == list(range(len(attention)))
        self.kv_specs, self.ties = tuple(op.spec for op in attention), ties
        self.tie()


class Decoder(WallModel):
    """Blocks around attention of any sort, and a head of its own if it has one."""

    def __init__(self, layers: Sequence[Layer], *, has_head: bool = True) -> None:
        super().__init__()
        self.embed = Embedding(VOCABULARY, HIDDEN, FP32)
        blocks = [Block(SelfAttention(layer, place), first=place == 0) for place, layer in enumerate(layers)]
        self.layers = nn.ModuleList(blocks)
        self.norm = AddRMSNorm(HIDDEN, EPS, FP32)
        self.has_head = has_head
        if has_head:
            self.lm_head = LMHead(matrix(HIDDEN, VOCABULARY))
        self.finish({})

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden."""
        x_TD, y_TD = self.embed(ids_T), None
        for block in self.layers:
            x_TD, y_TD = block(x_TD, y_TD, positions_T, kv)
        assert y_TD is not None
        normed_RD: Tensor = self.norm(x_TD[rows_R], y_TD[rows_R])[1]
        return normed_RD

    def head(self, x_RD: Tensor) -> Tensor:
        """As Model.head."""
        logits_RV: Tensor = self.lm_head(x_RD)
        return logits_RV


class EncoderDecoder(WallModel):
    """One embedding for both sides and the head, one of positions, and biases by distance."""

    has_cross_attention = True
    encoder_context = CONTEXT

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.shared = Embedding(VOCABULARY, HIDDEN, FP32)
        self.positions = Embedding(CONTEXT, HIDDEN, FP32)
        self.encoder = nn.ModuleList(Block(SelfAttention(ENCODING, -1), first=False) for _ in range(layers))
        self.encoder_norm = AddRMSNorm(HIDDEN, EPS, FP32)
        self.decoder = nn.ModuleList(
            Block(SelfAttention(DECODING, 2 * i), CrossAttention(CROSSING, 2 * i + 1), first=False)
            for i in range(layers)
        )
        self.norm = AddRMSNorm(HIDDEN, EPS, FP32)
        self.lm_head = LMHead(matrix(HIDDEN, VOCABULARY))
        self.finish({"lm_head.matrix.weight": "shared.weight"})

    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """As Model.encode."""
        x_ED, y_ED = self.shared(ids_E), self.positions(positions_E)
        for block in self.encoder:
            x_ED, y_ED = block(x_ED, y_ED, positions_E, kv)
        encoded_ED: Tensor = self.encoder_norm(x_ED, y_ED)[1]
        return encoded_ED

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden."""
        x_TD, y_TD = self.shared(ids_T), self.positions(positions_T)
        for block in self.decoder:
            x_TD, y_TD = block(x_TD, y_TD, positions_T, kv, encoded_ED)
        normed_RD: Tensor = self.norm(x_TD[rows_R], y_TD[rows_R])[1]
        return normed_RD

    def head(self, x_RD: Tensor) -> Tensor:
        """As Model.head."""
        logits_RV: Tensor = self.lm_head(x_RD)
        return logits_RV


class Encoder(WallModel):
    """Hidden states of tokens that all see each other; nothing is kept, and there are no logits."""

    has_head = False

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = Embedding(VOCABULARY, HIDDEN, FP32)
        self.positions = Embedding(CONTEXT, HIDDEN, FP32)
        self.layers = nn.ModuleList(PostNormBlock(BOTH_WAYS) for _ in range(layers))
        self.norm = AddLayerNorm(HIDDEN, EPS, FP32)
        self.finish({})

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden."""
        x_TD, y_TD = self.embed(ids_T), self.positions(positions_T)
        for block in self.layers:
            x_TD, y_TD = block(x_TD, y_TD, positions_T, kv)
        normed_RD: Tensor = self.norm(x_TD[rows_R], y_TD[rows_R])[1]
        return normed_RD


def filled(model: M, seed: int = 0) -> M:
    """The model with random weights; scales of norms lie around 1, tokens' embeddings are small beside what layers
    add: else a tied head says a token again and again."""
    generator = torch.Generator().manual_seed(seed)
    for path, parameter in list(model.named_parameters()):
        module, _, name = path.rpartition(".")
        noise = torch.randn(parameter.shape, generator=generator) * (0.08 if module in ("embed", "shared") else 0.25)
        scale = module.endswith("norm") and name == "weight"
        setattr(model.get_submodule(module), name, nn.Parameter(1 + noise if scale else noise, requires_grad=False))
    model.tie()
    return model


DECODERS = {"latent": LATENT, "widths": WIDTHS, "mixed reaches": MIXED, "everything": EVERYTHING}
HEADLESS = ("encoder", "embedder")
MODELS = (*DECODERS, "encoder-decoder", *HEADLESS)


def wall_model(name: str, seed: int = 0) -> Model:
    """One of MODELS with random weights."""
    if name in DECODERS:
        return filled(Decoder(DECODERS[name]), seed)
    if name == "embedder":
        return filled(Decoder(MIXED, has_head=False), seed)
    return filled(EncoderDecoder() if name == "encoder-decoder" else Encoder(), seed)


# -- the same in plain torch, one whole sequence at a time, in float64 ------------------------------------------------

Weights = Mapping[str, Tensor]


def weights_of(model: Model) -> dict[str, Tensor]:
    """The model's tensors in float64, by the names that a checkpoint would give them."""
    return {name: getattr(module, attribute).double() for name, (module, attribute) in model.tensors().items()}


def below(weights: Weights, path: str) -> dict[str, Tensor]:
    """The weights under a path."""
    return {name.removeprefix(f"{path}."): w for name, w in weights.items() if name.startswith(f"{path}.")}


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def rms(x: Tensor, scale: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * scale


def layer_norm(x: Tensor, w: Weights) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * w["weight"] + w["bias"]


def mlp(x: Tensor, w: Weights) -> Tensor:
    y = linear(x, w, "up_proj")
    return linear(y * (1 + torch.erf(y / 2**0.5)) / 2, w, "down_proj")


def turned(x_THD: Tensor, rope: Rope, start: int) -> Tensor:
    """Pairs of entries as complex numbers, turned by their position's angle."""
    half = rope.dim // 2
    frequency = rope.theta ** (-torch.arange(half).double() / half)
    angle_T1N = torch.arange(len(x_THD))[:, None, None] * frequency
    pairs = torch.complex(x_THD[..., start : start + half], x_THD[..., start + half : start + rope.dim])
    pairs = pairs * torch.polar(torch.ones_like(angle_T1N), angle_T1N)
    return torch.cat([x_THD[..., :start], pairs.real, pairs.imag, x_THD[..., start + rope.dim :]], dim=-1)


def mask(reach: AttentionPattern, queries: int, keys: int) -> Tensor:
    """Which keys each query sees, bool [queries, keys]."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    everything = torch.ones(queries, keys, dtype=torch.bool)
    return {
        "full": everything,
        "cross": everything,
        "causal": j <= i,
        "window": (j <= i) & (i - j < reach.size),
        "chunked": (j <= i) & (i // max(reach.size, 1) == j // max(reach.size, 1)),
    }[reach.kind]


def attention(x: Tensor, other: Tensor, w: Weights, layer: Layer) -> Tensor:
    """Queries of x over keys and values of other (x itself, or what an encoder gave)."""
    q, k = (linear(y, w, name).view(len(y), -1, layer.k_dim) for y, name in ((x, "q_proj"), (other, "k_proj")))
    if layer.rope is not None:  # of a latent what follows the value is turned, because the value has no position
        q, k = (turned(y, layer.rope, 0 if layer.v_dim else layer.width) for y in (q, k))
    v = linear(other, w, "v_proj").view(len(other), -1, layer.v_dim) if layer.v_dim else k[..., : layer.width]
    k, v = (y.repeat_interleave(layer.heads // layer.kv_heads, dim=1) for y in (k, v))
    scores = torch.einsum("qhd,lhd->hql", q, k) * (layer.scale or layer.k_dim**-0.5)
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if layer.biased:
        distance = torch.arange(len(other)) - torch.arange(len(x))[:, None]
        scores = scores + w["attend.bias.weight"][:, distance.clamp(-FAR, FAR) + FAR]
    weights = scores.exp() * mask(layer.reach, len(x), len(other))
    total = weights.sum(-1, keepdim=True)
    if layer.sinks:
        total = total + w["attend.sinks_H"].exp()[:, None, None]
    return linear(torch.einsum("hql,lhd->qhd", weights / total, v).flatten(1), w, "o_proj")


def block(x: Tensor, w: Weights, layer: Layer, encoded: Tensor | None = None) -> Tensor:
    normed = rms(x, w["attention_norm.weight"])
    x = x + attention(normed, normed, below(w, "attention"), layer)
    if encoded is not None:
        x = x + attention(rms(x, w["cross_norm.weight"]), encoded, below(w, "cross"), CROSSING)
    return x + mlp(rms(x, w["mlp_norm.weight"]), below(w, "mlp"))


def decoder_states(w: Weights, layers: Sequence[Layer], ids: Sequence[int]) -> Tensor:
    """Of every position [positions, hidden]."""
    x = w["embed.weight"][list(ids)]
    for index, layer in enumerate(layers):
        x = block(x, below(w, f"layers.{index}"), layer)
    return rms(x, w["norm.weight"])


def encoder_decoder_logits(w: Weights, encoder_ids: Sequence[int], ids: Sequence[int]) -> Tensor:
    """Of every position of the decoder [positions, vocabulary]."""
    encoded = w["shared.weight"][list(encoder_ids)] + w["positions.weight"][: len(encoder_ids)]
    for index in range(2):
        encoded = block(encoded, below(w, f"encoder.{index}"), ENCODING)
    encoded = rms(encoded, w["encoder_norm.weight"])
    x = w["shared.weight"][list(ids)] + w["positions.weight"][: len(ids)]
    for index in range(2):
        x = block(x, below(w, f"decoder.{index}"), DECODING, encoded)
    return rms(x, w["norm.weight"]) @ w["shared.weight"].T


def encoder_states(w: Weights, ids: Sequence[int]) -> Tensor:
    """Of every position [positions, hidden]."""
    x = w["embed.weight"][list(ids)] + w["positions.weight"][: len(ids)]
    for index in range(2):
        own = below(w, f"layers.{index}")
        x = layer_norm(x, below(own, "norm"))
        x = layer_norm(x + attention(x, x, below(own, "attention"), BOTH_WAYS), below(own, "mlp_norm"))
        x = x + mlp(x, below(own, "mlp"))
    return layer_norm(x, below(w, "norm"))


def reference(name: str, model: Model, ids: Sequence[int], encoder: Sequence[int] = ()) -> Tensor:
    """What one of MODELS gives for every position: logits, or hidden states where it has no head."""
    weights = weights_of(model)
    if name in DECODERS:
        return linear(decoder_states(weights, DECODERS[name], ids), weights, "lm_head")
    if name == "encoder-decoder":
        return encoder_decoder_logits(weights, encoder, ids)
    return encoder_states(weights, ids) if name == "encoder" else decoder_states(weights, MIXED, ids)
