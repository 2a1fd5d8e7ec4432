"""Our kernels of mixtures against torch's paths of their ops, on awkward sizes; a row alone against itself in any
batch, bit for bit; equals, numbers that are none, and experts that nobody picked."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ops.test_kernels import BOTH, ROUNDING, in_child, normal, off
from ops.test_router import RULES
from ridgeline.backends.cpu.cpu_backend import CpuBackend, layer_experts
from ridgeline.backends.cpu.cpu_coverage import covers
from ridgeline.backends.cpu.cpu_experts import LayerExperts, route
from ridgeline.backends.cpu.library import Library
from ridgeline.core.ops.experts import Experts, ExpertSizes
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.nonlinearity import ACTIVATIONS, ClampedGate
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.router import ExpertRouter, RoutingRule
from support.kernels import SETS
from support.quantised import take_weight

pytestmark = pytest.mark.skipif(not SETS, reason="the kernels were not compiled")
# Experts, of which a row picks so many, hidden, width; rows.
SIZES = [(1, 1, 1, 1), (5, 2, 67, 65), (8, 8, 130, 31), (16, 3, 64, 64), (3, 1, 40, 1100), (4, 2, 1040, 70)]
ROWS = [1, 2, 3, 17, 130]


def experts(count: int, active: int, hidden: int, width: int, dtype: torch.dtype, **more: Any) -> Experts:
    """Experts with random weights."""
    more.setdefault("activation", "silu")
    op = Experts(ExpertSizes(count, active, width), hidden, dtype=dtype, **more)
    op.create_parameters()
    for seed, parameter in enumerate(op.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=seed) / parameter.shape[-1] ** 0.5)
    return op


def picks(rows: int, count: int, active: int) -> tuple[Tensor, Tensor]:
    """Weights and ids of distinct experts for each row."""
    weights_TK, picked_TK = normal(rows, count, seed=rows).topk(active, dim=-1)
    return weights_TK, picked_TK


def kernel_of(op: Experts, kernels: Library) -> LayerExperts:
    """What the op calls."""
    return layer_experts(kernels, op)


def by_torch(op: Experts, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None) -> Tensor:
    """In float64, from the same numbers."""
    wide = experts(op.count, op.active, op.hidden, op.width, torch.float64, activation=op.activation, adds=op.adds,
                   bias=next(iter(op.specs.values())).bias)  # fmt: skip
    for own, given in zip(wide.parameters(), op.parameters(), strict=True):
        own.data.copy_(given)
    return wide(x_TD.double(), weights_TK, picked_TK, None if onto_TD is None else onto_TD.double())


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_experts(kernels: Library, size: tuple[int, ...], dtype: torch.dtype) -> None:
    """From rows that do not touch, added to something or not; of those whom nobody picked, nothing is read."""
    count, active, hidden, _ = size
    for rows, adds in product(ROWS, (False, True)):
        op = experts(*size, dtype, adds=adds)
        x_TD, onto_TD = (normal(rows, hidden + 3, dtype=dtype, seed=seed)[:, :hidden] for seed in (rows, rows + 1))
        added, (weights_TK, picked_TK) = onto_TD if adds else None, picks(rows, count, active)
        exact = by_torch(op, x_TD, weights_TK, picked_TK, added)
        for unhit in set(range(count)) - set(picked_TK.flatten().tolist()):
            for parameter in op[unhit].parameters():
                parameter.data.fill_(float("nan"))
        ours = kernel_of(op, kernels).run(x_TD, weights_TK, picked_TK, added)
        assert (ours.dtype, ours.shape) == (dtype, x_TD.shape)
        assert off(ours, exact) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("activation", [*sorted(ACTIVATIONS), ClampedGate(1.7, 0.5)], ids=str)
def test_activations_and_biases(kernels: Library, activation: str | ClampedGate, dtype: torch.dtype) -> None:
    """Each activation, and a gate that is clamped on either side; with a bias of every matrix."""
    op = experts(5, 2, 40, 37, dtype, activation=activation, bias=True)
    x_TD, own = normal(9, 40, dtype=dtype), picks(9, 5, 2)
    exact = by_torch(op, x_TD, *own, None)
    assert off(kernel_of(op, kernels).run(x_TD, *own, None), exact) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("size", [(5, 2, 67, 65), (4, 2, 1040, 70), (6, 1, 96, 1100)], ids=str)
def test_a_row_does_not_depend_on_its_neighbours(kernels: Library, size: tuple[int, ...], dtype: torch.dtype) -> None:
    """Alone, in any batch, on one thread or three."""
    count, active, hidden, _ = size
    own = kernel_of(experts(*size, dtype), kernels)
    x_TD, (weights_TK, picked_TK) = normal(max(ROWS), hidden, dtype=dtype), picks(max(ROWS), count, active)
    each = zip(x_TD[:, None], weights_TK[:, None], picked_TK[:, None], strict=True)
    alone = torch.cat([own.run(*row, None) for row in each])
    for rows, threads in product(ROWS, (1, 3)):
        kernels.threads(threads)
        together = own.run(x_TD[:rows], weights_TK[:rows], picked_TK[:rows], None)
        assert torch.equal(together, alone[:rows])


def test_rows_that_all_pick_one_expert(kernels: Library) -> None:
    """Many blocks of rows of one, none of the others."""
    op, x_TD = experts(7, 1, 80, 50, torch.float32), normal(301, 80)
    weights_TK, picked_TK = normal(301, 1, seed=1), torch.full((301, 1), 4)
    exact = by_torch(op, x_TD, weights_TK, picked_TK, None)
    kernels.threads(2)
    assert off(kernel_of(op, kernels).run(x_TD, weights_TK, picked_TK, None), exact) < 4e-6


CODED = [
    WeightFormat("int8", 8, (1, None), 16, code="int8"),
    WeightFormat("int4", 4, (1, 32), 16, 8, code="int4"),
    WeightFormat("fp8", 8, (1, 64), 32, code="fp8"),
]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("stored", CODED, ids=lambda stored: stored.name)
def test_experts_of_codes(kernels: Library, stored: WeightFormat, dtype: torch.dtype) -> None:
    """Against plain experts of the numbers that the codes stand for; a row alone as in any batch."""
    count, active, hidden, width = 5, 2, 170, 165
    op = experts(count, active, hidden, width, torch.float32)
    coded = Experts(ExpertSizes(count, active, width), hidden, "silu", dtype)
    coded.set_weight_formats(dict.fromkeys(coded.specs, stored))
    coded.create_parameters()
    assert covers(coded)
    plain = experts(count, active, hidden, width, torch.float64)
    for own, exact, given in zip(coded, plain, op, strict=True):
        for name in coded.specs:
            matrix: QuantisedMatrix = getattr(own, name)
            take_weight(matrix, getattr(given, name).weight.to(dtype))
            getattr(exact, name).weight.data.copy_(matrix.dense())
    alone: list[Tensor] = []
    for rows in ROWS:
        x_TD, own = normal(max(ROWS), hidden, dtype=dtype)[:rows], picks(max(ROWS), count, active)
        own = own[0][:rows], own[1][:rows]
        found = kernel_of(coded, kernels).run(x_TD, *own, None)
        assert off(found, plain(x_TD.double(), *own)) < 4 * ROUNDING[dtype]
        alone = alone or [found]
        assert torch.equal(found[:1], alone[0])


def test_weights_that_were_put_elsewhere_are_read_there_once_they_are_bound(kernels: Library) -> None:
    op, backend = experts(4, 2, 24, 20, torch.float32), CpuBackend()
    x_TD, own = normal(3, 24), picks(3, 4, 2)
    for step in range(3):
        backend.bind(op)
        for _ in range(2):
            assert off(op(x_TD, *own), by_torch(op, x_TD, *own, None)) < 4e-6
        if step == 0:
            op[int(own[1][0, 0])].up_proj.weight = nn.Parameter(normal(20, 24, seed=77), requires_grad=False)
        else:
            op[int(own[1][1, 0])].down_proj.weight.data = normal(24, 20, seed=78)


def test_what_would_be_read_wrongly_is_refused(kernels: Library) -> None:
    own, (weights_TK, picked_TK) = kernel_of(experts(4, 2, 24, 20, torch.float32), kernels), picks(3, 4, 2)
    with pytest.raises(AssertionError, match="the dtype and width that the experts read"):
        own.run(normal(3, 25), weights_TK, picked_TK, None)
    with pytest.raises(AssertionError, match="the dtype and width that the experts read"):
        own.run(normal(3, 24, dtype=torch.bfloat16), weights_TK, picked_TK, None)
    with pytest.raises(AssertionError, match="each picked expert must have a weight"):
        own.run(normal(4, 24), weights_TK, picked_TK, None)
    with pytest.raises(AssertionError, match="int64"):
        own.run(normal(3, 24), weights_TK, picked_TK.int(), None)
    with pytest.raises(AssertionError, match="the dtype and shape of the rows"):
        own.run(normal(3, 24), weights_TK, picked_TK, normal(3, 25))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_system_that_gives_no_more_memory(kernels: Library, threads: int) -> None:
    """What lies between the experts' products, 155 MB, is more than malloc may have left over: an error, and the next
    call is as ever."""
    kernels.threads(threads)
    own = kernel_of(experts(2, 2, 1, 200_000, torch.float32), kernels)
    x_TD, (weights_TK, picked_TK) = normal(97, 1), picks(97, 2, 2)
    few = x_TD[:1], weights_TK[:1], picked_TK[:1], None
    expected = own.run(*few)

    def call() -> bool:
        own.run(*few)
        with pytest.raises(MemoryError, match="working memory for a kernel"):
            own.run(x_TD, weights_TK, picked_TK, None)
        return torch.equal(own.run(*few), expected)

    assert in_child(call, room=20 << 20, pieces=48 << 20) == 0


# -- routers ----------------------------------------------------------------------------------------------------------


def router(rule: RoutingRule, inputs: int, count: int, dtype: torch.dtype, *, bias: bool = False) -> ExpertRouter:
    """A router with random weights."""
    op = ExpertRouter(MatrixSpec(inputs, count, dtype, bias), rule)
    for seed, parameter in enumerate(op.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=seed) / parameter.shape[-1] ** 0.5)
    return op


def routed(op: ExpertRouter, kernels: Library, x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """What the op calls."""
    operands, logits = op.matrix.operands, torch.float32 if op.rule.wide else x_TI.dtype
    assert operands is not None
    return route(kernels, x_TI, operands, logits, op.rule, op.e_score_correction_bias)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_routers(kernels: Library, rule: RoutingRule, dtype: torch.dtype, *, wide: bool) -> None:
    """The same picks in the same order as torch's, from the same logits, and the weights but for their last bits."""
    op = router(rule, 70, 12, dtype, bias=True)
    op.rule = RoutingRule(**{name: getattr(rule, name) for name in rule.__slots__} | {"wide": wide})
    for rows in (1, 3, 130):
        x_TI = normal(rows, 73, dtype=dtype, seed=rows)[:, :70]
        logits_TE = kernels.products(x_TI, [op.matrix.operands], torch.float32 if wide else dtype)[0]
        expected_weights, expected = op.rule.route(logits_TE, op.e_score_correction_bias)
        weights_TK, picked_TK = routed(op, kernels, x_TI)
        scores_TE = logits_TE.float().softmax(-1) if rule.scores == "softmax" else logits_TE.float().sigmoid()
        ties = torch.tensor([len(set(row)) < len(row) for row in scores_TE.tolist()])
        assert rows == 1 or not ties.all(), "bf16 has equals here and there"
        assert torch.equal(picked_TK[~ties], expected[~ties])
        torch.testing.assert_close(weights_TK[~ties], expected_weights[~ties], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("count", [1, 2, 7, 16, 33, 300])
def test_routers_of_any_number_of_experts(kernels: Library, count: int) -> None:
    """Down to one, and as many as no register divides; a row is routed alone as in a batch, on one thread or two."""
    op = router(RoutingRule(max(1, count // 3), renormalise=True), 40, count, torch.float32)
    x_TI = normal(131, 40)
    weights_TK, picked_TK = routed(op, kernels, x_TI)
    expected_weights, expected = op.rule.route(kernels.products(x_TI, [op.matrix.operands])[0])
    assert torch.equal(picked_TK, expected)
    torch.testing.assert_close(weights_TK, expected_weights, rtol=2e-6, atol=1e-7)
    kernels.threads(2)
    alone = [routed(op, kernels, x_I[None]) for x_I in x_TI]
    again = routed(op, kernels, x_TI)
    for place, whole in enumerate((weights_TK, picked_TK)):
        assert torch.equal(whole, torch.cat([own[place] for own in alone]))
        assert torch.equal(whole, again[place])


@pytest.mark.parametrize("rule", [RoutingRule(3), RoutingRule(3, "sigmoid"), RoutingRule(3, groups=3, top_groups=2)])
def test_of_equals_the_first_is_picked(kernels: Library, rule: RoutingRule) -> None:
    """Experts and groups."""
    op = router(rule, 4, 6, torch.float32)
    op.matrix.weight.data.zero_()
    _, picked_TK = routed(op, kernels, normal(5, 4))
    assert picked_TK.tolist() == [[0, 1, 2]] * 5
    op.matrix.weight.data[3:].fill_(1)
    _, picked_TK = routed(op, kernels, torch.ones(2, 4))
    assert picked_TK.tolist() == [[3, 4, 5]] * 2


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_numbers_that_are_none(kernels: Library, rule: RoutingRule) -> None:
    """A row of them picks distinct experts that there are, with weights that show it; its neighbours' are as ever."""
    op = router(rule, 8, 12, torch.float32)
    x_TI = normal(4, 8)
    expected_weights, expected = routed(op, kernels, x_TI)
    for value in ("nan", "inf"):
        x_TI[1] = float(value)
        op_weights, picked_TK = routed(op, kernels, x_TI)
        assert sorted(set(picked_TK[1].tolist())) == sorted(picked_TK[1].tolist())
        assert 0 <= int(picked_TK.min()) <= int(picked_TK.max()) < 12
        assert value != "nan" or op_weights[1].isnan().all()
        assert torch.equal(picked_TK[[0, 2, 3]], expected[[0, 2, 3]])
        assert torch.equal(op_weights[[0, 2, 3]], expected_weights[[0, 2, 3]])


def test_logits_of_any_size(kernels: Library) -> None:
    """Scores of logits far to either side, where fp32 has no number for an exponential."""
    logits = torch.tensor([-1e4, -300, -100, -89, -87, -20, -1, 0, 1, 20, 87, 89, 100, 300, 1e4])
    one = torch.eye(1)
    for scores in ("softmax", "sigmoid"):
        rule = RoutingRule(len(logits), scores)
        weights_TK, picked_TK = route(kernels, one, Operands(logits[:, None], None), torch.float32, rule, None)
        expected = logits.softmax(-1) if scores == "softmax" else logits.sigmoid()
        torch.testing.assert_close(weights_TK[0], expected[picked_TK[0]], rtol=1e-6, atol=1e-37)
        assert sorted(picked_TK[0].tolist()) == list(range(len(logits)))
