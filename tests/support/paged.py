"""Attention over pages as tests of kernels run it: an op, memory in which sequences run in chunks, torch's results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from ridgeline.backends.cpu.cpu_pages import CpuPages
from ridgeline.backends.cpu.library import Library
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.forward_batch import ForwardBatch, GroupPageTables, Rows
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import NULL_PAGE, KVGroup, KVSpec
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.number_formats import kv_format_named
from ridgeline.core.ops.torch_attention import attend_segment, value_of
from ridgeline.core.ops.work import CAUSAL, AttentionPattern


class OverPages(Protocol):
    """Whose attention is tested. device: where its pages are."""

    device: torch.device

    def context(self, pages: LayerPages, group: KVGroup) -> Callable[[ForwardBatch], KVContext]:
        """What makes the KVContext of a step over the pages of one layer."""
        ...


class Native:
    """Our attention for the CPU."""

    device = torch.device("cpu")

    def __init__(self, kernels: Library) -> None:
        self.kernels = kernels

    def context(self, pages: LayerPages, group: KVGroup) -> Callable[[ForwardBatch], KVContext]:
        return CpuPages(self.kernels, {0: pages}, [group]).context


@dataclass(frozen=True)
class Case:
    """An op, and the memory that it reads."""

    heads: tuple[int, int] = (2, 2)  # of K and V, and queries to each
    dim: int = 32
    width: int = 32
    latent: bool = False
    reach: AttentionPattern = CAUSAL
    softcap: float | None = None
    sinks: bool = False
    scale: float | None = None
    page_size: int = 16
    dtype: torch.dtype = torch.float32
    stored: str = ""

    def op(self) -> Attention:
        """The op; its sinks are random."""
        stored = kv_format_named(self.stored) if self.stored else None
        spec = KVSpec(self.heads[0], self.dim, 0 if self.latent else self.width, self.reach, self.dtype, stored)
        op = Attention(
            0, self.heads[0] * self.heads[1], spec, scale=self.scale, softcap=self.softcap, sinks=self.sinks,
            value_dim=self.width if self.latent else None,
        )  # fmt: skip
        if op.sinks_H is not None:
            op.sinks_H.data = torch.randn(op.heads, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        return op


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values of every position of a sequence."""

    q_LHD: Tensor
    k_LKD: Tensor
    v_LKW: Tensor | None

    def __len__(self) -> int:
        return len(self.k_LKD)


def sequence(case: Case, length: int, seed: int, queries: int | None = None) -> Inputs:
    """One of random numbers, whose scores are large enough to matter."""
    g = torch.Generator().manual_seed(seed)
    kv_heads, sharers = case.heads

    def numbers(rows: int, heads: int, dim: int) -> Tensor:
        return torch.randn(rows, heads, dim, generator=g).to(case.dtype)

    return Inputs(
        2 * numbers(length if queries is None else queries, kv_heads * sharers, case.dim),
        numbers(length, kv_heads, case.dim),
        None if case.latent else numbers(length, kv_heads, case.width),
    )


