"""Service level objectives: the most that a request may take to count as good, of all or class by class."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from ridgeline.util.times import parse_time

MAX_CLASSES = 100
"""Classes of requests, those of none among them: each is a line of a table, and has percentiles of its own."""

_NAMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class SLO:
    """Nanoseconds to the first token, between two tokens on average, and to the last; None for no limit. classes: what
    requests of a class keep to instead.
    """

    ttft: int | None = None
    tpot: int | None = None
    e2e: int | None = None
    classes: Mapping[str, "SLO"] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.classes) or any(limit is not None for limit in (self.ttft, self.tpot, self.e2e))

    def of(self, name: str) -> "SLO":
        """What requests of a class keep to."""
        return self.classes.get(name, self)

    def met(self, ttft: int | None, tpot: float | None, e2e: int | None) -> bool | None:
        """Whether a request kept every limit; None where it lacks a metric that has one and broke no other."""
        pairs = ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e))
        asked = [(limit, got) for limit, got in pairs if limit is not None]
        if any(got is not None and got > limit for limit, got in asked):
            return False
        return None if any(got is None for _, got in asked) else True

    @override
    def __str__(self) -> str:
        limits = ((name, getattr(self, name)) for name in _NAMES)
        own = ", ".join(f"{name} {limit / 1e6:g} ms" for name, limit in limits if limit is not None)
        return "; ".join([*([own] if own else []), *(f"{name}: {slo}" for name, slo in self.classes.items())])


def parse_slo(text: str, names: Sequence[str] = _NAMES) -> SLO:
    """The objectives in `ttft=200ms,tpot=50ms,e2e=5s`, of those that have `names`. Raises ValueError."""
    limits: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in names:
            raise ValueError(f"--slo has {part.strip()!r}; it takes {', '.join(names)}, like ttft=200ms")
        if name in limits:
            raise ValueError(f"--slo has {name} twice; give it once")
        limits[name] = _nanoseconds(part.strip(), value)
    return SLO(limits.get("ttft"), limits.get("tpot"), limits.get("e2e"))


def parse_slos(texts: Sequence[str]) -> SLO:
    """The objectives in `ttft=1s,tpot=50ms` and `batch:e2e=60s`, the latter of one class. Raises ValueError."""
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
    """Raises ValueError that says what is wrong with the time."""
    limit = parse_time(value)
    if limit is None and re.fullmatch(r"\d+(\.\d+)?", value):
        raise ValueError(f"--slo has {part!r}, a time without a unit; write {part}ms or {part}s")
    if limit is None:
        raise ValueError(f"--slo has {part!r}; write a time above 0 with its unit, like ttft=200ms, up to a year")
    if limit == 0:
        raise ValueError(f"--slo has {part!r}; it must be above 0")
    return limit
