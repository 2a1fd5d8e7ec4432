"""The metrics of a simulation's log, in seconds, by the definitions of insight/traffic/summary.py.

Requests that arrive during warm-up are excluded: until the number of running requests reaches the later median, the
replica is faster than it will be. After the last arrival, the run continues until all requests have ended.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.insight.simulate.columns import Columns, Ints, distribution, ints
from ridgeline.insight.simulate.run_log import OUTCOMES, WAIT_REASONS, RunLog
from ridgeline.insight.simulate.slo_classes import ClassMetrics, by_class
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Distribution, Interval, wilson
from ridgeline.insight.traffic.series import active_at
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.stationarity import FALLING_BEHIND, SURE, Stationarity, judge_stationarity
from ridgeline.insight.traffic.summary import Goodput
from ridgeline.util.json_data import json_shape

_SAMPLES = 400  # the number of times at which active requests are counted
_COMING = 0.1  # the share of time that arrivals must exceed for steps after the last one to be excluded


@dataclass(frozen=True, slots=True)
class StepShares:
    """Statistics of the steps, weighted by their durations."""

    count: int
    busy: float
    """The share of time in which a step runs, averaged over replicas."""
    batch: float
    """The time-weighted average number of sequences per step."""
    pages: float
    """The average share of the page pool that requests use."""
    most_pages: float
    """The highest share of the page pool in use at any step."""
    prompts: float
    """The share of step time in steps that run prompts."""
    compute: float
    """The share of step time in steps that are compute bound rather than memory bound."""
    held: dict[str, float]
    """The share of the replicas' time in which requests wait, by reason (`WAIT_REASONS`)."""
    longest: float
    """The duration of the longest step in seconds."""
    draining: bool
    """Whether the statistics also cover the steps after the last arrival."""


@dataclass(frozen=True, slots=True)
class MarginOfError:
    """The sampling error of figures: 1.96 standard errors relative to the figure, for independent requests."""

    requests: float
    """The relative sampling error of the request rate, as a Poisson count."""
    tokens: float
    """The relative sampling error of the token rate, as a compound Poisson sum over response lengths."""
    good: float
    """The relative sampling error of the goodput, as a Poisson count."""
    good_share: tuple[float, float]
    """The Wilson interval of the share of good requests."""