class Memory:
    """Pages in random order, NaN wherever nothing was written, and the tables of sequences that run in steps."""

    def __init__(self, over: OverPages, case: Case, pages: int, seed: int = 0) -> None:
        self.case, self.op, self.device = case, case.op().to(over.device), over.device
        self.group = KVGroup(self.op.spec, (0,), case.page_size)
        page_bytes = int(case.page_size * self.op.spec.slot_bytes)  # what is priced is what they take
        shape = pages + 1, -(-2 * page_bytes // 16) * 16
        buffer = torch.full(shape, 0xFF, dtype=torch.uint8, device=self.device)
        buffer[NULL_PAGE] = 0
        self.store = LayerPages(buffer, self.op.spec, case.page_size, place=1, layers=2)
        self.free = (torch.randperm(pages, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
        self.tables: dict[int, list[int]] = {}
        self.context = over.context(self.store, self.group)

    def step(self, sequences: Sequence[Inputs], runs: Sequence[range]) -> Tensor:
        """Run these positions of each, its first or next ones -> [rows, heads, W], sequence after sequence."""
        size, cross = self.case.page_size, self.case.reach.kind == "cross"
        slots: list[int] = []
        pages: list[list[int]] = []
        firsts: list[int] = []
        for index, (own, run) in enumerate(zip(sequences, runs, strict=True)):
            table = self.tables.setdefault(index, [])
            stop = len(own) if cross else run.stop
            while len(table) * size < stop:
                table.append(self.free.pop())
            slots += [table[p // size] * size + p % size for p in self.written(own, run)]
            first = 0 if cross else self.op.spec.first_seen(run.start) // size
            pages.append(table[first:])
            firsts.append(first * size)
        nothing = torch.empty(0, dtype=torch.int64)
        starts = [0, *accumulate(map(len, runs))]
        lengths, encoded = [run.stop for run in runs], [len(own) for own in sequences]
        rows = Rows(nothing, nothing, starts)
        tables = GroupPageTables(torch.tensor(slots, dtype=torch.int64, device=self.device), pages, firsts)
        kv = self.context(ForwardBatch(rows, rows, nothing, lengths, encoded, [tables]))
        new = [self.written(own, run) for own, run in zip(sequences, runs, strict=True)]
        q_THD = torch.cat([own.q_LHD[run.start : run.stop] for own, run in zip(sequences, runs, strict=True)])
        k_NKD = torch.cat([own.k_LKD[p.start : p.stop] for own, p in zip(sequences, new, strict=True)])
        values = [own.v_LKW[p.start : p.stop] for own, p in zip(sequences, new, strict=True) if own.v_LKW is not None]
        q_THD, k_NKD = q_THD.to(self.device), k_NKD.to(self.device)
        v_NKW = torch.cat(values).to(self.device) if len(k_NKD) and values else None
        return kv.attend(self.op, q_THD, k_NKD if len(k_NKD) else None, v_NKW).cpu()

    def written(self, own: Inputs, run: range) -> range:
        """Which keys a step adds: an encoder's all at once."""
        if self.case.reach.kind != "cross":
            return run
        return range(0 if run.start else len(own))


def steps(over: OverPages, case: Case, sequences: Sequence[Inputs], cuts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Sequences that run in chunks of these lengths, one chunk of each a step: results of each [L, heads, W]."""
    memory = Memory(over, case, sum(-(-len(own) // case.page_size) for own in sequences))
    ends = [[0, *accumulate(cut)] for cut in cuts]
    out: list[list[Tensor]] = [[] for _ in sequences]
    for turn in range(max(map(len, cuts))):
        runs = [range(end[min(turn, len(end) - 1)], end[min(turn + 1, len(end) - 1)]) for end in ends]
        parts = torch.split(memory.step(sequences, runs), [len(run) for run in runs])
        for own, part in zip(out, parts, strict=True):
            own.append(part)
    return [torch.cat(own) for own in out]


def read_back(x_LKD: Tensor, stored: str) -> Tensor:
    """What is kept of K or V, number by number: of int8 the nearest multiple of a vector's largest magnitude over 127,
    which is rounded to bf16; of fp8 the nearest e4m3."""
    if stored == "int8":
        step_LK1 = (x_LKD.abs().amax(-1, keepdim=True) / 127).bfloat16().float()
        return (x_LKD / step_LK1).nan_to_num().round() * step_LK1
    return x_LKD.to(torch.float8_e4m3fn).float() if stored == "fp8" else x_LKD


def by_torch(case: Case, own: Inputs) -> Tensor:
    """The whole sequence by torch, in fp32 of the same numbers."""
    op = replace(case, dtype=torch.float32, stored="").op()
    if op.sinks_H is not None:
        op.sinks_H.data = case.op().sinks_H.float()  # type: ignore[union-attr]
    k_LKD = read_back(own.k_LKD.float(), case.stored)
    v_LKW = value_of(op, k_LKD, None if own.v_LKW is None else read_back(own.v_LKW.float(), case.stored))
    return attend_segment(op, own.q_LHD.float(), k_LKD.transpose(0, 1), v_LKW.transpose(0, 1))


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for rounding: of fp32 sums, or of what is stored as bf16, weights of values among it."""
    bound = 1e-5 if ours.dtype == torch.float32 else 1e-2
    return bool((ours.float() - theirs).abs().max() <= bound * theirs.abs().max())
