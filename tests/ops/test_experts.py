"""A mixture against a loop over tokens and picks, and its price against a simulated router."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.core.ops.experts import Experts, ExpertSizes
from ridgeline.core.ops.work import StepSegment, Work

pytestmark = pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels
UNGATED = {"activation": "relu2", "names": ("up_proj", "down_proj")}


def experts(
    count: int, active: int, *, hidden: int = 6, width: int = 5, activation: str = "silu", **more: Any
) -> Experts:
    """Experts in fp32, of SwiGLU unless it is said, without numbers."""
    return Experts(ExpertSizes(count, active, width), hidden, activation, torch.float32, **more)


def mixture(count: int, active: int, *, seed: int = 0, **more: Any) -> Experts:
    """Experts with random weights."""
    op = experts(count, active, **more)
    op.create_parameters()
    generator = torch.Generator().manual_seed(seed)
    for expert in op:
        for matrix in expert.children():
            matrix.weight = nn.Parameter(torch.randn(matrix.weight.shape, generator=generator), requires_grad=False)
    return op


def weighed_inputs(op: Experts, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor) -> Tensor:
    """The same of experts that are given weighed inputs: each pick as a token of its own, of weight 1."""
    x_ND = (x_TD.double()[:, None] * weights_TK.double()[:, :, None]).flatten(0, 1)
    picked_N1 = picked_TK.reshape(-1, 1)
    out_ND = by_loop(op, x_ND, torch.ones(len(x_ND), 1), picked_N1)
    return out_ND.view(*picked_TK.shape, -1).sum(dim=1)


def by_loop(op: Experts, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor) -> Tensor:
    """Token by token, pick by pick, in float64."""
    out = torch.zeros_like(x_TD, dtype=torch.float64)
    for token, (weights, picks) in enumerate(zip(weights_TK.tolist(), picked_TK.tolist(), strict=True)):
        for weight, expert in zip(weights, picks, strict=True):
            *gates, up, down = (matrix.weight.double() for matrix in op[expert].children())
            x = x_TD[token].double()
            if gates:
                gated = gates[0] @ x
                out[token] += weight * (down @ (gated / (1 + torch.exp(-gated)) * (up @ x)))
            else:  # the square of what is above 0
                out[token] += weight * (down @ (up @ x).clamp(min=0) ** 2)
    return out


class Matrices(TorchDispatchMode):
    """Counts how often each weight goes into a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.linear):
            self.uses.update(arg.data_ptr() for arg in args[1:])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("form", [{}, UNGATED], ids=["gated", "ungated"])
@pytest.mark.parametrize(("count", "active", "tokens"), [(1, 1, 3), (5, 2, 1), (5, 2, 17), (8, 8, 4), (16, 3, 9)])
def test_a_mixture_is_its_loop(count: int, active: int, tokens: int, form: dict[str, Any], adds: bool) -> None:
    """The same sum, and the weights of each expert that some token picked are touched once, of the others never."""
    op = mixture(count, active, adds=adds, **form)
    generator = torch.Generator().manual_seed(tokens)
    x_TD, onto_TD = torch.randn(tokens, 6, generator=generator), torch.randn(tokens, 6, generator=generator)
    weights_TK, picked_TK = torch.randn(tokens, count, generator=generator).topk(active, dim=-1)
    with Matrices() as seen, torch.no_grad():
        out_TD = op(x_TD, weights_TK, picked_TK, *[onto_TD] * adds)
    reference_TD = by_loop(op, x_TD, weights_TK, picked_TK) + (onto_TD if adds else 0)
    assert torch.allclose(out_TD.double(), reference_TD, atol=1e-5)
    hit = set(picked_TK.flatten().tolist())
    for number, expert in enumerate(op):
        uses = [seen.uses[matrix.weight.data_ptr()] for matrix in expert.children()]
        assert uses == [int(number in hit)] * len(op.specs)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("count", "active", "tokens"), [(5, 1, 1), (5, 2, 1), (5, 2, 17), (8, 8, 4), (16, 1, 9)])
def test_experts_that_are_given_weighed_inputs(count: int, active: int, tokens: int, adds: bool) -> None:
    """Their activation sees the weight; the sum is not weighed again, and each expert that was hit is read once."""
    op = mixture(count, active)
    op.weighs_inputs, op.adds = True, adds
    generator = torch.Generator().manual_seed(tokens)
    x_TD, onto_TD = torch.randn(tokens, 6, generator=generator), torch.randn(tokens, 6, generator=generator)
    weights_TK, picked_TK = torch.randn(tokens, count, generator=generator).sigmoid().topk(active, dim=-1)
    with Matrices() as seen, torch.no_grad():
        out_TD = op(x_TD, weights_TK, picked_TK, *[onto_TD] * adds)
    reference_TD = weighed_inputs(op, x_TD, weights_TK, picked_TK)
    assert torch.allclose(out_TD.double(), reference_TD + (onto_TD if adds else 0), atol=1e-5)
    assert not torch.allclose(reference_TD, by_loop(op, x_TD, weights_TK, picked_TK), atol=1e-2)
    hit = set(picked_TK.flatten().tolist())
    for number, expert in enumerate(op):
        uses = [seen.uses[matrix.weight.data_ptr()] for matrix in expert.children()]
        assert uses == [int(number in hit)] * 3


def test_distinct_experts_by_simulation() -> None:
    """E (1 - (1 - k/E)^T) is what uniformly random picks of k distinct experts hit on average."""
    random = np.random.default_rng(0)
    compared = 0
    for count, active in ((8, 2), (16, 4), (128, 8), (5, 5), (7, 1)):
        op = experts(count, active)
        for tokens in (1, 2, 5, 30):
            order = random.random((400, tokens, count)).argsort(axis=2)[:, :, :active]
            hits = np.array([len(np.unique(draw)) for draw in order])
            error = 4 * hits.std() / math.sqrt(len(hits)) + 0.001 * count
            assert op.touched(tokens) == pytest.approx(hits.mean(), abs=error)
            compared += 1
    assert compared == 20


def test_experts_of_a_235b_touched() -> None:
    """Seed number 10: of 128 experts, 8 a token, at batch 1, 8, 32 and 64."""
    op = Experts(ExpertSizes(128, 8, 1536), 4096, "silu", torch.bfloat16)
    assert [round(op.touched(tokens), 1) for tokens in (1, 8, 32, 64)] == [8.0, 51.6, 111.8, 125.9]


@pytest.mark.parametrize(("form", "matrices"), [({}, 3), (UNGATED, 2)], ids=["gated", "ungated"])
def test_cost_by_hand(form: dict[str, Any], matrices: int) -> None:
    """Two tokens, one of four experts each: 1.75 experts are read, FLOPs are those of the picks; rows go in and out
    once, and of the columns what each matrix but the last gives, and what the last takes."""
    op = experts(4, 1, **form)
    cost = op.cost(Work.of([StepSegment(2, 2)]))
    assert cost.flops == {"fp32": 2 * 2 * 1 * matrices * 6 * 5}
    assert cost.weight_bytes == 1.75 * matrices * 6 * 5 * 4
    assert cost.activation_bytes == 2 * (2 * 6 + matrices * 5) * 4
    assert op.parameter_count() == 4 * matrices * 6 * 5
    assert op.expert_parameters == matrices * 6 * 5
    assert not list(op.parameters())  # priced without a parameter
    op.create_parameters()
    assert sum(parameter.numel() for parameter in op.parameters()) == op.parameter_count()
    assert sum(parameter.nbytes for parameter in op.parameters()) == op.stored_bytes()