@json_shape(
    "requests=total", "*counts", "cut_short=limited", "reasons", "warm_up", "left_out", "duration",
    "offered_per_second=offered", "requests_per_second", "tokens_per_second", "input", "output", "goodput",
    "good_share", "prefix_hits=found", "preemptions", "wasted_positions=wasted", "steps", "replicas", "front",
    "steadiness=stationarity", "latencies=reported_latencies",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class SimulationMetrics:
    """The metrics of a simulation run. Rates, lengths, latencies and goodput cover only requests after the warm-up."""

    counts: dict[str, int]
    """The number of requests by outcome, warm-up included."""
    reasons: dict[str, int]
    """The number of rejected requests by reason."""
    limited: int
    """The responses cut short because the context or KV memory was full."""
    warm_up: float
    """The seconds from the start during which arrivals are excluded."""
    left_out: int
    """The number of requests excluded as warm-up."""
    duration: float
    """The seconds from the first counted arrival to the last token."""
    offered: float
    """The arrival rate in requests per second, from the first to the last counted arrival."""
    requests_per_second: float
    """The completed requests per second of `duration`."""
    tokens_per_second: float
    """The output tokens per second of `duration`."""
    input: float
    """Average prompt tokens of a completed request."""
    output: float
    """Average output tokens of a completed request."""
    latencies: dict[str, Distribution | None]
    """Latency distributions by name, in seconds."""
    goodput: Goodput | None
    good_share: float
    """The share of counted requests that met their objectives; without objectives, that completed."""
    found: float
    """The share of prompt tokens found in the prefix cache."""
    preemptions: int
    wasted: int
    """The positions computed again after a preemption."""
    steps: StepShares
    replicas: float
    """The average number of replicas over the run."""
    front: float | None
    """The seconds of work per second that the API server core receives; None if it receives none."""
    front_wall: float
    """The saturation rate of the API server in requests per second, for as many steps per second as in this run.

    It is infinite if its core receives no work, and in a closed loop.
    """
    stationarity: Stationarity | None
    """The growth of the backlog; None for closed-loop traffic or too little data."""
    sampling_error: MarginOfError | None
    """The sampling error of the figures; None for closed-loop traffic."""
    classes: dict[str, ClassMetrics] = field(default_factory=dict)
    """The metrics of each request class; empty if neither the requests nor the objectives name a class."""

    @property
    def total(self) -> int:
        """The number of all requests, whatever their outcome."""
        return sum(self.counts.values())

    @property
    def reported_latencies(self) -> dict[str, Distribution | None]:
        """The latency distributions by their names in JSON, all None for an overloaded run."""
        named = {name.lower().replace(" ", "_"): found for name, found in self.latencies.items()}
        return dict.fromkeys(named) if self.overloaded else named

    @property
    def sizes(self) -> tuple[int, int]:
        """The average prompt and output tokens of a request, rounded, as input to a load law."""
        return max(1, round(self.input)), max(1, round(self.output))

    @property
    def overloaded(self) -> bool:
        """Whether the replicas or the API server fall behind open-loop arrivals.

        Latencies then grow with the length of the run, so they are meaningless.
        """
        if not self.counts["ok"] or self.stationarity is None:
            return False
        return self.front_overloaded or self.stationarity.overloaded

    @property
    def front_overloaded(self) -> bool:
        """Whether the API server falls behind the arrivals.

        This requires that the backlog grows, that more than 5 % of the arrivals exceed the saturation rate (as in
        `judge_stationarity`), and that the excess is larger than the sampling error of the arrivals.
        """
        if self.stationarity is None or not self.offered:
            return False
        left = max(0.0, 1 - self.front_wall / self.offered)
        sure = left > FALLING_BEHIND and left * self.total > SURE * math.sqrt(self.total)
        return sure and self.stationarity.growth > 0

    def late(self, name: str) -> float:
        """Return the p99 of a latency, or the highest percentile that has enough samples; infinite if there is none."""
        found = self.latencies[name]
        known = [] if found is None else [at.mid for at in found.percentiles.values() if at is not None]
        return known[-1] if known else math.inf

    def latency(self, name: str, percent: int) -> Interval | None:
        """Return a latency percentile, or None if there are too few samples."""
        found = self.latencies[name]
        return None if found is None else found.percentiles[percent]


def measure(
    log: RunLog, slo: SLO | None, *, open_loop: bool, window: tuple[int, int] | None = None
) -> SimulationMetrics:
    """Compute the metrics of a simulation's log.

    Args:
        log: The log of a completed run.
        slo: The objectives, if there are any.
        open_loop: Whether arrivals are independent of responses, so that they can exceed the capacity.
        window: The first request to count and the one after the last, in order of arrival; None for all after the
            warm-up. If the window ends before the last request, the duration ends with it too: the later requests only
            keep up the load for those that count.
    """
    requests = Columns(log)
    since = warm_up(log, requests) if window is None else int(requests.arrived[window[0]])
    counted = requests.arrived >= since
    if window is not None:
        counted = np.zeros(len(requests.arrived), dtype=bool)
        counted[slice(*window)] = True
    answered = counted & requests.ok
    duration = _duration(requests, answered, counted)
    if window is not None and window[1] < len(requests.arrived):
        duration = float(requests.arrived[window[1]] - since) / 1e9
    good = requests.goodput(answered, slo, duration)
    share = (int(answered.sum()) if good is None else good.good) / max(1, int(counted.sum()))
    arrivals = requests.arrived[counted]
    span = float(arrivals[-1] - arrivals[0]) / 1e9 if len(arrivals) else 0.0
    offered = (len(arrivals) - 1) / span if span else 0.0
    front, front_wall = _front(log, offered if open_loop else 0.0)
    made, prompts = int(requests.made[answered].sum()), int(requests.input[answered].sum())
    assert log.totals is not None, "the run has not ended"
    classed = any(requests.classes) or (slo is not None and bool(slo.classes))
    return SimulationMetrics(
        counts={name: int((requests.outcome == code).sum()) for code, name in enumerate(OUTCOMES)},
        reasons=dict(Counter(log.requests.reasons.values())),
        limited=int(ints(log.requests.limited).sum()),
        warm_up=since / 1e9,
        left_out=int((~counted).sum()),
        duration=duration,
        offered=offered,
        requests_per_second=int(answered.sum()) / duration if duration else 0.0,
        tokens_per_second=made / duration if duration else 0.0,
        input=_mean(requests.input[answered]),
        output=_mean(requests.made[answered]),
        latencies=_latencies(log, requests, answered, since),
        goodput=good,
        good_share=share,
        found=int(requests.cached[answered].sum()) / prompts if prompts else 0.0,
        preemptions=log.totals.preemptions,
        wasted=log.totals.wasted,
        steps=_shares(log, since),
        replicas=sum(until - since for since, until in log.lives) / log.end if log.end else float(log.replicas),
        front=front,
        front_wall=front_wall,
        stationarity=_steadiness(requests, span) if open_loop else None,
        sampling_error=_drawn(requests.made[answered], int(counted.sum()), share) if open_loop else None,
        classes=by_class(requests, answered, counted, slo, duration) if classed else {},
    )


def _drawn(made: Ints, counted: int, share: float) -> MarginOfError:
    """Return the sampling error of the request rate, the token rate, the goodput and the share of good requests.

    Args:
        made: Output tokens of each completed request.
        counted: The number of counted requests.
        share: The share of these that is good.
    """
    count, tokens, good = len(made), float(made.sum()), share * counted
    return MarginOfError(
        DEVIATIONS_95 / math.sqrt(count) if count else 0.0,
        DEVIATIONS_95 * math.sqrt(float((made.astype(np.float64) ** 2).sum())) / tokens if tokens else 0.0,
        DEVIATIONS_95 / math.sqrt(good) if good else 0.0,
        wilson(share, counted),
    )


def warm_up(log: RunLog, requests: Columns) -> int:
    """Return the time from which arrivals are counted, in nanoseconds.

    That is when the number of running requests, over all replicas, first reaches the median of the last two thirds of
    the arrival period, but at most a third into that period; 0 if no step shows it.
    """
    arrived, started = requests.arrived, ints(log.steps.started)
    if len(started) == 0:
        return 0
    ok, took = requests.ok, ints(log.steps.took)
    running = active_at(requests.scheduled[ok], requests.ended[ok], started)
    third = int(arrived[0] + (arrived[-1] - arrived[0]) // 3)
    later = (started >= third) & (started <= arrived[-1])
    if not later.any():
        return 0
    order = np.argsort(running[later], kind="stable")
    ranks = np.cumsum(took[later][order])
    median = running[later][order][np.searchsorted(ranks, ranks[-1] / 2)]
    first = int(started[np.argmax(running >= median)])
    return 0 if first <= arrived[0] else min(first, third)


# -- requests ---------------------------------------------------------------------------------------------------------


def _duration(requests: Columns, answered: NDArray[np.bool_], counted: NDArray[np.bool_]) -> float:
    """Return the seconds from the first counted arrival to the last token."""
    if not answered.any():
        return 0.0
    return float(requests.last[answered].max() - requests.arrived[counted].min()) / 1e9


def _latencies(
    log: RunLog, requests: Columns, answered: NDArray[np.bool_], since: int
) -> dict[str, Distribution | None]:
    """Return latency distributions in seconds by name, with an interval for each percentile.

    The interval covers both that of the percentile's rank and that of a bootstrap over blocks of one minute.
    """
    several, moments = answered & (requests.made > 1), requests.arrived
    found = requests.latencies(answered)
    found["queue"] = distribution((requests.scheduled - requests.arrived)[answered], None, moments[answered])
    found["worst gap"] = distribution(requests.worst_gap[several], None, moments[several])
    at = ints(log.gaps.at)
    late = at >= since
    found["ITL"] = distribution(ints(log.gaps.gap)[late], ints(log.gaps.tokens)[late].astype(np.float64), at[late])
    return found


def _steadiness(requests: Columns, span: float) -> Stationarity | None:
    """Measure the backlog's growth during the arrival period, after which it shrinks; None with too little data."""
    if not span:
        return None
    start, end = int(requests.arrived[0]), int(requests.arrived[-1])
    moments = np.linspace(start, end, _SAMPLES)
    counts = active_at(requests.arrived, requests.ended, moments)
    ok = requests.ok
    sent = np.where(requests.is_disaggregated, requests.worst_gap, 0)  # the KV transfer comes after the first token
    came, waited = requests.arrived[ok] / 1e9, (requests.first - requests.arrived + sent)[ok] / 1e9
    waits = zip(came.tolist(), waited.tolist(), strict=True)
    rate = (len(requests.arrived) - 1) / ((end - start) / 1e9)
    under_way = zip((moments / 1e9).tolist(), counts.astype(float).tolist(), strict=True)
    return judge_stationarity(list(under_way), list(waits), rate)


def _front(log: RunLog, rate: float) -> tuple[float | None, float]:
    """Return the API server's load and its saturation rate for arrivals at `rate` per second.

    For a rate of 0, as in a closed loop, the load is that of the run and the saturation rate is infinite. Without API
    server work, the load is None.
    """
    totals, count, end = log.totals, len(log.requests), log.end / 1e9
    assert totals is not None, "the run has not ended"
    if not count or not (totals.front_requests or totals.front_steps):
        return None, math.inf
    stepped = (log.steps.started[-1] + log.steps.took[-1]) / 1e9 if log.steps.started else end
    steps, each = totals.front_steps / 1e9 / stepped, totals.front_requests / 1e9 / count
    if not rate:
        return (totals.front_requests + totals.front_steps) / 1e9 / end, math.inf
    return steps + rate * each, max(0.0, 1 - steps) / each if each else math.inf if steps < 1 else 0.0


# -- steps ------------------------------------------------------------------------------------------------------------


def _shares(log: RunLog, since: int) -> StepShares:
    """Return the step statistics from `since` to the last arrival, after which the replicas only drain.

    If arrivals cover a tenth of the time or less, the statistics cover all steps from `since`. `most_pages` and
    `longest` cover all steps.
    """
    steps = log.steps
    started, took = ints(steps.started), ints(steps.took)
    last = log.requests.arrived[-1] if len(log.requests) else 0
    within, draining = started >= since, last - since <= _COMING * (log.end - since)
    if not draining:
        within &= started <= last
    if not within.any():
        within, draining = np.ones(len(started), dtype=bool), True
    if not within.any():
        return StepShares(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, dict.fromkeys(WAIT_REASONS[1:], 0.0), 0.0, draining)
    longest, took = float(took.max()) / 1e9, took[within]
    busy = float(took.sum())
    begun, over = int(started[within][0]), int(started[within][-1] + took[-1])
    whole = float(sum(max(0, min(until, over) - max(since, begun)) for since, until in log.lives))
    assert log.totals is not None, "the run has not ended"
    held, pages = ints(steps.held)[within], ints(steps.pages) / np.asarray(log.totals.pages)[ints(steps.replica)]

    def share(of: NDArray[Any]) -> float:
        return float((took * of).sum()) / busy if busy else 0.0

    return StepShares(
        int(within.sum()),
        busy / whole if whole else 0.0,
        share(ints(steps.sequences)[within]),
        share(pages[within]),
        float(pages.max()),
        share(ints(steps.prompts)[within] > 0),
        share(ints(steps.compute)[within]),
        {name: float(took[held == code].sum()) / whole for code, name in enumerate(WAIT_REASONS) if name}
        if whole
        else {},
        longest,
        draining,
    )


def _mean(values: Ints) -> float:
    return float(values.mean()) if len(values) else 0.0
