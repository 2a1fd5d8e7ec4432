"""Amounts as people write them: memory, tokens, times and money."""

import re

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)")
_BYTE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([kM]?)")
_THOUSANDS = {"": 1, "k": 1 << 10, "M": 1 << 20}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_bytes(text: str) -> float:
    """Bytes of `512MiB`, `2GiB`, `1.5 GB`. Raises ValueError: bytes carry units here, because GiB and GB differ."""
    match = _BYTES.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not an amount of memory; write a number above 0 and a unit, like 512MiB or 2GB")
    return float(match[1]) * _BYTE_UNITS[match[2]]


def parse_tokens(text: str, option: str) -> int:
    """Tokens of `2000`, `1k` (1,024) or `128k`. Raises ValueError naming the option."""
    match = _TOKENS.fullmatch(text.strip())
    count = float(match[1]) * _THOUSANDS[match[2]] if match is not None else 0.0
    if count < 1 or count != int(count):
        raise ValueError(f"{option} is {text!r}; write a whole number of tokens above 0, like 2000 or 1k (= 1,024)")
    return int(count)


def parse_seconds(text: str, option: str) -> float:
    """Seconds of `500ms`, `2s`, `50 us` or `50 µs`. Raises ValueError naming the option: times carry units here."""
    match = _TIME.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{option} is {text!r}; write a time above 0 with its unit, like 500ms or 2s")
    return float(match[1]) * _SECONDS[match[2]]


def parse_dollars(text: str, option: str) -> float:
    """Dollars of `2.5` or `$2.5`. Raises ValueError naming the option."""
    match = re.fullmatch(r"\$?(\d+(?:\.\d+)?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{option} is {text!r}; write dollars above 0 for one card and hour, like 2.5")
    return float(match[1])
