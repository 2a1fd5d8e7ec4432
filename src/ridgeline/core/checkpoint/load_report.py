"""What loading takes: headers read and tensors mapped, beside the same bytes read into fresh memory."""

from dataclasses import dataclass
from io import RawIOBase
from time import perf_counter

import torch
from torch import Tensor

from ridgeline.core.checkpoint.casting import Casts
from ridgeline.core.checkpoint.folder import Checkpoint


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The time and the reads that it took to fill a model from its checkpoint.

    checkpoint: its files and tensors. header: seconds in which headers were read and checked.
    mapped: seconds in which tensors were mapped, checked and every page of them touched, so that no step waits for one.
    casts: the tensors that were cast to the model's dtype.
    quantised: whether they were read and quantised in that time instead.
    from_disk: bytes that the disk was asked for meanwhile, None where the system does not say; what it was not asked
    for was in the page cache.
    """

    checkpoint: Checkpoint
    header: float
    mapped: float
    from_disk: int | None
    casts: Casts
    quantised: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.checkpoint.nbytes

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return self.header + self.mapped

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds


@dataclass(frozen=True, slots=True)
class TimedRead:
    """Bytes that were read, and the seconds that it took."""

    nbytes: int
    seconds: float

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds


def read_anew(checkpoint: Checkpoint, most: float) -> TimedRead:
    """Read tensors in their order into fresh memory, as a loader that maps nothing does, until they have `most` bytes.

    All of that memory is held until the end: what is given back comes again without the page faults that are a part of
    the price. Raises OSError.
    """
    kept: list[Tensor] = []
    nbytes = 0
    start = perf_counter()
    for path in dict.fromkeys(checkpoint.files.values()):
        with path.open("rb", buffering=0) as file:
            first = checkpoint.data_offset(file)
            for name, entry in checkpoint.entries.items():
                size = entry.end - entry.begin
                if checkpoint.files[name] != path or not size or nbytes + size > most:
                    continue
                kept.append(torch.empty(size, dtype=torch.uint8))
                file.seek(first + entry.begin)
                _read_into(file, kept[-1].numpy().data)
                nbytes += size
    return TimedRead(nbytes, perf_counter() - start)


def _read_into(file: RawIOBase, place: memoryview) -> None:
    """Fill a place from where the file stands; one call of the system gives 2 GiB at most."""
    while place and (count := file.readinto(place)):
        place = place[count:]
