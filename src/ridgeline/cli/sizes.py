"""Sizes as people write them."""

import re

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)")


def parse_bytes(text: str) -> float:
    """Bytes of `512MiB`, `2GiB`, `1.5 GB`. Raises ValueError: bytes carry units here, because GiB and GB differ."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not an amount of memory; write a number above 0 and a unit, like 512MiB or 2GB")
    return float(match[1]) * _UNITS[match[2]]
