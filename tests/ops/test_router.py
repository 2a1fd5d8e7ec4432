"""Routing rules against the picks that a loop over tokens makes, in float64 of Python."""

import math

import pytest
import torch

from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.router import ExpertRouter, RoutingRule, SharedGate

pytestmark = pytest.mark.usefixtures("torch_only")
EXPERTS, TOKENS = 12, 40


def by_loop(rule: RoutingRule, logits: list[float], correction: list[float]) -> dict[int, float]:
    """The weight of each expert picked, for one token."""
    if rule.scores == "softmax":
        total = sum(map(math.exp, logits))
        scores = [math.exp(value) / total for value in logits]
    else:
        scores = [1 / (1 + math.exp(-value)) for value in logits]
    chosen_by = [score + added for score, added in zip(scores, correction, strict=True)]
    size, count = len(logits) // rule.groups, 1 if rule.group_score == "best" else 2
    groups = [range(first, first + size) for first in range(0, len(logits), size)]
    worth = [sum(sorted((chosen_by[e] for e in group), reverse=True)[:count]) for group in groups]
    best = sorted(range(rule.groups), key=lambda g: -worth[g])[: rule.top_groups]
    allowed = [e for g in best for e in groups[g]]
    picks = sorted(allowed, key=lambda e: -chosen_by[e])[: rule.active]
    total = sum(scores[e] for e in picks) if rule.renormalise else 1.0
    return {e: scores[e] / total * rule.scale for e in picks}


RULES = (
    RoutingRule(3),
    RoutingRule(3, renormalise=True),
    RoutingRule(1, "sigmoid"),
    RoutingRule(12, "sigmoid", renormalise=True, scale=2.5),
    RoutingRule(2, groups=4, top_groups=2),
    RoutingRule(4, groups=3, top_groups=1, scale=16.0),
    RoutingRule(3, "sigmoid", renormalise=True, scale=2.5, groups=4, top_groups=2, group_score="best two"),
    RoutingRule(3, "sigmoid", groups=4, top_groups=2, group_score="best two", corrected=True),
    RoutingRule(2, "sigmoid", renormalise=True, corrected=True),
)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_picks_and_weights_are_those_of_a_loop(rule: RoutingRule) -> None:
    """Scores, groups, correction, renormalisation, scale; each token by itself."""
    generator = torch.Generator().manual_seed(0)
    logits_TE = torch.randn(TOKENS, EXPERTS, generator=generator) * 2
    correction_E = torch.randn(EXPERTS, generator=generator) * 0.3 if rule.corrected else None
    weights_TK, picked_TK = rule.route(logits_TE, correction_E)
    added = [0.0] * EXPERTS if correction_E is None else correction_E.tolist()
    for logits, weights, picked in zip(logits_TE.tolist(), weights_TK.tolist(), picked_TK.tolist(), strict=True):
        expected = by_loop(rule, logits, added)
        assert set(picked) == set(expected)
        assert dict(zip(picked, weights, strict=True)) == pytest.approx(expected, rel=1e-5)


def test_a_correction_chooses_and_does_not_weigh() -> None:
    """An expert of score 1/2 that is lifted over one of 0.88 keeps its own score as its weight."""
    rule = RoutingRule(1, "sigmoid", corrected=True)
    weights, picked = rule.route(torch.tensor([[2.0, 0.0]]), torch.tensor([0.0, 1.0]))
    assert (weights.item(), picked.item()) == (0.5, 1)


def test_sigmoids_that_are_1_do_not_hide_who_is_best() -> None:
    """Llama 4 picks by logits; of these all sigmoids are 1 in fp32, and the first would be picked."""
    weights, picked = RoutingRule(2, "sigmoid").route(torch.tensor([[20.0, 30.0, -3.0, 40.0]]))
    assert (weights.tolist(), picked.tolist()) == ([[1.0, 1.0]], [[3, 1]])


def test_a_router_costs_its_product_and_reads_its_correction() -> None:
    """By hand: three rows of 7 numbers, 5 experts, 2 picks; and the dtype of what leaves, on meta as with numbers."""
    router = ExpertRouter(MatrixSpec(7, 5, torch.float32), RoutingRule(2, corrected=True, wide=True))
    cost = router.cost_of(3)
    assert (cost.flops, cost.weight_bytes) == ({"fp32": 2 * 3 * 7 * 5}, (7 * 5 + 5) * 4)
    assert cost.activation_bytes == 3 * (7 * 4 + 2 * (4 + 8))
    assert router.parameter_count() == 40
    assert sum(p.nbytes for p in router.parameters()) == router.stored_bytes()
    for device in ("cpu", "meta"):
        with torch.inference_mode():
            weights, picked = router.to(device)(torch.zeros(3, 7, device=device))
        assert (weights.dtype, picked.dtype, weights.shape, picked.shape) == (
            torch.float32,
            torch.int64,
            (3, 2),
            (3, 2),
        )


def test_a_shared_expert_is_let_through_by_its_gate() -> None:
    """sigmoid(x w) of each row, whatever the others are."""
    generator = torch.Generator().manual_seed(1)
    gate = SharedGate(MatrixSpec(7, 1, torch.float32))
    gate.matrix.weight.data = torch.randn(1, 7, generator=generator)
    x, y = torch.randn(4, 7, generator=generator), torch.randn(4, 9, generator=generator)
    share = [1 / (1 + math.exp(-float(row @ gate.matrix.weight[0]))) for row in x]
    assert torch.allclose(gate(x, y), y * torch.tensor(share)[:, None], atol=1e-6)
