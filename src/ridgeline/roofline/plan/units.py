"""Units. GiB and GB are different types: mixing them is a type error, not a 7 % error in a capacity."""

from typing import NewType

GiB = NewType("GiB", float)
"""2^30 bytes: what drivers show and allocators hand out."""

GB = NewType("GB", float)
"""10^9 bytes: what data sheets, files and bandwidths are counted in."""

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_COUNTS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def gib(nbytes: float) -> GiB:
    """Bytes in GiB."""
    return GiB(nbytes / 2**30)


def gb(nbytes: float) -> GB:
    """Bytes in GB."""
    return GB(nbytes / 1e9)


def show_gib(amount: GiB) -> str:
    """`13.27 GiB`."""
    return f"{amount:,.2f} GiB"


def show_gb(amount: GB) -> str:
    """`15.01 GB`."""
    return f"{amount:,.2f} GB"


def show_seconds(seconds: float) -> str:
    """Three digits and a unit: `7.50 ms`, `48.1 us`, `12.3 s`."""
    scale, unit = next(((s, u) for s, u in _SECONDS if seconds >= s), _SECONDS[-1])
    return f"{three(seconds / scale)} {unit}"


def show_count(count: float, unit: str = "") -> str:
    """Three digits, a prefix and a unit: `15.0 GFLOP`."""
    scale, prefix = next(((s, p) for s, p in _COUNTS if count >= s), (1.0, ""))
    return f"{three(count / scale)} {prefix}{unit}".rstrip()


def three(value: float) -> str:
    """A number with three digits that mean something: `7.50`, `48.1`, `133`, `3,950`."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
