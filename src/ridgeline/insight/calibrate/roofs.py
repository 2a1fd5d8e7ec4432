"""The roofs of a device: read and copy bandwidth by working set, and matrix-product FLOP/s by format."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.backends.cpu.library import Library, library, share_threads
from ridgeline.core.ops.matrix.interleaved import codes_side_by_side, scales_side_by_side
from ridgeline.core.ops.matrix.operands import DTYPES, Codes, Operands
from ridgeline.core.ops.matrix.packed_words import SIGN_BIT
from ridgeline.core.ops.matrix.quantised import MIDDLE
from ridgeline.core.ops.number_formats import FORMATS, FP32
from ridgeline.insight.calibrate.timer import Timer, undisturbed
from ridgeline.price.device import Cache

KIB, MIB = 1 << 10, 1 << 20
ReportedCaches = Sequence[tuple[str, int]]
"""The names and sizes in bytes of caches as the system reports them, nearest first."""

# Working sets for any machine. Below the first, the call takes longer than the read.
_SETS = tuple(int(n * MIB) for n in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256))
_CALL_SECONDS = 3e-4  # the minimum duration of one timing
_FASTEST = 50e9  # bytes per second, an estimate that only determines the number of calls per timing
_EDGES = (512, 1024, 2048)
_GPU_EDGES = (2048, 4096, 8192)
_COLUMNS = 1024
_Product = Callable[[], object]
_Prepare = Callable[[Tensor, Tensor], _Product]
"""A function that prepares the product of two square matrices, and returns the call that multiplies them."""


@dataclass(frozen=True, slots=True)
class MemoryStream:
    """The bytes per second over a working set: reading it whole, and copying one half to the other (both counted)."""

    nbytes: int
    read: float
    copy: float


def beyond_caches(stated: ReportedCaches) -> int:
    """Return a working-set size in bytes that caches hold almost nothing of."""
    return 4 * max((size for _, size in stated), default=_SETS[-1] // 4)


def working_sets(stated: ReportedCaches) -> list[int]:
    """Return working-set sizes from a part of the nearest cache to well beyond the last."""
    sets = list(_SETS)
    while sets[-1] < beyond_caches(stated):
        sets.append(2 * sets[-1])
    return sets


@torch.inference_mode()
def streams(timer: Timer, budget: float, sets: Sequence[int]) -> list[MemoryStream]:
    """Measure the read and copy bandwidth of working sets, in the given order; reading is the best of four methods."""
    each = budget / len(sets) / 5
    measured = []
    for nbytes in sets:
        x = torch.rand(nbytes // 4, device=timer.device)
        half, other = x.chunk(2)
        rows = x.view(-1, _COLUMNS)
        reads: list[Callable[[], object]] = [x.sum, x.max, partial(torch.dot, x, x), partial(torch.mv, rows, rows[0])]
        read = max(nbytes / _seconds(timer, call, nbytes, each) for call in reads)
        copy = nbytes / _seconds(timer, partial(half.copy_, other), nbytes, each)
        measured.append(MemoryStream(nbytes, read, copy))
    return measured


def _seconds(timer: Timer, call: Callable[[], object], nbytes: int, budget: float) -> float:
    """Return the seconds of a call that processes `nbytes` bytes; short calls are timed in batches."""
    count = max(1, int(_CALL_SECONDS * _FASTEST / nbytes))

    def calls() -> None:
        for _ in range(count):
            call()

    return undisturbed(timer.each(calls, budget)) / count


def memory_bandwidth(measured: Sequence[MemoryStream], stated: ReportedCaches) -> float:
    """Return the bandwidth of main memory: the fastest read of a working set at least twice as large as any cache.

    If there is none, it is that of the last and largest working set.
    """
    least = min(beyond_caches(stated) / 2, measured[-1].nbytes)
    return max(stream.read for stream in measured if stream.nbytes >= least)


def caches(measured: Sequence[MemoryStream], stated: ReportedCaches) -> tuple[Cache, ...]:
    """Return the sizes and speeds of the CPU caches that measured bandwidths reveal, nearest first.

    A cache's speed is that of the fastest stream that fits in it but not in the previous one. Its size is that of the
    largest stream within its reported size that is closer to this speed than to that of the next level, because other
    processes may occupy a part. A cache that is not at least 20 % faster than main memory is left out. Without reported
    caches, one cache is derived from the streams alone.

    Args:
        measured: The measured streams.
        stated: The names and sizes that the system reports.
    """
    memory = memory_bandwidth(measured, stated)
    stated = stated or [("cache", measured[-1].nbytes // 4)]
    speeds: list[float] = []
    inner = 0
    for _, size in stated:
        speeds.append(max((s.read for s in measured if inner < s.nbytes <= size), default=0.0))
        inner = size
    result = []
    for (name, size), speed, beyond in zip(stated, speeds, [*speeds[1:], memory], strict=True):
        fast = [s.nbytes for s in measured if s.nbytes <= size and s.read >= (speed * max(beyond, memory)) ** 0.5]
        if fast and speed > 1.2 * memory:
            result.append(Cache(name, float(max(fast)), speed))
    return tuple(result)


def stated_caches(threads: int, root: Path = Path("/sys/devices/system/cpu")) -> list[tuple[str, int]]:
    """Return the data caches from level 2 on as Linux reports them for a number of threads; empty if it does not.

    Caches of one level that are private to cores or groups of cores add up, at most one per thread.
    """
    levels: dict[int, dict[str, int]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        for index in sorted((root / f"cpu{core}" / "cache").glob("index*")):
            try:
                level = int((index / "level").read_text())
                sharers, size = (index / "shared_cpu_list").read_text(), (index / "size").read_text().strip()
                if (index / "type").read_text().strip() != "Instruction" and level > 1:
                    levels.setdefault(level, {})[sharers] = int(size.removesuffix("K")) * KIB
            except (OSError, ValueError):
                continue
    return [(f"L{level}", sum(sorted(sizes.values())[-threads:])) for level, sizes in sorted(levels.items())]


@torch.inference_mode()
def products(timer: Timer, budget: float) -> dict[str, float]:
    """Measure the FLOP/s of the best square matrix product by number format, with torch's and our own kernels.

    The int8 products accumulate in 32 bits.
    """
    share_threads()
    measured: dict[str, float] = {}
    dtypes = {f.name: f.dtype for f in FORMATS if f.dtype != torch.float16 or timer.device.type == "cuda"}
    for name, dtype in {**dtypes, "int8": torch.int8}.items():
        ways, share = _ways(dtype, timer.device), budget / (len(dtypes) + 1)
        if best := max(_rate(timer, way, dtype, share / len(ways)) for way in ways):
            measured[name] = best
    return measured


def _ways(dtype: torch.dtype, device: torch.device) -> list[_Prepare]:
    """Return the available ways to multiply two matrices of a dtype: torch's, and that of our own kernels.

    Torch's library is not always the fastest: in fp32 it reaches half of what the widest instructions of a Zen 5 can
    do. And its integer products may use other instructions than ours.
    """
    theirs = torch._int_mm if dtype == torch.int8 else torch.matmul
    ways: list[_Prepare] = [lambda a, b: partial(theirs, a, b)]
    kernels = library() if device.type == "cpu" else None
    if kernels is not None and dtype in DTYPES:
        ways.append(lambda a, b: partial(kernels.products, a, [Operands(b, None)]))
    elif kernels is not None and dtype == torch.int8:
        ways.append(partial(_integer_product, kernels))
    return ways


def _integer_product(kernels: Library, a_TI: Tensor, b_OI: Tensor) -> _Product:
    """Prepare the product of our W8A8 kernels, in the layout that they are fastest with; they round rows of bf16."""
    codes_OI, scales_OG = b_OI.view(torch.uint8) ^ SIGN_BIT, torch.ones(len(b_OI), 1, device=b_OI.device)
    if kernels.interleaves:
        codes_OI, scales_OG = (
            interleave(held).reshape(held.shape)
            for interleave, held in ((codes_side_by_side, codes_OI), (scales_side_by_side, scales_OG))
        )
    codes = Codes("w8a8", b_OI.shape[1], scales_OG, float(MIDDLE["int8"]), interleaved=kernels.interleaves)
    return partial(kernels.products, a_TI.to(torch.bfloat16), [Operands(codes_OI, None, codes)])


def _rate(timer: Timer, prepare: _Prepare, dtype: torch.dtype, budget: float) -> float:
    """Return the FLOP/s of the best product of square matrices; 0 if the device has none."""
    best = 0.0
    for edge in _EDGES if timer.device.type == "cpu" else _GPU_EDGES:
        a, b = ((64 * torch.randn(edge, edge, device=timer.device)).to(dtype) for _ in range(2))
        try:
            seconds = undisturbed(timer.each(prepare(a, b), budget / len(_EDGES)))
        except RuntimeError:  # the GPU or its library has no such product
            break
        best = max(best, 2 * edge**3 / seconds)
        if seconds > budget:
            break
    return best


def peaks(measured: Mapping[str, float]) -> dict[str, float]:
    """Return the FLOP/s that no kernel exceeds, from the measured products.

    If a narrow format has no fast product, a kernel can still widen its numbers at almost no cost. Its roof is
    therefore at least that of the widest format.
    """
    widened = measured.get(FP32.name, 0.0)
    return {name: max(rate, widened) for name, rate in measured.items()}
