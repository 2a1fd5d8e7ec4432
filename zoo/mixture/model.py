"""The Mixtral decoder being trained: Llama whose MLPs are mixtures of experts, named as Hugging Face names it.

Shapes: B rows, T positions, C hidden size, N = B x T tokens, E experts, K experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.tales import model as tales
from zoo.tales.model import Block, Llama


@dataclass(frozen=True)
class Shape(tales.Shape):
    """Sizes of the decoder; `intermediate_size` is of one expert."""

    hidden_size: int = 128
    intermediate_size: int = 96
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    def config(self, bos: int, eos: int) -> dict[str, Any]:
        """config.json of the exported checkpoint."""
        config = super().config(bos, eos)
        del config["attention_bias"], config["mlp_bias"]
        return {**config, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None}


class Expert(nn.Module):
    """SwiGLU, under Mixtral's names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.w3 = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.w2 = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x_NC: Tensor) -> Tensor:
        out: Tensor = self.w2(functional.silu(self.w1(x_NC)) * self.w3(x_NC))
        return out


class Experts(nn.Module):
    """A router and its experts. `balance`: of the last forward, E x the sum over experts of the share of tokens that
    picked one (over K) times its mean probability: 1 where all are alike (Switch Transformers, arXiv:2101.03961).

    It is taken over the whole batch, in which all sources are mixed: experts are to be used alike by all of them
    together, and may differ in whose they are.
    """

    balance: Tensor

    def __init__(self, shape: tales.Shape) -> None:
        super().__init__()
        assert isinstance(shape, Shape)
        self.active = shape.num_experts_per_tok
        self.gate = nn.Linear(shape.hidden_size, shape.num_local_experts, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(shape.num_local_experts))

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_NC = x_BTC.flatten(0, 1)
        with torch.autocast("cpu", enabled=False):
            probability_NE = functional.linear(x_NC.float(), self.gate.weight).softmax(dim=-1)
        weight_NK, picked_NK = probability_NE.topk(self.active, dim=-1)
        weight_NK = weight_NK / weight_NK.sum(dim=-1, keepdim=True)
        load_E = torch.bincount(picked_NK.flatten(), minlength=len(self.experts))
        self.balance = len(self.experts) * (load_E / picked_NK.numel() * probability_NE.mean(dim=0)).sum()
        order = picked_NK.flatten().argsort()
        token = order // self.active
        parts = torch.split(x_NC[token], load_E.tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        weighed = out * weight_NK.flatten()[order, None].to(out.dtype)
        return torch.zeros_like(x_NC, dtype=out.dtype).index_add(0, token, weighed).view(x_BTC.shape)


class Mixtral(Llama):
    """The decoder, tied as Llama's is. In training its loss has BALANCE times the mean of the layers' balances."""

    BALANCE = 0.02

    @staticmethod
    def blocks(shape: tales.Shape, dropout: float) -> list[nn.Module]:
        """Its layers."""
        return [Block(shape, dropout, "block_sparse_moe", Experts) for _ in range(shape.num_hidden_layers)]

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """As Llama's, with the balance in training."""
        loss = super().forward(tokens_BT, targets_BT)
        if not self.training:
            return loss
        balances = [layer.block_sparse_moe.balance for layer in self.model.layers]
        return loss + self.BALANCE * torch.stack(balances).mean()
