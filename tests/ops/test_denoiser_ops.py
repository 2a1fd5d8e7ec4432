"""Modulated and gated norms, sinusoids of times, positions of several coordinates, rows put together: against formulas
in float64 and against diffusers."""

import math

import pytest
import torch
from diffusers.models.embeddings import get_2d_sincos_pos_embed, get_timestep_embedding
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.core.ops.activation import GatedActivation
from ridgeline.core.ops.adaptive_norm import AddShiftedLayerNorm, ConditionTable, GatedAddLayerNorm
from ridgeline.core.ops.embedding import GridPositions
from ridgeline.core.ops.modulation import (
    AddGated,
    AddGatedLayerNorm,
    AddModulatedLayerNorm,
    AddModulatedRMSNorm,
    ModulatedLayerNorm,
    ModulatedRMSNorm,
    Modulation,
)
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.rotary import AxialRotaryTable, Rope, RotaryTable, rotate
from ridgeline.core.ops.row_ops import JoinColumns, JoinRows, PaddingRow
from ridgeline.core.ops.timestep import TimestepSinusoids
from ridgeline.core.ops.work import AttentionPattern, AttentionSum, Work

FP32, BF16 = torch.float32, torch.bfloat16
LENGTHS = [5, 1, 3]  # rows of each picture


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, fp32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def of_rows(factor_PW: Tensor) -> Tensor:
    """What each row is multiplied with."""
    return factor_PW.repeat_interleave(torch.tensor(LENGTHS), 0)


def rms(x: Tensor, eps: float) -> Tensor:
    """Without a weight, in float64."""
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()


def test_a_modulated_rms_norm() -> None:
    """Each picture's rows by its own factor; the norm of a sum, which takes the place of its first part."""
    x, y, factor, weight = random(9, 7), random(9, 7, seed=1), random(3, 7, seed=2), random(7, seed=3)
    alone, adding = ModulatedRMSNorm(7, 1e-2, FP32), AddModulatedRMSNorm(7, 1e-2, FP32)
    alone.weight = adding.weight = nn.Parameter(weight, requires_grad=False)
    reference = rms(x, 1e-2) * weight.double() * of_rows(factor)
    assert torch.allclose(alone(x, factor, LENGTHS).double(), reference, atol=1e-6)
    first, added = x.clone(), x.double() + y.double()
    total, normed = adding(first, y, factor, LENGTHS)
    assert total is first
    assert torch.allclose(total.double(), added, atol=1e-6)
    assert torch.allclose(normed.double(), rms(added, 1e-2) * weight.double() * of_rows(factor), atol=1e-5)


def test_a_modulated_layer_norm() -> None:
    """It has no weight of its own, and none is read."""
    x, y, factor = random(9, 7), random(9, 7, seed=1), random(3, 7, seed=2)
    op = AddModulatedLayerNorm(7, 1e-2, FP32)
    reference = functional.layer_norm(x.double() + y.double(), (7,), eps=1e-2) * of_rows(factor)
    assert torch.allclose(op(x, y, factor, LENGTHS)[1].double(), reference, atol=1e-5)
    assert (list(op.parameters()), op.parameter_count(), op.cost_of(9).weight_bytes) == ([], 0, 0)


def test_a_gated_sum_and_its_shifted_norm() -> None:
    """x + gate * y in the place of x, y left alone, and of the sum a norm that each picture scales and shifts."""
    x, y, gate, scale, shift = (random(9, 7), random(9, 7, seed=1), *(random(3, 7, seed=s) for s in (2, 3, 4)))
    added = x.double() + of_rows(gate) * y.double()

    def normed(of: Tensor) -> Tensor:
        return functional.layer_norm(of, (7,), eps=1e-2) * of_rows(scale) + of_rows(shift)

    first, kept = x.clone(), y.clone()
    total, out = AddGatedLayerNorm(7, 1e-2, FP32)(first, kept, gate, scale, shift, LENGTHS)
    assert total is first
    assert torch.equal(kept, y)
    assert torch.allclose(total.double(), added, atol=1e-6)
    assert torch.allclose(out.double(), normed(added), atol=1e-5)
    alone = ModulatedLayerNorm(7, 1e-2, FP32)
    assert torch.allclose(alone(x, scale, shift, LENGTHS).double(), normed(x.double()), atol=1e-5)
    assert torch.allclose(AddGated(7, FP32)(x.clone(), y, gate, LENGTHS).double(), added, atol=1e-6)


