"""Service level objectives: latency limits for a request to count as good, overall or by request class."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from ridgeline.util.times import parse_time

MAX_CLASSES = 100
"""The maximum number of request classes, because each has a row in tables and percentiles of its own.

Requests without a class count as one.
"""

_NAMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class SLO:
    """The latency limits of a request in nanoseconds; None for no limit."""

    ttft: int | None = None
    """The limit of the time to first token."""
    tpot: int | None = None
    """The limit of the mean time per output token after the first."""
    e2e: int | None = None
    """The limit of the end-to-end latency."""
    classes: Mapping[str, "SLO"] = field(default_factory=dict, hash=False)
    """The objectives of request classes, which replace the general ones for their requests."""

    def __bool__(self) -> bool:
        return bool(self.classes) or any(limit is not None for limit in (self.ttft, self.tpot, self.e2e))

    def of(self, name: str) -> "SLO":
        """Return the objectives that apply to a request class."""
        return self.classes.get(name, self)

    def met(self, ttft: int | None, tpot: float | None, e2e: int | None) -> bool | None:
        """Return whether a request met all latency limits.

        The result is None if a metric with a limit is missing and no other limit is exceeded.
        """
        pairs = ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e))
        limits = [(limit, got) for limit, got in pairs if limit is not None]
        if any(got is not None and got > limit for limit, got in limits):
            return False
        return None if any(got is None for _, got in limits) else True

    @override
    def __str__(self) -> str:
        limits = ((name, getattr(self, name)) for name in _NAMES)
        own = ", ".join(f"{name} {limit / 1e6:g} ms" for name, limit in limits if limit is not None)
        return "; ".join([*([own] if own else []), *(f"{name}: {slo}" for name, slo in self.classes.items())])


def parse_slo(text: str, names: Sequence[str] = _NAMES) -> SLO:
    """Parse objectives such as `ttft=200ms,tpot=50ms,e2e=5s`, of which only those in `names` are allowed.

    Raises:
        ValueError: If the text is malformed.
    """
    limits: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in names:
            raise ValueError(f"--slo has {part.strip()!r}; write one of {', '.join(names)}, like ttft=200ms")
        if name in limits:
            raise ValueError(f"--slo has {name} twice; give it once")
        limits[name] = _nanoseconds(part.strip(), value)
    return SLO(limits.get("ttft"), limits.get("tpot"), limits.get("e2e"))


def parse_slos(texts: Sequence[str]) -> SLO:
    """Parse objectives such as `ttft=1s,tpot=50ms`, and those of one class such as `batch:e2e=60s`.

    Raises:
        ValueError: If a text is malformed, or if two texts are for the same class or both for none.
    """
    found: dict[str, SLO] = {}
    for text in texts:
        name, separated, limits = text.rpartition(":")
        name = name.strip()
        if separated and not name:
            raise ValueError(f"--slo is {text!r}; write the class before the colon, like batch:e2e=60s")
        if name in found:
            raise ValueError(f"--slo is given twice {f'for {name}' if name else 'without a class'}; give it once")
        found[name] = parse_slo(limits)
    return replace(found.pop("", SLO()), classes=found)


def _nanoseconds(part: str, value: str) -> int:
    """Return the nanoseconds of a latency limit such as `200ms`.

    Raises:
        ValueError: If it is malformed; the message says why.
    """
    limit = parse_time(value)
    if limit is None and re.fullmatch(r"\d+(\.\d+)?", value):
        raise ValueError(f"--slo has {part!r}, a time without a unit; write {part}ms or {part}s")
    if limit is None:
        raise ValueError(f"--slo has {part!r}; write a time above 0 with its unit, like ttft=200ms, up to a year")
    if limit == 0:
        raise ValueError(f"--slo has {part!r}; it must be above 0")
    return limit
