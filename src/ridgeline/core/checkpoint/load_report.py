"""Measurement of weight loading: the time to map the tensors, and to read the same bytes into fresh memory."""

from dataclasses import dataclass
from io import RawIOBase
from time import perf_counter

import torch
from torch import Tensor

from ridgeline.core.checkpoint.casting import Casts
from ridgeline.core.checkpoint.folder import Checkpoint


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The time and the disk reads of filling a model from its checkpoint."""

    checkpoint: Checkpoint
    """The checkpoint whose loading was measured."""
    header: float
    """The seconds to read and check a checkpoint's headers."""
    mapped: float
    """The seconds to map and check a checkpoint's tensors and touch every page, so that no step waits for the disk.

    If `quantised`, seconds to read and quantise the tensors.
    """
    from_disk: int | None
    """The bytes read from disk while weights were loaded, or None if the system does not report them.

    The rest came from the page cache.
    """
    casts: Casts
    """The casts to the model's dtype while loading that could change numbers."""
    quantised: bool = False
    """Whether a model's tensors were read and quantised instead of mapped."""

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors of a loaded checkpoint."""
        return self.checkpoint.nbytes

    @property
    def seconds(self) -> float:
        """The total time to load a model's weights, in seconds."""
        return self.header + self.mapped

    @property
    def speed(self) -> float:
        """The speed of loading a model's weights, in bytes per second."""
        return self.nbytes / self.seconds


@dataclass(frozen=True, slots=True)
class TimedRead:
    """The number of bytes in a timed read, and its duration."""

    nbytes: int
    seconds: float

    @property
    def speed(self) -> float:
        """The speed of a timed read, in bytes per second."""
        return self.nbytes / self.seconds


def time_buffered_read(checkpoint: Checkpoint, most: float) -> TimedRead:
    """Read tensors in order into fresh memory, as a loader without mapping does, up to `most` bytes, and time it.

    All memory is held until the end, because released memory would be reused without the page faults that are part of
    the cost.

    Raises:
        OSError: If a file cannot be read.
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
    """Fill a buffer from an open file; one system call returns at most 2 GiB."""
    while place and (count := file.readinto(place)):
        place = place[count:]
