"""What `run --verbose` says of loading: what it took, and what reading into memory, disks and a card would take."""

from collections.abc import Iterator

from ridgeline.checkpoint.loading import Loading, read_anew
from ridgeline.document.numbers import gb, say_gb, say_seconds, three
from ridgeline.roofline.cards import load_card
from ridgeline.roofline.loading import cold_start, disks

_READ = 1 << 30
"""Bytes that are read again, at most: enough for a speed, little beside what a model takes."""

_CARD = "h100-sxm"


def loading_lines(loading: Loading | None) -> Iterator[str]:
    """The lines, one at a time: the second reads the file again. loading: None of random weights."""
    if loading is None:
        yield "loading: none, the weights are random"
        return
    yield _measured(loading)
    reading = read_anew(loading.checkpoint, _READ)
    if reading.nbytes:
        whole = loading.nbytes / reading.speed
        yield (
            f"read into fresh memory instead, {say_gb(gb(reading.nbytes))} of it from the page cache: "
            f"{_speed(reading.speed)}, so {say_seconds(whole)} for all, x {three(whole / loading.seconds)}"
        )
    yield _priced(loading.nbytes)


def _measured(loading: Loading) -> str:
    found, entries = loading.checkpoint.files, len(loading.checkpoint.entries)
    files = len(set(found.values()))
    disk = "" if loading.from_disk is None else f"; {say_gb(gb(loading.from_disk))} of it came from the disk"
    how = "read and quantised" if loading.quantised else "mapped, every page touched"
    return (
        f"loading: {entries:,} tensors of {files:,} file{'s' * (files > 1)}, headers {say_seconds(loading.header)}; "
        f"{say_gb(gb(loading.nbytes))} {how}, {say_seconds(loading.mapped)}: "
        f"{_speed(loading.speed)}{disk}"
    )


def _priced(nbytes: float) -> str:
    """The floor of a cold start from each disk, and the way onto a card."""
    card = load_card(_CARD)
    cold = ", ".join(
        f"{say_seconds(cold_start(nbytes, 0, disk).read)} from {disk.title} ({_speed(disk.bandwidth)})"
        for disk in disks()
    )
    assert card.host_link is not None
    return (
        f"cold, at least: {cold}; onto a card {say_seconds(nbytes / card.host_link)} more "
        f"({card.title}, {_speed(card.host_link)}) where that waits for the disk; others: plan --section loading"
    )


def _speed(bandwidth: float) -> str:
    return f"{three(bandwidth / 1e9)} GB/s"