def test_what_gated_sums_cost() -> None:
    """Two operations an entry for gate and sum, seven for the norm with its scale and shift."""
    alone, adding, plain = ModulatedLayerNorm(7, 1e-2, BF16), AddGatedLayerNorm(7, 1e-2, BF16), AddGated(7, BF16)
    assert alone.cost_of(9).total_flops == 7 * 9 * 7
    assert adding.cost_of(9).total_flops == (7 + 2) * 9 * 7
    assert plain.cost_of(9).total_flops == 2 * 9 * 7
    assert (alone.cost_of(9).activation_bytes, adding.cost_of(9).activation_bytes) == (2 * 9 * 7 * 2, 4 * 9 * 7 * 2)
    assert sum(kernel.cost.total_flops for kernel in adding.launches_of(9)) == adding.cost_of(9).total_flops
    assert adding.signature() != AddModulatedLayerNorm(7, 1e-2, BF16).signature()


def test_what_modulated_norms_cost() -> None:
    """One operation an entry more than the norm, in the streams that it has."""
    plain, alone, adding = RMSNorm(7, 1e-2, BF16), ModulatedRMSNorm(7, 1e-2, BF16), AddModulatedRMSNorm(7, 1e-2, BF16)
    assert alone.cost_of(9).total_flops == plain.cost_of(9).total_flops + 9 * 7
    assert adding.cost_of(9).total_flops == alone.cost_of(9).total_flops + 9 * 7
    assert (alone.cost_of(9).activation_bytes, adding.cost_of(9).activation_bytes) == (2 * 9 * 7 * 2, 4 * 9 * 7 * 2)
    assert AddModulatedLayerNorm(7, 1e-2, BF16).cost_of(9).total_flops == (6 + 1) * 9 * 7
    assert sum(kernel.cost.total_flops for kernel in adding.launches_of(9)) == adding.cost_of(9).total_flops


@pytest.mark.parametrize("activated", [False, True])
def test_modulation(activated: bool) -> None:
    """Scales are around 1, bounded gates between -1 and 1, gates and shifts as they come; each its own part of the
    product."""
    condition, weight, bias = random(3, 5) * 3, random(16, 5, seed=1), random(16, seed=2)
    op = Modulation(5, 4, ("bounded gate", "scale", "gate", "shift"), FP32, activated=activated)
    op.matrix.weight, op.matrix.bias = (nn.Parameter(x, requires_grad=False) for x in (weight, bias))
    wide = condition.double()
    wide = wide * wide.sigmoid() if activated else wide
    bounded, scale, gate, shift = (wide @ weight.double().T + bias.double()).chunk(4, dim=-1)
    for own, reference in zip(op(condition), (bounded.tanh(), 1 + scale, gate, shift), strict=True):
        assert torch.allclose(own.double(), reference, atol=1e-5)
    assert op.cost_of(3).total_flops == 2 * 3 * 5 * 16 + op.flops_around(3)
    assert op.flops_around(3) == 3 * (8 + (4 * 5 if activated else 0))
    assert [part.shape for part in op(condition.to("meta"))] == [(3, 4)] * 4
    assert Modulation(5, 4, ("scale",), FP32, bias=False).matrix.bias is None


