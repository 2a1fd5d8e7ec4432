"""The formatting of numbers for people, in narrow columns and in sentences, with decimal prefixes except GiB to KiB.

GiB and GB are different types, so that mixing them is a type error rather than a 7 % error in a capacity.
"""

from typing import NewType

GiB = NewType("GiB", float)
"""A type for amounts of memory as floats in gibibytes (2^30 bytes), the unit of drivers and allocators."""

GB = NewType("GB", float)
"""A type for amounts of data as floats in gigabytes (10^9 bytes), the unit of data sheets and bandwidths."""

_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
_BINARY = ((1.0, "GiB"), (2**-10, "MiB"), (2**-20, "KiB"))
_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def digits(value: float, count: int) -> str:  # also in numbers.js
    """Return a number with `count` significant digits, but all integer digits: 0.50, 1.2, 12, 123 for two."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{count - 1}e}".rpartition("e")[2])
    return f"{value:.{max(0, count - 1 - exponent)}f}"


def three_digits(value: float) -> str:  # also in numbers.js
    """Return a number with three significant digits, but all integer digits, and no prefix: `12,345`, `133`, `7.50`.

    Numbers below 1 have two digits: `0.50`, `0.087`.
    """
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return digits(value, 3 if abs(value) >= 0.9995 else 2)


def scaled(value: float, count: int = 2) -> str:  # also in numbers.js
    """Return a count with a decimal prefix: `1.2M`, `340k`, `0`."""
    scale, prefix = next(((s, p) for s, p in _LARGE if abs(value) >= s * 0.9995), (1.0, ""))
    return digits(value / scale, count) + prefix


def seconds(value: float, count: int = 2) -> str:  # also in numbers.js
    """Return seconds with a decimal prefix but without the unit: `1.2µ`, `340m`, `2.0`."""
    if value == 0:
        return "0"
    scale, prefix = next(((s, p) for s, p in _SMALL if abs(value) >= s * 0.9995), _SMALL[-1])
    return digits(value / scale, count) + prefix


def say_seconds(value: float) -> str:  # also in numbers.js
    """Return seconds with a decimal prefix and the unit, for a sentence: `1.23 ms`."""
    if value >= 999.5:
        return f"{value:,.0f} s"
    return _spaced(seconds(value, 3), "s")


def say_duration(value: float) -> str:
    """Return seconds in the unit in which people think of a duration: `45.0 s`, `12.5 min`, `7.21 h`, `1.50 days`."""
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if value >= unit:
            return f"{three_digits(value / unit)} {name}"
    return say_seconds(value)


def say(value: float, unit: str) -> str:  # also in numbers.js
    """Return a count with a decimal prefix and a unit, for a sentence: `1.23 GFLOP`, `450 kB`."""
    return _spaced(scaled(value, 3), unit)


def _spaced(text: str, unit: str) -> str:  # also in numbers.js
    """Return a number and its unit with a space before the prefix, if there is one, and otherwise before the unit."""
    return f"{text[:-1]} {text[-1]}{unit}" if text[-1].isalpha() else f"{text} {unit}"


def say_difference(share: float | None) -> str:
    """Return how much longer than expected something took: `+48%`, or `x3.4` from three times on; "" for None."""
    if share is None:
        return ""
    return f"x{digits(share + 1, 2)}" if share >= 2 else f"{share:+.0%}"


def percent(share: float) -> str:  # also in numbers.js
    """Return a share as a percentage: `71%`, `3.2%`, `0.04%`."""
    return f"{share:.0%}" if share >= 0.095 or share == 0 else f"{digits(100 * share, 1 if share < 0.01 else 2)}%"


def gib(nbytes: float) -> GiB:  # also in numbers.js
    """Convert bytes to GiB."""
    return GiB(nbytes / 2**30)


def gb(nbytes: float) -> GB:  # also in numbers.js
    """Convert bytes to GB."""
    return GB(nbytes / 1e9)


def say_gib(amount: GiB) -> str:  # also in numbers.js
    """Return an amount as `13.27 GiB`, or with a smaller unit if it is below 1 GiB: `4.62 MiB`, `64.0 KiB`, `12 B`."""
    size, unit = next(((size, unit) for size, unit in _BINARY if abs(amount) >= size * 0.9995), (2**-30, "B"))
    if unit == "B":
        return f"{amount / size:.0f} B"
    return f"{amount:,.2f} GiB" if unit == "GiB" else f"{three_digits(amount / size)} {unit}"


def say_gb(amount: GB) -> str:  # also in numbers.js
    """Return an amount as `15.01 GB`, or with a smaller unit if it is below 1 GB: `134 MB`."""
    return f"{amount:,.2f} GB" if amount >= 1 else say(amount * 1e9, "B")


def gib_cell(amount: GiB) -> str:
    """Return an amount for a column of GiB: `13.27`, `0.49`, or with its unit if it is below 0.1 GiB: `4.62 MiB`."""
    return f"{amount:,.2f}" if abs(amount) >= 0.1 else say_gib(amount)


def gb_cell(amount: GB) -> str:
    """Return an amount for a column of GB: `15.01`, `0.53`, or with its unit if it is below 0.1 GB: `4.85 MB`."""
    return f"{amount:,.2f}" if abs(amount) >= 0.1 else say(amount * 1e9, "B")
