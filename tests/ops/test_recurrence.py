"""Recurrences against their definition, position by position in float64: chunks, states carried on, several at once."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.core.ops.gated_delta import DeltaSizes, GatedDeltaRule
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.recurrence import Recurrence, ShortConvolution
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.state_space import StateSpace, StateSpaceSizes
from ridgeline.core.ops.work import RECURRENT, StepSegment, Work

SIZES = DeltaSizes(key_heads=2, share=3, key=7, value=5)


def filled(op: Recurrence) -> Recurrence:
    """The op with random weights."""
    for name, parameter in list(op.named_parameters()):
        setattr(op, name, nn.Parameter(torch.randn(parameter.shape), requires_grad=False))
    return op


def rows_of(op: Recurrence, count: int, length: int) -> tuple[Tensor, ...]:
    """Random rows of so many sequences."""
    if isinstance(op, ShortConvolution):
        return (torch.randn(count, length, op.channels),)
    if isinstance(op, StateSpace):
        shared = op.sizes.groups * op.sizes.state
        return tuple(torch.randn(count, length, width) for width in (op.width, shared, shared, op.sizes.heads))
    s = SIZES
    widths = (s.key_heads * s.key, s.key_heads * s.key, s.value_heads * s.value, s.value_heads, s.value_heads)
    return tuple(torch.randn(count, length, width) for width in widths)


def by_definition(op: Recurrence, rows: tuple[Tensor, ...]) -> Tensor:
    """The results of one sequence, [Q, W]."""
    if isinstance(op, ShortConvolution):
        (x_QC,) = (x.double() for x in rows)
        padded = torch.cat([torch.zeros(op.kernel_size - 1, op.channels), x_QC])
        windows_QCK = padded.unfold(0, op.kernel_size, 1)
        bias = 0.0 if op.bias is None else op.bias.double()
        return functional.silu((windows_QCK * op.weight[:, 0].double()).sum(-1) + bias)
    if isinstance(op, StateSpace):
        return scanned(op, rows)
    assert isinstance(op, GatedDeltaRule)
    s, results = op.sizes, []
    state = torch.zeros(s.value_heads, s.key, s.value, dtype=torch.float64)
    for q, k, v, b, a in zip(*(x.double() for x in rows), strict=True):
        q_HK, k_HK = (
            functional.normalize(x.view(s.key_heads, s.key), eps=0.0).repeat_interleave(s.share, 0) for x in (q, k)
        )
        forget_H = torch.exp(-op.A_log.double().exp() * functional.softplus(a + op.dt_bias.double()))
        state = state * forget_H[:, None, None]
        known_HV = torch.einsum("hk,hkv->hv", k_HK, state)
        state = state + torch.einsum(
            "hk,hv->hkv", k_HK, b.sigmoid()[:, None] * (v.view(s.value_heads, s.value) - known_HV)
        )
        results.append(torch.einsum("hk,hkv->hv", q_HK / s.key**0.5, state).flatten())
    return torch.stack(results)


def scanned(op: StateSpace, rows: tuple[Tensor, ...]) -> Tensor:
    """Mamba-2's of one sequence."""
    s, results = op.sizes, []
    state = torch.zeros(s.heads, s.state, s.head, dtype=torch.float64)
    for x, b, c, step in zip(*(each.double() for each in rows), strict=True):
        b_HN, c_HN = (each.view(s.groups, s.state).repeat_interleave(s.share, 0) for each in (b, c))
        x_HP, step_H = x.view(s.heads, s.head), functional.softplus(step + op.dt_bias.double()).clamp(min=op.least)
        state = state * torch.exp(-op.A_log.double().exp() * step_H)[:, None, None]
        state = state + torch.einsum("hn,hp->hnp", b_HN, step_H[:, None] * x_HP)
        results.append((torch.einsum("hn,hnp->hp", c_HN, state) + op.D.double()[:, None] * x_HP).flatten())
    return torch.stack(results)


OPS = {
    "state space": lambda: StateSpace(0, StateSpaceSizes(2, 3, 5, 7), torch.float32, 0.3),
    "delta rule": lambda: GatedDeltaRule(0, SIZES, torch.float32),
    "convolution": lambda: ShortConvolution(0, (4, 3), 4, torch.float32, bias=True),
    "convolution of two": lambda: ShortConvolution(0, (5,), 2, torch.float32),
}


