"""Our attention for cards over pages against torch's over whole sequences: every reach, soft caps, sinks, codes, first
chunks, later ones and decodes of several sequences; and what turns and keeps rows against what does so in steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from ridgeline.backends.cuda.cuda_coverage import attends
from ridgeline.backends.cuda.cuda_pages import CudaPages
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.forward_batch import ForwardBatch
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVGroup, KVSpec
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.rotary import Rope, RotaryTable, rotate
from ridgeline.core.ops.work import CAUSAL, CROSS, AttentionPattern
from support.cards import DEVICE, HAS_CARD, close, needs_triton
from support.paged import Case, Memory, by_torch, sequence, steps

pytestmark = needs_triton


class Cards:
    """Our attention for cards."""

    device = DEVICE

    def context(self, pages: LayerPages, group: KVGroup) -> Callable[[ForwardBatch], KVContext]:
        return CudaPages({0: pages}, [group]).context


PLAIN = Case(heads=(2, 3), dim=40, width=40)
CASES = {
    "plain": PLAIN,
    "bf16": replace(PLAIN, dtype=torch.bfloat16),
    "one sharer, large pages": Case(heads=(2, 1), dim=64, width=48, page_size=64, scale=0.3),
    "window of one": replace(PLAIN, reach=AttentionPattern("window", 1), page_size=4),
    "window": replace(PLAIN, reach=AttentionPattern("window", 21), heads=(1, 7)),
    "chunked": replace(PLAIN, reach=AttentionPattern("chunked", 24), page_size=1),
    "soft cap and sinks": replace(PLAIN, softcap=5.0, sinks=True),
    "sinks, windows, bf16": replace(
        PLAIN, reach=AttentionPattern("window", 30), sinks=True, dtype=torch.bfloat16, heads=(1, 16)
    ),
    "cross": replace(PLAIN, reach=CROSS),
    "int8": replace(PLAIN, stored="int8"),
    "int8, sinks, bf16": replace(PLAIN, stored="int8", sinks=True, dtype=torch.bfloat16, page_size=4),
    "fp8": replace(PLAIN, stored="fp8", reach=AttentionPattern("window", 23)),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_torchs(name: str) -> None:
    case = CASES[name]
    cuts: Sequence[Sequence[int]] = ([37, 1, 1], [18, 2, 1], [1, 1], [5])
    cross = case.reach.kind == "cross"
    sequences = [sequence(case, 45 + n if cross else sum(cut), n, queries=sum(cut)) for n, cut in enumerate(cuts)]
    found = steps(Cards(), case, sequences, cuts)
    for own, of in zip(found, sequences, strict=True):
        assert close(own, by_torch(case, of), 2e-5 if case.dtype == torch.float32 else 1.6e-2)


@pytest.mark.parametrize("stored", ["", "int8"])
@pytest.mark.parametrize("reach", [CAUSAL, CROSS], ids=["causal", "cross"])
def test_attention_over_copies_is_torchs(reach: AttentionPattern, stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values out of their pages first: chunks that begin within a tile, beside decodes, with sinks and caps;
    and nothing of a neighbour's that is not finite."""
    from ridgeline.backends.cuda.triton import TritonPagedAttention

    monkeypatch.setattr("ridgeline.backends.cuda.triton.triton_attention.is_hopper", lambda _: True)
    monkeypatch.setattr("ridgeline.backends.cuda.triton.dense_kv.FEWEST_QUERIES", 2)
    gathered: list[int] = []
    copying = TritonPagedAttention._gathered
    monkeypatch.setattr(TritonPagedAttention, "_gathered", lambda *own: gathered.append(1) or copying(*own))
    case = Case(
        heads=(2, 3), dim=64, width=64, dtype=torch.bfloat16, reach=reach, stored=stored, softcap=20.0, sinks=True
    )
    cuts: Sequence[Sequence[int]] = ([131, 1, 9], [40, 7], [1, 1], [3])
    sequences = [sequence(case, 143 if reach == CROSS else sum(cut), n, queries=sum(cut)) for n, cut in enumerate(cuts)]
    for found, of in zip(steps(Cards(), case, sequences, cuts), sequences, strict=True):
        assert close(found, by_torch(case, of), 1.6e-2 if HAS_CARD else 3e-2)  # the interpreter cuts bits of bf16 off
    assert gathered


