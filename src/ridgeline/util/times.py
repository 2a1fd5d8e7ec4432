"""Times as people write them: with their unit, because seconds and milliseconds differ."""

import re

UNITS = {"us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
"""Nanoseconds."""

_TIME = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})")
_LONGEST = 366 * 24 * 3600e9  # what is longer is in another unit, and moments stay in 64 bits


def parse_time(text: str) -> int | None:
    """Nanoseconds of `500ms`, `2 s`, `50us`, `50 µs`, `10m` or `1h`, rounded; None for what is no time with a unit, or
    longer than a year.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None or (nanoseconds := float(match[1]) * UNITS[match[2]]) > _LONGEST:
        return None
    return round(nanoseconds)
