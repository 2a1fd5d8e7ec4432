"""The minimum time of a cold start: weights move from a disk into host memory, and from there to the devices."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk or volume that stores a checkpoint."""

    name: str
    title: str
    bandwidth: float
    """The bytes per second of a sequential read."""
    source: str


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The seconds to load a checkpoint at full disk and link speed, without kernels, page faults or parsing."""

    read: float
    """The seconds from the disk into host memory; 0 if the files are in the page cache."""
    copy: float | None
    """The seconds from host memory to all devices in parallel.

    It is 0 if the weights are used where they are, and None if the link speed is unknown.
    """

    @property
    def overlapped(self) -> float:
        """The total seconds if each part is copied while the next one is read."""
        return max(self.read, self.copy or 0.0)

    @property
    def sequential(self) -> float:
        """The total seconds if everything is read before any of it is copied."""
        return self.read + (self.copy or 0.0)


def cold_start(nbytes: float, own: float, disk: Disk | None, host_link: float | None = None) -> ColdStart:
    """Return the loading times of a checkpoint of `nbytes` bytes.

    Args:
        nbytes: The size of the checkpoint in bytes.
        own: The bytes that each device receives over a link of its own; 0 if nothing is copied.
        disk: The disk that stores the files; None if they are in the page cache.
        host_link: The bytes per second to one device in one direction; None if unknown.
    """
    copy = 0.0 if not own else None if host_link is None else own / host_link
    return ColdStart(0.0 if disk is None else nbytes / disk.bandwidth, copy)


@cache
def disks() -> tuple[Disk, ...]:
    """Return the disks of disks.toml in its order, the fastest first."""
    stated = tomllib.loads(resources.files("ridgeline.price").joinpath("disks.toml").read_text(encoding="utf-8"))
    return tuple(Disk(name, own["title"], own["bandwidth"] * 1e9, own["source"]) for name, own in stated.items())
