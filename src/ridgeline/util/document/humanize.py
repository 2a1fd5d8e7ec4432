"""Numbers as people read them, in a narrow column or a sentence. Powers of ten, but for GiB.

GiB and GB are different types: mixing them is a type error, not a 7 % error in a capacity.
"""

from typing import NewType

GiB = NewType("GiB", float)
"""2^30 bytes: what drivers show and allocators hand out."""

GB = NewType("GB", float)
"""10^9 bytes: what data sheets, files and bandwidths are counted in."""

_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def digits(value: float, count: int) -> str:
    """`value` with `count` digits that mean something: 0.50, 1.2, 12, 123 for two; 1234 in full."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{count - 1}e}".partition("e")[2])
    return f"{value:.{max(0, count - 1 - exponent)}f}"


def three_digits(value: float) -> str:
    """A number without a prefix: `3,950`, `133`, `48.1`, `7.50`; two digits where it is small: `0.50`, `0.087`."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return digits(value, 3 if abs(value) >= 0.9995 else 2)


def scaled(value: float, count: int = 2) -> str:
    """A count with a prefix: `1.2M`, `340k`, `0`."""
    scale, prefix = next(((s, p) for s, p in _LARGE if abs(value) >= s * 0.9995), (1.0, ""))
    return digits(value / scale, count) + prefix


def seconds(value: float, count: int = 2) -> str:
    """Seconds with a prefix and without the s: `1.2µ`, `340m`, `2.0`."""
    if value == 0:
        return "0"
    scale, prefix = next(((s, p) for s, p in _SMALL if abs(value) >= s * 0.9995), _SMALL[-1])
    return digits(value / scale, count) + prefix


def say_seconds(value: float) -> str:
    """Seconds in a sentence: `1.23 ms`."""
    if value >= 999.5:
        return f"{value:,.0f} s"
    text = seconds(value, 3)
    return f"{text[:-1]} {text[-1]}s" if text[-1].isalpha() else f"{text} s"


def say(value: float, unit: str) -> str:
    """A count in a sentence: `1.23 GFLOP`, `450 kB`."""
    text = scaled(value, 3)
    return f"{text[:-1]} {text[-1]}{unit}" if text[-1].isalpha() else f"{text} {unit}"


def say_difference(share: float | None) -> str:
    """How much longer than expected: `+48%`, from three times on `x3.4`."""
    if share is None:
        return ""
    return f"x{digits(share + 1, 2)}" if share >= 2 else f"{share:+.0%}"


def percent(share: float) -> str:
    """A share: `71%`, `3.2%`, `0.04%`."""
    return f"{share:.0%}" if share >= 0.095 or share == 0 else f"{digits(100 * share, 1 if share < 0.01 else 2)}%"


def gib(nbytes: float) -> GiB:
    """Bytes in GiB."""
    return GiB(nbytes / 2**30)


def gb(nbytes: float) -> GB:
    """Bytes in GB."""
    return GB(nbytes / 1e9)


def say_gib(amount: GiB) -> str:
    """`13.27 GiB`, of what would be none at that precision `4.62 MiB`."""
    return f"{three_digits(amount * 1024)} MiB" if 0 < amount < 0.01 else f"{amount:,.2f} GiB"


def say_gb(amount: GB) -> str:
    """`15.01 GB`, below one `134 MB`."""
    return f"{amount:,.2f} GB" if amount >= 1 else say(amount * 1e9, "B")
