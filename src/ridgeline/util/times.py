"""The parsing of durations, which need a unit because seconds and milliseconds are easily confused."""

import re

UNITS = {"us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
"""The number of nanoseconds of each unit of time, by its symbol."""

_TIME = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})")
_LONGEST = 366 * 24 * 3600e9  # nanoseconds; a longer time is a mistake in the unit, and sums stay within 64 bits


def parse_time(text: str) -> int | None:
    """Return the nanoseconds of a duration such as `500ms`, `2 s`, `50us`, `50 µs`, `10m` or `1h`, rounded.

    It returns None if the text is no number with a unit, or the duration is longer than a year.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None or (nanoseconds := float(match[1]) * UNITS[match[2]]) > _LONGEST:
        return None
    return round(nanoseconds)
