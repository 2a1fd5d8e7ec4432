"""From a file to memory: read and copied, read in place, passed on in pieces, or mapped; and cold starts of a card."""

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

TENSORS, NBYTES, REPEATS, CARD = 24, 4 << 20, 3, "h100-sxm"


def naive(path: Path, card: memoryview) -> list[memoryview]:
    """All of the file, then each tensor copied out of it."""
    return [memoryview(bytearray(part)) for part in cut(memoryview(path.read_bytes()))]


def in_place(path: Path, card: memoryview) -> list[memoryview]:
    """Each tensor read into memory of its own."""
    pieces = [memoryview(bytearray(NBYTES)) for _ in range(TENSORS)]
    with path.open("rb", buffering=0) as file:
        list(map(file.readinto, pieces))
    return pieces


def streamed(path: Path, card: memoryview) -> list[memoryview]:
    """Each tensor read into the same place, and from there onto a card, for which other memory stands here."""
    place = memoryview(bytearray(NBYTES))
    with path.open("rb", buffering=0) as file:
        for there in cut(card):
            file.readinto(place)
            there[:] = place
    return cut(card)


def mapped(path: Path, card: memoryview) -> list[memoryview]:
    """Nothing is read: the file's pages in the kernel's cache are the tensors. Each page is touched once."""
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    sum(whole[:: mmap.PAGESIZE])
    return cut(whole)


def cut(whole: memoryview) -> list[memoryview]:
    """Its tensors."""
    return [whole[start : start + NBYTES] for start in range(0, len(whole), NBYTES)]


WAYS = {"read whole, then copied": naive, "read in place": in_place, "streamed": streamed, "mapped": mapped}


def measure(path: Path) -> dict[str, tuple[float, float]]:
    """Of each way the most memory of its own that it takes, in sizes of the file, and its median seconds."""
    wanted, found = path.read_bytes(), {}
    for name, way in WAYS.items():
        card = memoryview(bytearray(len(wanted)))
        seconds = median(repeat(partial(way, path, card), number=1, repeat=REPEATS))
        tracemalloc.start()
        pieces = way(path, card)
        found[name] = tracemalloc.get_traced_memory()[1] / len(wanted), seconds
        tracemalloc.stop()
        assert b"".join(pieces) == wanted
    return found


def run() -> ExperimentOutcome:
    """The four ways here, and cold starts by the figures of disks and links."""
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "weights").write_bytes(os.urandom(TENSORS * NBYTES))
        found = measure(path)
    memory, seconds = ({name: each[n] for name, each in found.items()} for n in (0, 1))
    ledger, starts = CostCalculator(), dict[str, ColdStart]()
    for name in ("llama-3-8b", "llama-3-70b"):
        size, link = ledger.bill(name).nbytes, ledger.card(CARD).host_link
        starts |= {f"{name}, {disk.title}": cold_start(size, size, disk, link) for disk in disks()}
    (quick, *_), slow = starts.values(), starts["llama-3-70b, a cloud volume at its most"]
    cold = [TableRow((n, *map(say_seconds, (s.read, s.copy or 0.0, s.in_turn, s.floor)))) for n, s in starts.items()]
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
            (1.1 < quick.in_turn / quick.floor <= 2, f"{quick.in_turn:.2f} s in turn, {quick.floor:.2f} s at once"),
            (slow.in_turn / 1.05 < slow.floor > 100, f"{slow.in_turn:.0f} s in turn, {slow.floor:.0f} s at once"),
        ),
        (
            DocumentTable(columns("cold, onto an H100", "disk", "link", "in turn", "at once, or direct"), tuple(cold)),
            Bars("Memory that loading takes", "sizes of the file", tuple(Bar(*each) for each in memory.items())),
        ),
        {"memory": memory, "seconds": seconds, "cold": {name: (s.in_turn, s.floor) for name, s in starts.items()}},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "loading",
    "What does loading cost?",
    (
        "To read and copy takes twice the file's size, in place once, streamed one tensor, mapped nothing.",
        "If the file is in the page cache, a mapping is ready first, and a copy of a copy last.",
        "From a fast disk to a card an 8B takes as long as the slower part, if reading and copying overlap.",
        "A 70B from a volume with 1 GB/s takes over 100 s, whatever else you do.",
    ),
    run,
    __file__,
    timed=(2,),
)
