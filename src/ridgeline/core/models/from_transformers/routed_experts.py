"""The experts of a transformers class as our Experts op.

transformers describes the experts of most classes alike (`use_experts_implementation`): the order of the gate's and
the up matrix's rows, whether matrices are transposed, biases, and a function between the matrices. Our op takes the
place of those whose function it knows.

Shapes: T rows of a step, D hidden, K experts per token, N sampled numbers.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.rank_collectives import JoinsRanks
from ridgeline.core.models.from_transformers.rank_part import WHOLE_CLASS, RankPart
from ridgeline.core.ops.expert_layout import FLAT, INTERLEAVED, TURNED, ExpertLayout
from ridgeline.core.ops.experts import Experts, ExpertSizes
from ridgeline.core.ops.nonlinearity import ACTIVATIONS, ClampedGate

_GATED, _UNGATED = ("gate_proj", "up_proj", "down_proj"), ("up_proj", "down_proj")

# By has_gate, is_concatenated, is_transposed and has_bias. None: what `Experts.match_checkpoint` tells apart.
_LAYOUTS: Mapping[tuple[bool, bool, bool, bool], ExpertLayout | None] = MappingProxyType(
    {
        (True, True, False, False): None,
        (False, True, False, False): None,
        (True, True, True, False): TURNED,
        (True, False, True, True): INTERLEAVED,
    }
)


class RoutedExperts(JoinsRanks, Experts):
    """An Experts op in the place of a class's experts, which are called with the ids of experts before their weights.

    The number of experts per token is that of a traced call.
    """

    @override
    def __call__(self, x_xD: Tensor, picked_TK: Tensor, weights_TK: Tensor) -> Tensor:
        active = picked_TK.shape[-1]
        weights_TK, picked_TK = (x.reshape(-1, active).contiguous() for x in (weights_TK.float(), picked_TK))
        out_TD: Tensor = super().__call__(x_xD.reshape(-1, self.hidden).contiguous(), weights_TK, picked_TK)
        return self.joined(out_TD).view(x_xD.shape)

    def observe(self, inputs: tuple[Any, ...], output: Any, rows: int) -> None:
        """Record the number of experts per token of a traced call."""
        self.set_active(inputs[1].shape[-1])


class FlatExperts(nn.Module):
    """Experts whose matrices belong to a module inside, `mlp`, in the place of a class's (DBRX)."""

    def __init__(self, mlp: RoutedExperts) -> None:
        super().__init__()
        self.mlp = mlp

    @override
    def forward(self, x_xD: Tensor, picked_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return the weighted sum of each row's experts."""
        out_xD: Tensor = self.mlp(x_xD, picked_TK, weights_TK)
        return out_xD


def routed_experts(module: Any, names: tuple[str, ...] | None, part: RankPart = WHOLE_CLASS) -> RoutedExperts | None:
    """Return our op for a module of a class on the meta device, or None if it is none that our op can replace.

    Args:
        module: A module of a class.
        names: The names of a single expert's matrices in released checkpoints; None if experts are released together.
        part: The part of the class that this rank holds.
    """
    if not hasattr(module, "has_post_expert_norm") or module.has_post_expert_norm:
        return None
    has_gate, is_transposed, bias = module.has_gate, module.is_transposed, module.has_bias
    kind = has_gate, module.is_concatenated, is_transposed, bias
    if kind not in _LAYOUTS:
        return None
    activation = _activation(module)
    if activation is None:
        return None
    down: Tensor = module.down_proj
    whole = part.whole_shape(down)
    count, hidden, width = (whole[0], *whole[:0:-1]) if is_transposed else whole
    return RoutedExperts(
        ExpertSizes(count, 1, width),
        hidden,
        activation,
        down.dtype,
        names=names or (_GATED if has_gate else _UNGATED),
        bias=bias,
        layout=_LAYOUTS[kind],
        shard=part.experts_of(down),
        gathered=part.gathered,
    )


def flat_experts(module: Any, part: RankPart = WHOLE_CLASS) -> FlatExperts | None:
    """Return our experts for those of a class that are rows of three matrices (DBRX), or None for another module.

    Args:
        module: A module of a class on the meta device.
        part: The part of the class that this rank holds.
    """
    mlp = module._modules.get("mlp")
    if mlp is None or tuple(mlp._parameters) != FLAT.names:
        return None
    (rows, hidden), gate_N, one_11 = part.whole_shape(mlp.w1), _sample(), torch.ones(1, 1, device="cpu")
    activation = _named(mlp.forward(gate_N[:, None], one_11, one_11, one_11)[:, 0], gate_N, gate_N)
    if activation is None:
        return None
    sizes = ExpertSizes(module.num_experts, 1, rows // module.num_experts)
    shard, dtype = part.experts_of(mlp.w1), mlp.w1.dtype
    return FlatExperts(
        RoutedExperts(sizes, hidden, activation, dtype, layout=FLAT, shard=shard, gathered=part.gathered)
    )


def _activation(module: Any) -> str | ClampedGate | None:
    """Return what a class computes between the matrices of an expert, found by its results; None if it is unknown."""
    if any(True for child in module.children() for _ in child.parameters()):
        return None
    gate_N = _sample()
    up_N = gate_N.flip(0) + 1
    if not module.has_gate:
        return _named(module.act_fn(gate_N), gate_N, torch.ones_like(gate_N))
    both_2N = torch.stack([gate_N, up_N])
    joined = both_2N.flatten() if module.is_concatenated else both_2N.T.flatten()
    given_N = module._apply_gate(joined)
    clamped = _clamped(module)
    if clamped is not None and torch.allclose(given_N, clamped(gate_N, up_N)):
        return clamped
    return _named(given_N, gate_N, up_N)


def _sample() -> Tensor:
    """Return numbers that tell activations apart, and that lie beyond the limits of clamped gates."""
    return torch.linspace(-20, 20, 641, device="cpu")


def _named(given_N: Tensor, gate_N: Tensor, up_N: Tensor) -> str | None:
    """Return the name of the activation that gives these numbers, or None."""
    return next((name for name, act in ACTIVATIONS.items() if torch.allclose(given_N, act(gate_N) * up_N)), None)


def _clamped(module: Any) -> ClampedGate | None:
    """Return the clamped gate that a module's numbers describe, or None if it has no such numbers."""
    for alpha, limit in (("alpha", "limit"), ("swiglu_alpha", "swiglu_limit")):
        if isinstance(getattr(module, alpha, None), float) and isinstance(getattr(module, limit, None), float):
            return ClampedGate(getattr(module, alpha), getattr(module, limit))
    return None
