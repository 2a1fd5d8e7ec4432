"""The T5 v1.1 encoder-decoder being trained, named as Hugging Face names it, so that its state dict is the checkpoint.

One thing is apart: scores are scaled by 1 / sqrt(D) here, which suits the optimizer, and not in T5; `checkpoint` moves
that factor into the matrices of the queries.

Shapes: B sentences, S source and T target positions, H heads, D head size, C hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.translate.tokenizer import EOS, PAD


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, under the names of a Hugging Face config.json."""

    vocab_size: int = 3072
    d_model: int = 192
    d_kv: int = 32
    num_heads: int = 6
    d_ff: int = 448
    num_layers: int = 3
    num_decoder_layers: int = 2
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    n_positions: int = 128

    def config(self) -> dict[str, Any]:
        """config.json of the exported checkpoint."""
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            **asdict(self),
            "feed_forward_proj": "gated-gelu",
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,
            "decoder_start_token_id": PAD,
            "pad_token_id": PAD,
            "eos_token_id": EOS,
            "torch_dtype": "bfloat16",
        }


def buckets(distance: Tensor, count: int, farthest: int, both_ways: bool) -> Tensor:
    """T5's bucket of each distance (key - query): exact near by, logarithmic up to `farthest` (Raffel et al., 2020)."""
    first = torch.zeros_like(distance)
    if both_ways:
        count //= 2
        first = (distance > 0) * count
        distance = distance.abs()
    else:
        distance = (-distance).clamp_min(0)
    exact = count // 2
    ratio = (distance.clamp_min(1).float() / exact).log() / math.log(farthest / exact)
    far = (exact + (ratio * (count - exact)).long()).clamp_max(count - 1)
    return first + torch.where(distance < exact, distance, far)


