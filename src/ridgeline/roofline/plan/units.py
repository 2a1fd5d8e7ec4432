"""Units. GiB and GB are different types: mixing them is a type error, not a 7 % error in a capacity."""

from typing import NewType

GiB = NewType("GiB", float)
"""2^30 bytes: what drivers show and allocators hand out."""

GB = NewType("GB", float)
"""10^9 bytes: what data sheets, files and bandwidths are counted in."""


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
