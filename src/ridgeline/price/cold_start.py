"""What a cold start must take: weights come from a disk into the host's memory, and from there onto the cards."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Disk:
    """Where weights lie. bandwidth: bytes a second of a sequential read."""

    name: str
    title: str
    bandwidth: float
    source: str


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds of loading at the speeds of a disk and of a card's link to its host, and no kernel, page fault or parser
    beside them.

    read: from the disk into the host's memory; 0 where the files are in its page cache. copy: from there onto each
    card, all at once; 0 where the weights are used where they are, None where the link is not known.
    """

    read: float
    copy: float | None

    @property
    def floor(self) -> float:
        """Where each part is copied while the next one is read."""
        return max(self.read, self.copy or 0.0)

    @property
    def in_turn(self) -> float:
        """Where all is read before any of it is copied."""
        return self.read + (self.copy or 0.0)


def cold_start(nbytes: float, own: float, disk: Disk | None, host_link: float | None = None) -> ColdStart:
    """Loading a checkpoint of `nbytes`, of which each card gets `own` over a link of its own.

    own: 0 where no bytes are copied. disk: None for files in the page cache. host_link: bytes a second of one card in
    one direction; None where it is not known.
    """
    copy = 0.0 if not own else None if host_link is None else own / host_link
    return ColdStart(0.0 if disk is None else nbytes / disk.bandwidth, copy)


@cache
def disks() -> tuple[Disk, ...]:
    """The disks of disks.toml, in its order, the fastest first."""
    stated = tomllib.loads(resources.files("ridgeline.price").joinpath("disks.toml").read_text(encoding="utf-8"))
    return tuple(Disk(name, own["title"], own["bandwidth"] * 1e9, own["source"]) for name, own in stated.items())