@pytest.mark.parametrize("copied", [False, True])
def test_prompts_of_many_sequences_find_their_tiles(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a program compares its tile with at a time, of lengths that fill tiles and that do not."""
    from ridgeline.backends.cuda.triton.paged_attention_kernels import AT_ONCE

    monkeypatch.setattr("ridgeline.backends.cuda.triton.triton_attention.is_hopper", lambda _: True)
    if copied:
        monkeypatch.setattr("ridgeline.backends.cuda.triton.dense_kv.FEWEST_QUERIES", 2)
    case = Case(heads=(1, 3), dim=64, width=64, dtype=torch.bfloat16)
    cuts = [[2 + 5 * n % 13] for n in range(AT_ONCE.value + 6)]
    sequences = [sequence(case, length, n) for n, (length,) in enumerate(cuts)]
    for found, of in zip(steps(Cards(), case, sequences, cuts), sequences, strict=True):
        assert close(found, by_torch(case, of), 1.6e-2 if HAS_CARD else 3e-2)


def test_what_is_attended_over_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long chunks in bf16 on a card with a copy engine, where all keys are looked at and there is room for them."""
    from ridgeline.backends.cuda.triton import PrefillSequences

    monkeypatch.setattr("ridgeline.backends.cuda.triton.triton_attention.is_hopper", lambda _: True)
    case = Case(heads=(2, 2), dim=128, width=128, dtype=torch.bfloat16)
    none = torch.zeros(0)

    def copies(queries: int = 768, rows: int = 1024, **other: object) -> bool:
        own = replace(case, **other)  # type: ignore[arg-type]
        kernel = CudaPages({0: Memory(Cards(), own, 1).store}, []).kernel(own.op())
        return kernel._copies(PrefillSequences(none, none, none, none, none, none, queries, queries, rows))

    assert copies()
    assert copies(reach=CROSS)
    assert copies(rows=1 << 18)
    assert not copies(rows=(1 << 18) + 128)
    assert not copies(queries=767)
    assert not copies(reach=AttentionPattern("window", 512))
    assert not copies(dtype=torch.float32)
    assert not copies(dim=96)
    monkeypatch.setattr("ridgeline.backends.cuda.triton.triton_attention.is_hopper", lambda _: False)
    assert not copies()


def test_long_sequences_are_cut_into_parts() -> None:
    """One sequence of one KV head: its keys are shared out among many programs, some of which have none."""
    case = Case(heads=(1, 2), dim=16, width=16, sinks=True)
    own = sequence(case, 300, 0)
    (found,) = steps(Cards(), case, [own], [[299, 1]])
    assert close(found, by_torch(case, own), 2e-5)


def test_what_is_not_there_is_left_alone() -> None:
    """A row at no slot writes nothing, one of length 0 gives nothing that is not finite."""
    from ridgeline.backends.cuda.triton import DecodeSequences, GpuStepSequences

    case = Case(heads=(2, 2), dim=16, width=16)
    memory, own = Memory(Cards(), case, 2), sequence(case, 3, 0)
    memory.step([own], [range(2)])
    before, kernel = memory.store.k.clone(), CudaPages({0: memory.store}, [memory.group]).kernel(memory.op)
    nowhere = torch.full((2,), -1, dtype=torch.int64, device=DEVICE)
    q_THD = own.q_LHD[:2].to(DEVICE)
    assert own.v_LKW is not None
    kernel.keep(None, own.k_LKD[:2].to(DEVICE), own.v_LKW[:2].to(DEVICE), nowhere, None)
    assert torch.equal(memory.store.k.nan_to_num(7), before.nan_to_num(7))
    zeros = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    rows = torch.arange(2, dtype=torch.int32, device=DEVICE)
    found = kernel.attend(GpuStepSequences(zeros, DecodeSequences(zeros, zeros, rows), None), q_THD)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("reach", [CAUSAL, AttentionPattern("window", 5), AttentionPattern("chunked", 8)], ids=str)
def test_rows_of_nothing_are_zeros(reach: AttentionPattern) -> None:
    """A step in a larger bucket: sequences that are not there, rows that are nobody's, more tiles than rows want; the
    rows of all others are as without."""
    from ridgeline.backends.cuda.triton import DecodeSequences, GpuStepSequences, PrefillSequences

    case = replace(PLAIN, reach=reach)
    memory, cut = Memory(Cards(), case, 12), (21, 1, 70)
    sequences = [sequence(case, length, n) for n, length in enumerate(cut)]
    wanted = memory.step(sequences, [range(length) for length in cut])
    pages, rows = [page for table in memory.tables.values() for page in table], sum(cut)
    begins = [0, *accumulate(map(len, memory.tables.values()))]

    def ints(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)

    nothing, lengths, starts = 67, (cut[0], cut[2]), (0, 22)
    several = PrefillSequences(
        ints(begins[0], begins[2], 0, 0), ints(*lengths, 0, 0), ints(*starts, rows, 0), ints(*lengths, nothing, 0),
        ints(0, cut[0], cut[0] + cut[2], cut[0] + cut[2] + nothing), ints(0, 0, 0, 0), 160, 160, 0,
    )  # fmt: skip
    one = DecodeSequences(ints(begins[1], 0), ints(1, 0), ints(cut[0], -1))
    q_THD = torch.cat([*(own.q_LHD for own in sequences), sequence(case, nothing, 9).q_LHD]).to(DEVICE)
    found = (
        CudaPages({0: memory.store}, [memory.group])
        .kernel(memory.op)
        .attend(GpuStepSequences(ints(*pages), one, several), q_THD)
    )
    assert torch.equal(found[rows:], torch.zeros_like(found[rows:]))
    assert close(found[:rows], wanted, 2e-5)


@pytest.mark.parametrize("stored", ["", "int8", "fp8"])
@pytest.mark.parametrize("turned", [0, 16, 24])
def test_rows_are_turned_and_kept_at_once(turned: int, stored: str) -> None:
    """As by torch: turned, then quantised where pages hold codes; heads between others of wider rows."""
    case = Case(heads=(3, 3), dim=24, width=20, page_size=4, stored=stored)
    memory, other = Memory(Cards(), case, 4), Memory(Cards(), case, 4)
    rows, generator = 6, torch.Generator().manual_seed(0)
    wide = torch.randn(rows, 9 * 24 + 3 * 24 + 3 * 20 + 3, generator=generator).to(DEVICE)
    q_THD, k_TKD = wide[:, : 9 * 24].view(rows, 9, 24), wide[:, 9 * 24 : 12 * 24].view(rows, 3, 24)
    v_TKW = wide[:, 12 * 24 : 12 * 24 + 60].view(rows, 3, 20)
    slots = torch.tensor([4, 5, 6, 7, 12, 13], device=DEVICE)
    angles = RotaryTable(Rope(turned, 100.0)).to(DEVICE)(torch.arange(3, 9, device=DEVICE)) if turned else None
    kernel = CudaPages({0: memory.store}, [memory.group]).kernel(memory.op)
    found_q = kernel.keep(q_THD, k_TKD, v_TKW, slots, angles)
    wanted_q, wanted_k = (q_THD, k_TKD) if angles is None else (rotate(q_THD, angles), rotate(k_TKD, angles))
    other.store.write(slots, wanted_k, v_TKW)
    assert found_q is not None
    assert close(found_q, wanted_q, 1e-6)
    pages = torch.tensor([[1, 3]], device=DEVICE)
    kept = slice(0, 6)
    for found, wanted in zip(memory.store.gather(pages), other.store.gather(pages), strict=True):
        bound = 1e-6 if not stored else 1e-2  # a number halfway between two codes may be either
        assert close(found[..., kept, :], wanted[..., kept, :], bound)


def test_what_kernels_for_cards_do_not_read() -> None:
    """Latents, biases of positions and what is not kept are torch's."""
    spec = KVSpec(1, 32, 32, CAUSAL, torch.float32)
    assert attends(Attention(0, 2, spec))
    assert not attends(Attention(0, 2, spec, bias=lambda distance_xL: distance_xL * 0.1))
    assert not attends(Attention(0, 2, replace(spec, v_dim=0), value_dim=16))
    assert not attends(Attention(0, 2, replace(spec, reach=AttentionPattern("full"))))
    assert not attends(Attention(0, 2, replace(spec, dtype=torch.float16)))
    assert not attends(Attention(0, 2, replace(spec, k_dim=512)))


def test_splits_fill_a_card() -> None:
    """Few sequences are cut into powers of two of parts, many are not cut."""
    kernel = CudaPages({0: Memory(Cards(), Case(heads=(8, 4)), 1).store}, [])
    op = Case(heads=(8, 4)).op()
    splits = [kernel.kernel(op).splits(count) for count in accumulate([1, 1, 2, 4, 8, 16, 32])]
    assert splits == [32, 16, 8, 4, 2, 1, 1]