@pytest.mark.parametrize("cuts", [(150,), (1,) * 9, (64, 65), (63, 1, 1, 70), (5, 128)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_a_state_carries_on_what_came_before(name: str, cuts: tuple[int, ...]) -> None:
    """Whatever a step runs: several sequences at once, in chunks that are full, longer or a single position."""
    torch.manual_seed(len(cuts))
    op = filled(OPS[name]())
    rows = rows_of(op, 3, sum(cuts))
    state, results = torch.zeros(3, op.spec.numbers), []
    for parts in zip(*(torch.split(x, cuts, 1) for x in rows), strict=True):
        result, state = op.advance(state, *parts)
        results.append(result)
    ours = torch.cat(results, 1)
    for sequence in range(3):
        theirs = by_definition(op, tuple(x[sequence] for x in rows))
        assert (ours[sequence] - theirs).abs().max() <= 2e-6 * theirs.abs().max()


def test_sequences_side_by_side_know_nothing_of_each_other() -> None:
    op = filled(OPS["delta rule"]())
    lengths = (70, 1, 8)
    rows = tuple(x[0] for x in rows_of(op, 1, sum(lengths)))
    ours = Uncached([StepSegment(n, n) for n in lengths]).recur(op, rows)
    for part, own in zip(
        torch.split(ours, lengths), zip(*(torch.split(x, lengths) for x in rows), strict=True), strict=True
    ):
        theirs = by_definition(op, own)
        assert (part - theirs).abs().max() <= 2e-6 * theirs.abs().max()


def test_channels_lie_head_by_head_and_divide_over_ranks() -> None:
    """Parts of the first head, then those of the next; a rank has some of the heads."""
    names = ["a0", "a1", "b0", "b1", "b2", "b3"]  # two heads: a part of one channel each, and one of two
    full = torch.arange(6.0).view(6, 1, 1).expand(6, 1, 3)

    def order(shard: Shard, by_head: int | None) -> list[str]:
        op = ShortConvolution(0, (2, 4), 3, torch.float32, by_head=by_head, shard=shard)
        return [names[int(number)] for number in op.load_tensor("weight", full)["weight"][:, 0, 0]]

    assert order(Shard(), None) == names
    assert order(Shard(), 2) == ["a0", "b0", "b1", "a1", "b2", "b3"]
    assert [order(Shard(rank, 2), 2) for rank in range(2)] == [["a0", "b0", "b1"], ["a1", "b2", "b3"]]
    assert [order(Shard(rank, 2), None) for rank in range(2)] == [["a0", "b0", "b1"], ["a1", "b2", "b3"]]


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 9), (3, 3), (64, 100), (65, 65), (200, 1000)])
def test_the_cost_of_the_delta_rule_by_hand(q_len: int, kv_len: int) -> None:
    """Every pair within a chunk, and every position with a state; the state moved once each way."""
    op, s = GatedDeltaRule(0, SIZES, torch.bfloat16), SIZES
    chunks = [range(first, min(first + RECURRENT.size, q_len)) for first in range(0, q_len, RECURRENT.size)]
    pairs = [(later, earlier) for chunk in chunks for later in chunk for earlier in chunk if earlier <= later]
    strict = sum(later != earlier for later, earlier in pairs)
    flops = 2 * (s.key_heads * s.key + s.value_heads * s.value) * (len(pairs) + strict)
    flops += q_len * 3 * 2 * s.value_heads * s.key * s.value
    cost = op.cost(Work.of([StepSegment(q_len, kv_len)], [RECURRENT]))
    assert cost.flops == {"bf16": flops}
    assert cost.kv_write_bytes == 4 * s.value_heads * s.key * s.value
    assert cost.kv_read_bytes == (cost.kv_write_bytes if kv_len > q_len else 0)
    assert cost.weight_bytes == 2 * 2 * s.value_heads
    assert cost.activation_bytes == 2 * q_len * (2 * s.key_heads * s.key + s.value_heads * (2 * s.value + 2))


@pytest.mark.parametrize("q_len", [1, 65])
def test_the_cost_of_a_state_space_by_hand(q_len: int) -> None:
    """C and B meet once a group, what they bring is summed for each head; a state added to and asked."""
    groups, share, head, state = 2, 3, 5, 7
    op = StateSpace(0, StateSpaceSizes(groups, share, head, state), torch.bfloat16, 0.001)
    pairs = {1: 1, 65: 64 * 65 // 2 + 1}[q_len]
    cost, heads = op.cost(Work.of([StepSegment(q_len, 100)], [RECURRENT])), groups * share
    assert cost.flops == {"bf16": 2 * pairs * (groups * state + heads * head) + q_len * 2 * 2 * heads * state * head}
    assert cost.kv_read_bytes == cost.kv_write_bytes == 4 * heads * state * head
    assert cost.activation_bytes == 2 * q_len * (2 * heads * head + 2 * groups * state + heads)


def test_decode_steps_are_their_segments() -> None:
    contexts = [1, 7, 64, 3]
    assert Work.decode(contexts, [RECURRENT]) == Work.of([StepSegment(1, n) for n in contexts], [RECURRENT])
