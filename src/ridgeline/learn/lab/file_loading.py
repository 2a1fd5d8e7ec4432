"""Loading a file into memory: read and copied, read in place, streamed, or memory-mapped; and cold starts of a GPU."""

import mmap
import os
import tracemalloc
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from timeit import repeat

from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.price.cold_start import ColdStart, cold_start, disks
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say_seconds

TENSORS, NBYTES, REPEATS, GPU, SLOW_DISK = 24, 4 << 20, 3, "h100-sxm", "a cloud volume at its most"


def naive(path: Path, gpu_memory: memoryview) -> list[memoryview]:
    """Read a whole weight file into memory, then copy each tensor to memory of its own."""
    return [memoryview(bytearray(part)) for part in cut(memoryview(path.read_bytes()))]


def in_place(path: Path, gpu_memory: memoryview) -> list[memoryview]:
    """Read each tensor of a weight file directly into its own memory."""
    pieces = [memoryview(bytearray(NBYTES)) for _ in range(TENSORS)]
    with path.open("rb", buffering=0) as file:
        list(map(file.readinto, pieces))
    return pieces


def streamed(path: Path, gpu_memory: memoryview) -> list[memoryview]:
    """Load a weight file through one small buffer: read each tensor into it, and copy it to the GPU's memory.

    Other host memory stands in for the GPU's memory here.
    """
    place = memoryview(bytearray(NBYTES))
    with path.open("rb", buffering=0) as file:
        for there in cut(gpu_memory):
            file.readinto(place)
            there[:] = place
    return cut(gpu_memory)


def mapped(path: Path, gpu_memory: memoryview) -> list[memoryview]:
    """Map a weight file and touch each page once, so that the pages of the kernel's cache are the tensors."""
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    sum(whole[:: mmap.PAGESIZE])
    return cut(whole)


def cut(whole: memoryview) -> list[memoryview]:
    """Split the contents of the experiment's weight file into its tensors, which all have the same size."""
    return [whole[start : start + NBYTES] for start in range(0, len(whole), NBYTES)]


WAYS = {"read whole, then copied": naive, "read in place": in_place, "streamed": streamed, "mapped": mapped}


def measure(path: Path) -> dict[str, tuple[float, float]]:
    """Return for each way of loading its peak memory in multiples of the file size and its median seconds."""
    wanted, found = path.read_bytes(), {}
    for name, way in WAYS.items():
        gpu_memory = memoryview(bytearray(len(wanted)))
        seconds = median(repeat(partial(way, path, gpu_memory), number=1, repeat=REPEATS))
        tracemalloc.start()
        pieces = way(path, gpu_memory)
        found[name] = tracemalloc.get_traced_memory()[1] / len(wanted), seconds
        tracemalloc.stop()
        assert b"".join(pieces) == wanted
    return found


def run() -> ExperimentOutcome:
    """Run the experiment: four ways of loading on this machine, and cold starts from the figures of disks and links."""
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "weights").write_bytes(os.urandom(TENSORS * NBYTES))
        found = measure(path)
    memory, seconds = ({name: each[n] for name, each in found.items()} for n in (0, 1))
    ledger, starts = CostCalculator(), dict[str, ColdStart]()
    for name in ("llama-3-8b", "llama-3-70b"):
        size, link = ledger.bill(name).nbytes, ledger.gpu(GPU).host_link
        starts |= {f"{name}, {disk.title}": cold_start(size, size, disk, link) for disk in disks()}
    totals = {name: (start.sequential, start.overlapped) for name, start in starts.items()}
    ((fast, fast_overlapped), *_), (slow, slow_overlapped) = totals.values(), totals[f"llama-3-70b, {SLOW_DISK}"]
    cold = [TableRow((n, *map(say_seconds, (s.read, s.copy or 0.0, *totals[n])))) for n, s in starts.items()]
    return ExperimentOutcome(
        (
            (
                all(abs(most - wanted) < 0.1 for most, wanted in zip(memory.values(), (2, 1, 0, 0), strict=True)),
                ", ".join(f"{name} {most:.2f}" for name, most in memory.items()),
            ),
            (
                seconds["mapped"] < seconds["read in place"] < seconds["read whole, then copied"],
                ", ".join(f"{name} {say_seconds(took)}" for name, took in seconds.items()),
            ),
            (1.1 < fast / fast_overlapped <= 2, f"{fast:.2f} s in turn, {fast_overlapped:.2f} s overlapped"),
            (slow / 1.05 < slow_overlapped > 100, f"{slow:.0f} s in turn, {slow_overlapped:.0f} s overlapped"),
        ),
        (
            DocumentTable(columns("cold start on an H100", "disk", "link", "in turn", "overlapped"), tuple(cold)),
            Bars("Peak memory of loading", "multiples of the file size", tuple(Bar(*each) for each in memory.items())),
        ),
        {"memory": memory, "seconds": seconds, "cold": totals},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "loading",
    "How much memory and time does loading weights take?",
    (
        "Reading and copying takes twice the file's size of memory, in place once, streaming one tensor, mapping none.",
        "If the file is in the page cache, mapping is fastest, and reading it whole and copying it is slowest.",
        "If reading and copying overlap, an 8B on a fast disk loads to a GPU in the time of the slower of the two.",
        "Loading a 70B from a volume with 1 GB/s takes over 100 s in any case.",
    ),
    run,
    timed=(2,),
)