def test_a_condition_and_what_a_block_adds_to_it() -> None:
    """Scales are around 1; a condition as wide as one factor is in all of them."""
    table, condition = random(3, 4), random(2, 12, seed=1)
    op = ConditionTable(("shift", "scale", "gate"), 4, FP32)
    (taken,) = op.load_tensor("scale_shift_table", table[None]).values()
    assert torch.equal(taken, next(iter(op.load_tensor("scale_shift_table", table).values())))
    op.scale_shift_table = nn.Parameter(taken, requires_grad=False)
    reference = condition.double().view(2, 3, 4) + table.double() + torch.tensor([[0.0], [1.0], [0.0]])
    assert torch.allclose(torch.stack(op(condition), 1).double(), reference, atol=1e-6)
    assert [part.shape for part in op(condition.to("meta"))] == [(2, 4)] * 3
    assert op.cost_of(2).total_flops == 2 * (12 + 4)
    assert (op.cost_of(2).weight_bytes, op.cost_of(2).activation_bytes) == (12 * 4, 2 * 2 * 12 * 4)
    spread = ConditionTable(("shift", "scale", "gate"), 4, FP32, spread=True)
    spread.scale_shift_table = op.scale_shift_table
    same = condition[:, :4].repeat(1, 3)
    assert all(torch.equal(a, b) for a, b in zip(spread(condition[:, :4]), op(same), strict=True))
    assert spread.cost_of(2).activation_bytes == 2 * (4 + 12) * 4


def test_norms_between_additions() -> None:
    """A plain sum whose norm is scaled and shifted; a gated sum whose norm is learned. Both sums in the place of x."""
    x, y, gate, scale, shift = (random(9, 7), random(9, 7, seed=1), *(random(3, 7, seed=s) for s in (2, 3, 4)))
    weight, bias, first = random(7, seed=5), random(7, seed=6), x.clone()
    shifted, gated = AddShiftedLayerNorm(7, 1e-2, FP32), GatedAddLayerNorm(7, 1e-2, FP32)
    total, out = shifted(first, y, scale, shift, LENGTHS)
    added = x.double() + y.double()
    reference = functional.layer_norm(added, (7,), eps=1e-2) * of_rows(scale) + of_rows(shift)
    assert total is first
    assert torch.allclose(out.double(), reference, atol=1e-5)
    gated.weight, gated.bias = (nn.Parameter(each, requires_grad=False) for each in (weight, bias))
    first = x.clone()
    total, out = gated(first, y, gate, LENGTHS)
    added = x.double() + of_rows(gate) * y.double()
    assert total is first
    assert torch.allclose(total.double(), added, atol=1e-6)
    reference = functional.layer_norm(added, (7,), weight.double(), bias.double(), 1e-2)
    assert torch.allclose(out.double(), reference, atol=1e-5)
    assert shifted.cost_of(9).total_flops == (7 + 1) * 9 * 7
    assert gated.cost_of(9).total_flops == (7 + 2) * 9 * 7
    for op in (shifted, gated):
        assert sum(kernel.cost.total_flops for kernel in op.launches_of(9)) == op.cost_of(9).total_flops


@pytest.mark.parametrize("size", [(8, 8), (3, 11), (16, 5)])
def test_positions_of_a_grid_are_diffusers(size: tuple[int, int]) -> None:
    """Of any size, spread over that of training."""
    lines, columns = size
    op = GridPositions(24, FP32, 8, 2.0)
    places = torch.cartesian_prod(torch.arange(1), torch.arange(lines), torch.arange(columns))
    x = random(len(places), 24)
    theirs = get_2d_sincos_pos_embed(24, size, base_size=8, interpolation_scale=2.0).float()
    assert torch.allclose(op(x, places, lines, columns), x + theirs, atol=1e-6)
    assert op.cost_of(len(x)).total_flops == 3 * x.numel()


def test_sinusoids_are_diffusers() -> None:
    """Bit for bit, of times up to a thousand: what rounds otherwise there shows in every picture."""
    times = torch.tensor([0.0, 1.0, 0.3, 0.9137])
    theirs = get_timestep_embedding(times * 1000, 256, flip_sin_to_cos=True, downscale_freq_shift=0)
    op = TimestepSinusoids(256, FP32, scale=1000.0)
    assert torch.equal(op(times), theirs)
    assert TimestepSinusoids(256, BF16, scale=1000.0)(times).dtype == BF16
    assert op.cost_of(4).activation_bytes == 4 * 4 + 4 * 4 * 256