class RMSNorm(nn.Module):
    """As torch's, under T5's name of its weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Attention of x to y, with a bias of the distance in the first layer of a stack."""

    def __init__(self, shape: Shape, *, biased: bool) -> None:
        super().__init__()
        inner = shape.num_heads * shape.d_kv
        self.heads, self.scale = shape.num_heads, shape.d_kv**-0.5
        self.q, self.k, self.v = (nn.Linear(shape.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, shape.d_model, bias=False)
        if biased:
            self.relative_attention_bias = nn.Embedding(shape.relative_attention_num_buckets, shape.num_heads)

    def forward(self, x_BTC: Tensor, y_BSC: Tensor, bias_BHTS: Tensor) -> Tensor:
        def heads(x: Tensor) -> Tensor:
            return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

        q, k, v = heads(self.q(x_BTC) * self.scale), heads(self.k(y_BSC)), heads(self.v(y_BSC))
        weights = (q @ k.transpose(-1, -2) + bias_BHTS).softmax(-1)
        out: Tensor = self.o((weights @ v).transpose(1, 2).reshape(x_BTC.shape[0], x_BTC.shape[1], -1))
        return out


class MLP(nn.Module):
    """Gated, with the tanh form of GELU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (nn.Linear(shape.d_model, shape.d_ff, bias=False) for _ in range(2))
        self.wo = nn.Linear(shape.d_ff, shape.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.wo(functional.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))
        return out


class Part(nn.Module):
    """A norm and what follows it, added to the stream."""

    def __init__(self, shape: Shape, name: str, module: nn.Module, dropout: float) -> None:
        super().__init__()
        self.add_module(name, module)
        self.layer_norm = RMSNorm(shape.d_model, shape.layer_norm_epsilon)
        self.name, self.dropout = name, dropout

    def forward(self, x_BTC: Tensor, *context: Tensor) -> Tensor:
        normed = self.layer_norm(x_BTC)
        if self.name == "SelfAttention":
            added = self.get_submodule(self.name)(normed, normed, *context)
        else:
            added = self.get_submodule(self.name)(normed, *context)
        return x_BTC + drop(added, self.dropout, self.training)


class Block(nn.Module):
    """A layer of either stack."""

    def __init__(self, shape: Shape, dropout: float, *, first: bool, decoder: bool) -> None:
        super().__init__()
        parts = [("SelfAttention", Attention(shape, biased=first))]
        parts += [("EncDecAttention", Attention(shape, biased=False))] * decoder
        self.layer = nn.ModuleList(
            Part(shape, name, module, dropout) for name, module in [*parts, ("DenseReluDense", MLP(shape))]
        )


class Stack(nn.Module):
    """The encoder or the decoder."""

    def __init__(self, shape: Shape, dropout: float, *, decoder: bool) -> None:
        super().__init__()
        count = shape.num_decoder_layers if decoder else shape.num_layers
        self.block = nn.ModuleList(Block(shape, dropout, first=i == 0, decoder=decoder) for i in range(count))
        self.final_layer_norm = RMSNorm(shape.d_model, shape.layer_norm_epsilon)
        self.shape, self.decoder = shape, decoder

    def bias(self, length: int) -> Tensor:
        """The bias of each pair of positions, -inf where the decoder may not look [1, H, length, length]."""
        position = torch.arange(length)
        distance = position - position[:, None]
        near = buckets(
            distance,
            self.shape.relative_attention_num_buckets,
            self.shape.relative_attention_max_distance,
            not self.decoder,
        )
        table = self.block[0].layer[0].SelfAttention.relative_attention_bias
        bias: Tensor = table(near).permute(2, 0, 1)[None]
        return bias.masked_fill(distance > 0, float("-inf")) if self.decoder else bias

    def forward(self, x_BTC: Tensor, own: Tensor, *other: Tensor) -> Tensor:
        """own: the bias of self-attention; other: what an encoder gave, and the bias over it."""
        for block in self.block:
            x_BTC = block.layer[0](x_BTC, own)
            if self.decoder:
                x_BTC = block.layer[1](x_BTC, *other)
            x_BTC = block.layer[-1](x_BTC)
        out: Tensor = self.final_layer_norm(x_BTC)
        return out


class T5(nn.Module):
    """Both stacks over one embedding, and a head of its own."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shared = nn.Embedding(shape.vocab_size, shape.d_model)
        self.encoder = Stack(shape, dropout, decoder=False)
        self.decoder = Stack(shape, dropout, decoder=True)
        self.lm_head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self.dropout = dropout
        branch = (2 * (shape.num_layers + shape.num_decoder_layers)) ** -0.5
        for name, weight in self.named_parameters():
            if "relative_attention_bias" in name:
                nn.init.zeros_(weight)
            elif weight.dim() == 2:
                scale = branch if name.endswith(("o.weight", "wo.weight")) else 1.0
                small = name.startswith(("shared", "lm_head"))
                nn.init.normal_(weight, std=0.02 if small else scale * weight.shape[1] ** -0.5)

    def encode(self, source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states [B, S, C], and the bias that hides padding [B, 1, 1, S]."""
        hidden = torch.zeros_like(source_BS, dtype=torch.float32).masked_fill(source_BS == PAD, -1e9)[:, None, None]
        x_BSC = drop(self.shared(source_BS), self.dropout, self.training)
        return self.encoder(x_BSC, self.encoder.bias(source_BS.shape[1]) + hidden), hidden

    def decode(self, target_BT: Tensor, encoded_BSC: Tensor, hidden: Tensor) -> Tensor:
        """Logits [B, T, V] of what follows each position of the target, which begins with `<pad>`."""
        x_BTC = drop(self.shared(target_BT), self.dropout, self.training)
        out: Tensor = self.lm_head(self.decoder(x_BTC, self.decoder.bias(target_BT.shape[1]), encoded_BSC, hidden))
        return out

    def forward(self, source_BS: Tensor, target_BT: Tensor, smoothing: float = 0.0) -> Tensor:
        """Summed cross-entropy in nats of a target that ends with `</s>` and is padded."""
        given = functional.pad(target_BT[:, :-1], (1, 0), value=PAD)
        logits = self.decode(given, *self.encode(source_BS)).flatten(0, 1)
        return functional.cross_entropy(
            logits, target_BT.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing
        )


def drop(x_BTC: Tensor, share: float, training: bool) -> Tensor:
    """Dropout whose mask all positions of a sentence share: a tenth of the random numbers, which a CPU makes slowly."""
    if not training or not share:
        return x_BTC
    kept = torch.rand(x_BTC.shape[0], 1, x_BTC.shape[2]) >= share
    return x_BTC * (kept / (1 - share))


def checkpoint(state: dict[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """The tensors of a Hugging Face checkpoint: queries take the factor that T5's scores have not."""
    return _with_queries(state, shape.d_kv**-0.5)


def state_of(tensors: dict[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """What `checkpoint` was made of, in float32."""
    return _with_queries({name: value.float() for name, value in tensors.items()}, shape.d_kv**0.5)


def _with_queries(tensors: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    return {name: value * factor if name.endswith("Attention.q.weight") else value for name, value in tensors.items()}
