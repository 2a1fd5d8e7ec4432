"""Single kernels of ours, each beside torch and beside the roof of its work.

    python benchmarks/kernels.py [--rounds 9] [--threads 1]

Products are those of Qwen3-0.6B's MLP, with as many matrices in turn as no cache holds; attention is that of one of
its layers. Torch and ours run in turn, ratios are of one round, and everything is a median. Torch's attention gathers
the pages first, which is part of its time: it knows none. The roofs are probed before and after; the bound of a call
is the longer of its bytes at the one and its FLOPs at the other.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.backends.cpu.cpu_attention import CpuPagedAttention, CpuStepSequences
from ridgeline.backends.cpu.library import Library, library
from ridgeline.backends.kernel_support import AttentionScoring
from ridgeline.core.ops.matrix.operands import Operands

HEADS, KV_HEADS, DIM, PAGE = 16, 8, 128, 16
MATRICES = ((1024, 3072), (3072, 1024))
ROWS = (1, 4, 8, 16, 32, 128)
ATTENTION = (
    ("decode, 16 sequences of 1,024", 16, 1, 1024),
    ("decode, 1 sequence of 2,048", 1, 1, 2048),
    ("64 queries at 1,024", 1, 64, 1024),
    ("prefill of 2,048", 1, 2048, 2048),
)
BEYOND_CACHES = 1 << 28


@dataclass(frozen=True)
class Roofs:
    """Bytes and fp32 FLOPs a second."""

    read: float
    multiply: float


@dataclass(frozen=True)
class Job:
    """A call by torch and by us, and what it has to move (bytes) and to multiply (FLOPs)."""

    name: str
    nbytes: float
    flops: float
    by_torch: Callable[[], object]
    by_us: Callable[[], object]


@torch.inference_mode()
def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    kernels = library()
    if kernels is None:
        raise SystemExit("the kernels are not compiled here: install a C++ compiler, then the package again")
    torch.set_num_threads(asked.threads)
    kernels.threads(asked.threads)
    print(f"kernels for {kernels.name}, threads: {asked.threads}, medians of {asked.rounds} rounds")
    for dtype in (torch.bfloat16, torch.float32):
        print(
            f"\n{str(dtype).removeprefix('torch.'):36} torch ms   ours ms   torch / ours       GB/s  GFLOP/s  of bound"
        )
        for job in [*products(kernels, dtype), *attentions(kernels, dtype)]:
            print_row(job, asked.rounds)


def products(kernels: Library, dtype: torch.dtype) -> list[Job]:
    """x W^T of few and of many rows."""
    jobs = []
    for inputs, outputs in MATRICES:
        nbytes = inputs * outputs * dtype.itemsize
        weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(BEYOND_CACHES // nbytes)]
        for rows in ROWS:
            x_TI = torch.randn(rows, inputs).to(dtype)
            theirs, ours = cycle(weights), cycle(weights)
            jobs.append(
                Job(
                    f"{rows} x {inputs} -> {outputs}",
                    nbytes,
                    2 * rows * inputs * outputs,
                    partial(lambda x, matrices: functional.linear(x, next(matrices)), x_TI, theirs),
                    partial(lambda x, matrices: kernels.products(x, [Operands(next(matrices), None)]), x_TI, ours),
                )
            )
    return jobs


def attentions(kernels: Library, dtype: torch.dtype) -> list[Job]:
    """Attention of one layer over pages that lie in random order."""
    jobs = []
    for name, sequences, queries, length in ATTENTION:
        pages = sequences * length // PAGE
        cache_PKSD = torch.randn(pages, 2 * KV_HEADS, PAGE, DIM).to(dtype)
        k_PKSD, v_PKSD = cache_PKSD[:, :KV_HEADS], cache_PKSD[:, KV_HEADS:]
        tables = torch.randperm(pages).view(sequences, -1)
        q_THD = torch.randn(sequences * queries, HEADS, DIM).to(dtype)
        scoring = AttentionScoring("causal", 0, DIM**-0.5, None, None)
        attention = CpuPagedAttention(kernels, HEADS, scoring, k_PKSD, v_PKSD, DIM, k_PKSD.dtype)
        starts = [n * queries for n in range(sequences + 1)]
        step = CpuStepSequences(starts, [length] * sequences, [0] * sequences, tables.tolist())
        seen = sequences * (queries * length - queries * (queries - 1) / 2)
        jobs.append(
            Job(
                name,
                2 * sequences * length * KV_HEADS * DIM * dtype.itemsize,
                4 * seen * HEADS * DIM,
                partial(by_torch, q_THD, k_PKSD, v_PKSD, tables),
                partial(attention.attend, step, q_THD, None, None, torch.empty(0, dtype=torch.int64)),
            )
        )
    return jobs


def by_torch(q_THD: Tensor, k_PKSD: Tensor, v_PKSD: Tensor, tables_BP: Tensor) -> Tensor:
    """The same by gathering and torch's own attention -> [B, H, queries, D]."""
    count = len(tables_BP)
    q_BHTD = q_THD.view(count, -1, HEADS, DIM).transpose(1, 2)
    k, v = (x[tables_BP].transpose(1, 2).reshape(count, KV_HEADS, -1, DIM) for x in (k_PKSD, v_PKSD))
    queries, length = q_BHTD.shape[2], k.shape[2]
    seen = torch.ones(queries, length, dtype=torch.bool).tril(length - queries) if 1 < queries < length else None
    return functional.scaled_dot_product_attention(q_BHTD, k, v, seen, is_causal=1 < queries == length, enable_gqa=True)


def print_row(job: Job, rounds: int) -> None:
    """Time both in turn, and say how near ours came to its bound."""
    before = roofs()
    pairs = [(seconds(job.by_torch), seconds(job.by_us)) for _ in range(rounds)]
    after = roofs()
    theirs, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    bound = max(job.nbytes * 2 / (before.read + after.read), job.flops * 2 / (before.multiply + after.multiply))
    spread = f"{statistics.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    print(
        f"{job.name:36} {theirs * 1e3:8.3f}  {ours * 1e3:8.3f}   {spread:20}"
        f" {job.nbytes / ours / 1e9:5.1f} {job.flops / ours / 1e9:8.1f} {bound / ours:9.2f}",
        flush=True,
    )


def roofs() -> Roofs:
    """What torch reads and multiplies just now, the best of three."""
    x, a = torch.empty(BEYOND_CACHES // 4).fill_(1.0), torch.ones(1024, 1024)
    return Roofs(
        x.nbytes / min(seconds(x.sum, 0) for _ in range(3)),
        2 * 1024**3 / min(seconds(partial(torch.mm, a, a)) for _ in range(3)),
    )


def seconds(call: Callable[[], object], least: float = 0.02) -> float:
    """Of one call, from as many as take `least` seconds."""
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < least:
        call()
        count += 1
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()
