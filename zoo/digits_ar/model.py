"""The decoder being trained: Llama with a table and a head of image tokens, named as Janus names them.

Shapes: B rows, T positions, C hidden size, N image tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.digits_ar.autoencoder import BITS, CODES, codebook
from zoo.digits_ar.tokenizer import NO_TARGET
from zoo.tales.model import Llama
from zoo.tales.model import Shape as LlamaShape


@dataclass(frozen=True)
class Shape(LlamaShape):
    """Sizes of the decoder. A prompt has room beside the 64 tokens of a picture."""

    vocab_size: int = 480
    hidden_size: int = 128
    intermediate_size: int = 352
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 128


class Aligner(nn.Module):
    """What brings an image token's own row to the width of the decoder: two matrices with GELU between."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, outputs)
        self.hidden_layers = nn.ModuleList([nn.Linear(outputs, outputs)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hidden_layers[0](functional.gelu(self.fc1(x)))
        return out


class Head(nn.Module):
    """Logits of image tokens."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj_out, self.vision_head = nn.Linear(inputs, inputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.vision_head(functional.gelu(self.proj_out(x)))
        return out


class Drawer(Llama):
    """The decoder of both vocabularies: ids are those of image tokens, then those of text, moved on by CODES."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.generation_embeddings = nn.Embedding.from_pretrained(codebook() * BITS**0.5, freeze=False)
        self.generation_aligner = Aligner(BITS, shape.hidden_size)
        self.generation_head = Head(shape.hidden_size, CODES)

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        """As Llama's, of either vocabulary."""
        text_BTC = self.model.embed_tokens((tokens_BT - CODES).clamp(min=0))
        rows = self.generation_embeddings(tokens_BT.clamp(max=CODES - 1))
        return torch.where((tokens_BT < CODES)[..., None], self.generation_aligner(rows), text_BTC)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy of image tokens in nats."""
        own = targets_BT != NO_TARGET
        logits_NV: Tensor = self.generation_head(self.hidden(tokens_BT)[own])
        return functional.cross_entropy(logits_NV, targets_BT[own])
