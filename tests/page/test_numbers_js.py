"""Numbers are written alike on the page and in a terminal."""

import random
import struct
from collections.abc import Callable
from functools import cache

import pytest

from page.modules import Modules
from ridgeline.util.document import humanize

FUNCTIONS: dict[str, Callable[[float], str]] = {
    "three_digits": humanize.three_digits,
    "scaled": humanize.scaled,
    "seconds": humanize.seconds,
    "say_seconds": humanize.say_seconds,
    "percent": humanize.percent,
    "say_gib": lambda value: humanize.say_gib(humanize.GiB(value)),
    "say_gb": lambda value: humanize.say_gb(humanize.GB(value)),
}


@cache
def values() -> list[float]:
    """Of every size; halves, which either language rounds its own way; what is next to the edges of prefixes."""
    random.seed(14)
    of_sizes = [10 ** random.uniform(-13, 17) for _ in range(400)]
    halves = [n / 2**k for n in range(1, 200, 2) for k in range(1, 8)]
    edges = [e * f for e in (1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9, 1e12) for f in (0.9995, 0.99949, 0.999, 1.0, 1.0005)]
    bits = [struct.unpack("d", struct.pack("Q", random.getrandbits(52) | (1003 + i) << 52))[0] for i in range(50)]
    return [0.0, *of_sizes, *halves, *edges, *bits, *map(float, range(1, 1100, 7)), 0.095, 0.0949999, 2.0**30, 1e9]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_page_writes_numbers_as_documents_do(name: str) -> None:
    page = Modules("numbers.js")
    written = page.eval(f"{values()!r}.map((value) => modules['numbers.js'].{name}(value))")
    assert written == [FUNCTIONS[name](value) for value in values()]
