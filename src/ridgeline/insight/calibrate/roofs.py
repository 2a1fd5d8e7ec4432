"""The roofs of a device: how fast it reads and copies, by working set, and how fast it multiplies, by format."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.backends.cpu.library import library, share_threads
from ridgeline.core.ops.matrix.operands import DTYPES, Operands
from ridgeline.core.ops.number_formats import FORMATS, FP32
from ridgeline.insight.calibrate.timer import Timer, undisturbed
from ridgeline.price.device import Cache

KIB, MIB = 1 << 10, 1 << 20
Stated = Sequence[tuple[str, int]]
"""Names and bytes of caches, as the system states them, the nearest first."""

# Working sets of any machine. Below the first the call costs more than the reading.
_SETS = tuple(int(n * MIB) for n in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256))
_CALL_SECONDS = 3e-4  # what one timing should hold at least
_FASTEST = 50e9  # bytes a second, a guess that only decides how many calls one timing holds
_EDGES = (512, 1024, 2048)
_CARD_EDGES = (2048, 4096, 8192)
_COLUMNS = 1024
_Multiply = Callable[[Tensor, Tensor], object]


@dataclass(frozen=True, slots=True)
class MemoryStream:
    """Bytes a second over a working set: reading all of it, and copying half of it to the other half (both counted)."""

    nbytes: int
    read: float
    copy: float


def beyond_caches(stated: Stated) -> int:
    """Bytes of which no cache holds a part worth speaking of."""
    return 4 * max((size for _, size in stated), default=_SETS[-1] // 4)


def working_sets(stated: Stated) -> list[int]:
    """Working sets from a part of the nearest cache to well beyond the last."""
    sets = list(_SETS)
    while sets[-1] < beyond_caches(stated):
        sets.append(2 * sets[-1])
    return sets


@torch.inference_mode()
def streams(timer: Timer, budget: float, sets: Sequence[int]) -> list[MemoryStream]:
    """How fast working sets are read and copied, the smallest first. Reading is the best of four ways to read."""
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
    """Seconds of a call that goes over so many bytes; short ones are timed by the dozen."""
    count = max(1, int(_CALL_SECONDS * _FASTEST / nbytes))

    def calls() -> None:
        for _ in range(count):
            call()

    return undisturbed(timer.each(calls, budget)) / count


def memory_bandwidth(measured: Sequence[MemoryStream], stated: Stated) -> float:
    """Bytes a second of main memory: the best reading of working sets at least twice as large as any cache."""
    least = min(beyond_caches(stated) / 2, measured[-1].nbytes)
    return max(stream.read for stream in measured if stream.nbytes >= least)


def caches(measured: Sequence[MemoryStream], stated: Stated) -> tuple[Cache, ...]:
    """The caches that the streams show, the nearest first. stated: names and sizes, as the system knows them.

    A cache is as fast as the fastest stream that fits it and not the one before it. It is as large as the largest
    stream that is nearer to that speed than to the speed behind it: neighbours may have taken a part of it. Where
    nothing is stated, one cache is taken from the streams alone.
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
    """Names and bytes of the data caches from level 2 on, as Linux states them for so many threads; empty where it does
    not. A cache that cores do not share counts once a thread.
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
    """FLOP/s by number format: the best square matrix product, of torch's and our own kernels'; of int8 with sums of 32
    bits.
    """
    share_threads()
    measured: dict[str, float] = {}
    dtypes = {f.name: f.dtype for f in FORMATS if f.dtype != torch.float16 or timer.device.type == "cuda"}
    for name, dtype in {**dtypes, "int8": torch.int8}.items():
        ways, share = _multiply(dtype, timer.device), budget / (len(dtypes) + 1)
        if best := max(_rate(timer, way, dtype, share / len(ways)) for way in ways):
            measured[name] = best
    return measured


def _multiply(dtype: torch.dtype, device: torch.device) -> list[_Multiply]:
    """The ways to multiply two matrices. Torch's library is not the faster one everywhere: of fp32 it makes half of
    what the widest instructions of a Zen 5 do.
    """
    kernels = library() if device.type == "cpu" and dtype in DTYPES else None
    ours: list[_Multiply] = [] if kernels is None else [lambda a, b: kernels.products(a, [Operands(b, None)])]
    return [torch._int_mm if dtype == torch.int8 else torch.matmul, *ours]


def _rate(timer: Timer, multiply: _Multiply, dtype: torch.dtype, budget: float) -> float:
    """FLOP/s of the best product of square matrices; 0 where there is none."""
    best = 0.0
    for edge in _EDGES if timer.device.type == "cpu" else _CARD_EDGES:
        a, b = ((64 * torch.randn(edge, edge, device=timer.device)).to(dtype) for _ in range(2))
        try:
            seconds = undisturbed(timer.each(partial(multiply, a, b), budget / len(_EDGES)))
        except RuntimeError:  # a card, or its library, without such a product
            break
        best = max(best, 2 * edge**3 / seconds)
        if seconds > budget:
            break
    return best


def peaks(measured: Mapping[str, float]) -> dict[str, float]:
    """FLOP/s that no kernel beats, from products. Where a narrow format has no fast product, a kernel may still widen
    its numbers, which is next to free: its roof is that of the widest format at least.
    """
    widened = measured.get(FP32.name, 0.0)
    return {name: max(rate, widened) for name, rate in measured.items()}