def test_positions_of_several_coordinates() -> None:
    """Neighbours turn by the angle of their coordinate, as complex numbers do."""
    axes, theta = (6, 4, 8), 37.0
    positions = torch.tensor([[0, 0, 0], [1, 0, 0], [97, 3, 5], [1535, 511, 510]])
    x = random(4, 2, sum(axes))
    turned = rotate(x, AxialRotaryTable(axes, theta)(positions), interleaved=True)
    angles = [
        positions[:, axis, None].double() / theta ** (torch.arange(0, width, 2).double() / width)
        for axis, width in enumerate(axes)
    ]
    turns = torch.polar(torch.ones(4, sum(axes) // 2).double(), torch.cat(angles, dim=-1))[:, None]
    reference = torch.view_as_real(torch.view_as_complex(x.double().view(4, 2, -1, 2)) * turns).flatten(-2)
    assert torch.allclose(turned.double(), reference, atol=1e-4)  # fp32 of an angle of 1535
    assert torch.allclose(turned[:3].double(), reference[:3], atol=1e-5)


def test_one_coordinate_is_a_plain_rope() -> None:
    """The same angles, and the same cost."""
    positions, rope = torch.arange(40), Rope(12, 100.0)
    table = AxialRotaryTable((12,), 100.0)
    for own, plain in zip(table(positions[:, None]), RotaryTable(rope)(positions), strict=True):
        assert torch.allclose(own, plain, atol=1e-5)
    assert table.cost_of(40) == RotaryTable(rope).cost_of(40)


def test_rows_are_replaced_and_joined() -> None:
    """Padding by the learned row; two sources in any order."""
    x, y, row = random(4, 3), random(2, 3, seed=1), random(1, 3, seed=2)
    pad = PaddingRow(3, FP32)
    pad.weight = nn.Parameter(row, requires_grad=False)
    padded = pad(x.clone(), torch.tensor([1, 3]))
    assert torch.equal(padded, torch.stack([x[0], row[0], x[2], row[0]]))
    assert torch.equal(pad(x, torch.empty(0, dtype=torch.int64)), x)
    join = JoinRows(3, FP32)
    assert torch.equal(join(torch.tensor([0, 4, 1, 2, 5, 3]), x, y), torch.stack([x[0], y[0], x[1], x[2], y[1], x[3]]))
    assert join.cost_of(6).activation_bytes == 2 * 6 * 3 * 4
    assert pad.cost_of(6).weight_bytes == 3 * 4
    heads = JoinRows(6, FP32)(torch.tensor([2, 0, 1]), x[:2].view(2, 1, 3).repeat(1, 2, 1), y[:1].expand(2, 3)[None])
    assert torch.equal(heads[:, 1], torch.stack([y[0], x[0], x[1]]))
    beside = JoinColumns(5, FP32)
    assert torch.equal(beside(x[:, 1:], x), torch.stack([torch.cat([row[1:], row]) for row in x]))
    assert beside(x[:, 1:].to("meta"), x.to("meta")).shape == (4, 5)
    assert beside.cost_of(4).activation_bytes == 2 * 4 * 5 * 4


def test_a_gated_activation() -> None:
    """Of two parts of one product, which do not lie together."""
    both = random(4, 6)
    gate, up = both.split(3, dim=-1)
    op = GatedActivation(3, "silu", FP32)
    reference = gate.double() * gate.double().sigmoid() * up.double()
    assert torch.allclose(op(gate, up).double(), reference, atol=1e-6)
    assert op.cost_of(4).activation_bytes == 3 * 4 * 3 * 4
    assert torch.equal(both, random(4, 6))


def test_work_of_whole_sequences() -> None:
    """Rows and pairs of each space, which see all of their own."""
    work = Work.whole({"latents": [7, 7], "text": [3, 10]})
    assert work.rows == {"latents": 14, "text": 13}
    assert work.sequences == 2
    assert work.attention[AttentionPattern("full", query_axis="text")].total == AttentionSum(
        2, 13, 3 * 3 + 10 * 10, 13, 13
    )
    assert not work.is_decode
    assert math.prod([7, 7]) * 2 == work.attention[AttentionPattern("full", query_axis="latents")].total.pairs
