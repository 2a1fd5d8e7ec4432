"""Time series of a run, computed from its records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.insight.traffic.request_record import RequestRecord

_SAMPLES = 400
_MAX_POINTS = 200  # points of a distribution


def under_way(records: Sequence[RequestRecord], until: int, samples: int = _SAMPLES) -> list[tuple[float, float]]:
    """Return the number of active requests at evenly spaced times up to `until`, with times in seconds.

    A request is active from its intended send time to its end.
    """
    moments = np.arange(samples, dtype=np.float64) * (until / max(1, samples - 1))
    counts = counts_at(records, moments, until)
    return list(zip((moments / 1e9).tolist(), counts.tolist(), strict=True))


def counts_at(records: Sequence[RequestRecord], moments: NDArray[np.floating], until: int) -> NDArray[np.float64]:
    """Return the number of active requests at times in nanoseconds; one that has not ended stays until `until`."""
    ended = [record.over if record.ended is not None else until for record in records]
    return active_at([record.intended for record in records], ended, moments).astype(np.float64)


def active_at(begun: ArrayLike, ended: ArrayLike, moments: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of requests at each of some times that have begun by then and have not ended."""
    count_begun, count_ended = (np.searchsorted(np.sort(times), moments, side="right") for times in (begun, ended))
    return count_begun - count_ended


def ttfts_by_arrival(records: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """Return the intended send time and the TTFT, in seconds, of each request that received a chunk."""
    return [(record.intended / 1e9, record.ttft / 1e9) for record in records if record.ttft is not None]


def cumulative(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return the empirical distribution of sorted values, thinned to a limited number of steps.

    Both ends are always included.
    """
    count = len(values)
    places = sorted({0, count - 1, *range(0, count, max(1, count // _MAX_POINTS))})
    return ((values[0], 0.0), *((values[place], (place + 1) / count) for place in places))


@dataclass(frozen=True, slots=True)
class SecondStats:
    """The arrivals, completed requests, active requests and tokens in one second of a run."""

    second: int
    arrived: int
    under_way: float
    """The average number of active requests in the second."""
    finished: int
    tokens: float
    """The output tokens that the received chunks stand for."""


def seconds(records: Sequence[RequestRecord]) -> list[SecondStats]:
    """Return the activity in each second of a run, up to the last end."""
    if not records:
        return []
    end = max(record.over for record in records)
    count = max(1, -(-end // 10**9))
    edges = np.arange(count + 1) * 1e9
    tenths = counts_at(records, (np.arange(count * 10) + 0.5) * 1e8, end).reshape(count, 10).mean(axis=1)
    arrived = np.histogram([record.intended for record in records], edges)[0]
    finished = np.histogram([record.over for record in records if record.outcome == "ok"], edges)[0]
    chunks = np.concatenate([np.asarray(record.chunks, dtype=np.float64) for record in records] or [np.empty(0)])
    each = [record.output / len(record.chunks) if record.chunks else 0.0 for record in records]
    tokens = np.histogram(chunks, edges, weights=np.repeat(each, [len(record.chunks) for record in records]))[0]
    rows = zip(range(count), arrived, tenths, finished, tokens, strict=True)
    return [SecondStats(at, int(a), float(u), int(f), float(t)) for at, a, u, f, t in rows]
